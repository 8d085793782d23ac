//! The directories of `dump` above the dumps. They are generated from the list of dumps.

use std::sync::Arc;

use nine_io::server::xattr::XattrValue;
use nine_io::server::{Reply, Request};
use nine_proto::{Attr, Errno, GetMask, Op as Asked, Qid, Texts, Time, mode};

use super::node::{ArchiveNode, TreeView};
use crate::archive::{Archive, ArchiveState};
use crate::date::parse_dump_name;
use crate::dump::LoadedDump;
use crate::fs::{FsResult, ROOT};

/// The qid path of the root of `dump`. Those of years follow it. No inode has such a number.
const PATH: u64 = 1 << 63;

impl Archive {
    fn year_of(state: &ArchiveState, generation: u32) -> Option<u16> {
        state.dumps.get(&generation).map(|dump| dump.record.day.year)
    }

    /// Returns the directory that contains a dump.
    pub(super) fn above_dump(&self, state: &ArchiveState, generation: u32) -> Arc<ArchiveNode> {
        Arc::new(Self::year_of(state, generation).map_or(ArchiveNode::Dumps, ArchiveNode::Year))
    }

    /// Returns the name of a tree's root.
    pub(super) fn root_name(&self, state: &ArchiveState, view: TreeView) -> Box<[u8]> {
        match view {
            TreeView::Main => b"/"[..].into(),
            TreeView::Dump(generation) => match state.dumps.get(&generation) {
                Some(LoadedDump { record }) => record.day.dump_name(record.number).into_bytes().into(),
                None => b"/"[..].into(),
            },
        }
    }

    pub(super) fn step_in_dumps(
        &self,
        state: &mut ArchiveState,
        node: &ArchiveNode,
        name: &[u8],
    ) -> FsResult<Arc<ArchiveNode>> {
        if name == b".." {
            return Ok(Arc::new(ArchiveNode::Dumps));
        }
        if let ArchiveNode::Year(year) = node {
            let found =
                std::str::from_utf8(name).ok().and_then(parse_dump_name).and_then(|(month, day, number)| {
                    let is_it = |dump: &LoadedDump| {
                        let LoadedDump { record } = dump;
                        (record.day.year, record.day.month, record.day.day, record.number)
                            == (*year, month, day, number)
                    };
                    state.dumps.iter().find(|(_, dump)| is_it(dump)).map(|(generation, _)| *generation)
                });
            return state.meet(TreeView::Dump(found.ok_or(Errno::ENOENT)?), ROOT, ROOT, name);
        }
        let found = self.list_dumps(state, node).into_iter().find(|(its, _)| its.as_bytes() == name);
        Ok(found.ok_or(Errno::ENOENT)?.1)
    }

    /// Returns the entries of such a directory.
    pub(super) fn list_dumps(
        &self,
        state: &mut ArchiveState,
        node: &ArchiveNode,
    ) -> Vec<(String, Arc<ArchiveNode>)> {
        match node {
            ArchiveNode::Dumps => {
                let mut years: Vec<u16> = state.dumps.values().map(|dump| dump.record.day.year).collect();
                years.sort_unstable();
                years.dedup();
                years
                    .into_iter()
                    .map(|year| (format!("{year:04}"), Arc::new(ArchiveNode::Year(year))))
                    .collect()
            }
            ArchiveNode::Year(year) => {
                let dumps = state.dumps.iter().filter(|(_, dump)| dump.record.day.year == *year);
                let dumps: Vec<(u32, String)> = dumps
                    .map(|(generation, LoadedDump { record })| {
                        (*generation, record.day.dump_name(record.number))
                    })
                    .collect();
                let of = |(generation, name): (u32, String)| {
                    let file = state.meet(TreeView::Dump(generation), ROOT, ROOT, name.as_bytes());
                    (name, file.expect("it is met in memory"))
                };
                dumps.into_iter().map(of).collect()
            }
            _ => Vec::new(),
        }
    }

    pub(super) fn qid_of_dumps(&self, state: &ArchiveState, node: &ArchiveNode) -> Qid {
        let path = match node {
            ArchiveNode::Year(year) => PATH + 1 + u64::from(*year),
            _ => PATH,
        };
        Qid { ty: Qid::DIR, vers: state.dumps.len() as u32, path }
    }

    /// Returns the qid of an entry, without reading anything of the dump.
    pub(super) fn qid_in_list(&self, state: &ArchiveState, node: &ArchiveNode) -> Qid {
        match node {
            ArchiveNode::File(file) => Qid { ty: Qid::DIR, vers: 0, path: file.view.path(file.ino) },
            _ => self.qid_of_dumps(state, node),
        }
    }

    pub(super) fn attr_of_dumps(&self, state: &ArchiveState, node: &ArchiveNode) -> Attr {
        let (name, year) = match node {
            ArchiveNode::Year(year) => (format!("{year:04}"), Some(*year)),
            _ => ("/".into(), None),
        };
        let is_in = |dump: &&LoadedDump| year.is_none_or(|year| dump.record.day.year == year);
        let times: Vec<Time> = state.dumps.values().filter(is_in).map(|dump| dump.record.time).collect();
        let made = times.first().copied().unwrap_or(self.0.label.made);
        let changed = times.last().copied().unwrap_or(made);
        let texts = Texts { name: name.into_bytes().into(), ..Texts::default() };
        Attr {
            valid: GetMask::ALL | GetMask::TEXTS,
            qid: self.qid_of_dumps(state, node),
            mode: mode::S_IFDIR | 0o555,
            nlink: 2,
            blksize: state.fs.block(),
            atime: changed,
            mtime: changed,
            ctime: changed,
            btime: made,
            texts: Some(Box::new(texts)),
            ..Attr::default()
        }
    }

    /// Handles the other requests on these directories.
    pub(super) fn at_dumps(
        &self,
        req: &Request,
        state: &ArchiveState,
        node: &Arc<ArchiveNode>,
        op: &Asked<'_>,
    ) -> FsResult<Reply> {
        match op {
            Asked::Open { flags } if flags.changes() => Err(Errno::EISDIR.into()),
            Asked::Open { .. } => {
                let qid = self.qid_of_dumps(state, node);
                Ok(Reply::Open { qid, iounit: 0, node: node.clone() })
            }
            Asked::Clunk => Ok(Reply::Done),
            Asked::XattrWalk { name: b"" } => {
                let none = XattrValue::new(bytes::Bytes::new(), req, &state.xattr_limit)?;
                Ok(Reply::Xattr { size: 0, node: Arc::new(ArchiveNode::Xattr(none)) })
            }
            Asked::XattrWalk { .. } => Err(Errno::ENODATA.into()),
            Asked::Readlink => Err(Errno::EINVAL.into()),
            Asked::Read { .. } => Err(Errno::EISDIR.into()),
            Asked::Lock(_) | Asked::Getlock(_) | Asked::Stream { .. } | Asked::Sclose { .. } => {
                Err(Errno::EOPNOTSUPP.into())
            }
            _ => Err(Errno::EROFS.into()),
        }
    }
}
