//! The nodes behind fids, and their attributes.

use std::sync::Arc;

use nine_io::server::xattr::{XattrInput, XattrValue};
use nine_proto::{Attr, Errno, GetMask, Qid, Texts, mode};

use crate::archive::{Archive, ArchiveState};
use crate::fs::{ArchiveFs, FsResult, OperationStop, ROOT};
use crate::item::InodeAttributes;
use crate::live::LiveFile;
use crate::ptr::BlockPtr;

/// A tree of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TreeView {
    /// The present tree.
    Main,
    /// A dump, by its generation.
    Dump(u32),
}

impl TreeView {
    /// Returns the generation, if this is a dump.
    pub(super) fn dump(self) -> Option<u32> {
        if let Self::Dump(generation) = self { Some(generation) } else { None }
    }

    /// Returns the qid path of a file, which is unique in the archive.
    pub(super) fn path(self, ino: u64) -> u64 {
        match self {
            Self::Main => ino,
            Self::Dump(generation) => u64::from(generation) << 44 | ino,
        }
    }
}

/// A node behind a fid.
pub(super) enum ArchiveNode {
    File(TreeFile),
    /// The root of `dump`.
    Dumps,
    /// The directory of a year in it.
    Year(u16),
    /// The value of an attribute, or the names of all attributes.
    Xattr(XattrValue),
    PendingXattr(PendingXattr),
}

/// A file of a tree.
#[derive(Clone)]
pub(super) struct TreeFile {
    pub(super) view: TreeView,
    pub(super) ino: u64,
    /// For `main`: the file is not removed while this is held.
    pub(super) live: Option<Arc<LiveFile>>,
    /// The directory and the name by which this fid was walked to.
    pub(super) at: (u64, Arc<[u8]>),
    pub(super) open: Option<OpenedFile>,
}

/// An open file.
#[derive(Clone, Copy)]
pub(super) struct OpenedFile {
    /// A number that is unique among all open files.
    pub(super) number: u64,
    pub(super) append: bool,
    /// Whether it was opened for writing.
    pub(super) writes: bool,
}

/// An attribute that is being written.
pub(super) struct PendingXattr {
    pub(super) ino: u64,
    /// Prevents removal of the file while the attribute is written.
    live: Option<Arc<LiveFile>>,
    pub(super) input: XattrInput,
}

impl PendingXattr {
    pub(super) fn new(file: &TreeFile, input: XattrInput) -> Self {
        Self { ino: file.ino, live: file.live.clone(), input }
    }

    /// Returns the directory and the name of its file.
    pub(super) fn place(&self) -> Option<(u64, Box<[u8]>)> {
        (self.ino != ROOT).then(|| self.live.as_ref().map(|live| live.place())).flatten()
    }
}

impl TreeFile {
    pub(super) fn open(&self) -> FsResult<OpenedFile> {
        self.open.ok_or(Errno::EBADF.into())
    }

    /// Ends exclusive use, and releases the locks.
    pub(super) fn release(&self) {
        if let (Some(live), Some(open)) = (&self.live, self.open) {
            live.close(open.number);
        }
    }

    /// Returns the directory and the name of the file: those by which the fid was walked to, or, if they have become
    /// wrong, those to which the file was moved.
    pub(super) fn place(&self, state: &ArchiveState) -> FsResult<(u64, Box<[u8]>)> {
        if self.ino == ROOT {
            return Err(Errno::EBUSY.into());
        }
        let root = state.root(self.view)?;
        if state.fs.attributes(root, self.ino)?.links == 0 {
            return Err(Errno::ENOENT.into());
        }
        let own = (self.at.0, Box::from(&self.at.1[..]));
        let moved = self.live.as_ref().map(|live| live.place());
        for (dir, name) in std::iter::once(own).chain(moved) {
            if name[..] != *b".."
                && state.fs.lookup(root, dir, &name)?.is_some_and(|there| there.ino == self.ino)
            {
                return Ok((dir, name));
            }
        }
        // The fid was walked to by "..", so search the parent directory for the name.
        let parent = state.fs.attributes(root, self.ino)?.parent;
        let mut found = None;
        state.fs.entries(root, parent, 0, |_, named| {
            if named.ino == self.ino {
                found = Some(Box::from(named.name));
            }
            found.is_none()
        })?;
        Ok((parent, found.ok_or(Errno::ENOENT)?))
    }
}

impl ArchiveNode {
    /// Returns the root of `main`.
    pub(super) fn main(state: &mut ArchiveState) -> Arc<Self> {
        let live = state.lives.get(ROOT, ROOT, b"/");
        let at = (ROOT, Arc::from(&b"/"[..]));
        Arc::new(Self::File(TreeFile { view: TreeView::Main, ino: ROOT, live: Some(live), at, open: None }))
    }

    /// Returns the same file, not open.
    pub(super) fn walked(self: &Arc<Self>) -> Arc<Self> {
        match &**self {
            Self::File(file) if file.open.is_some() => {
                Arc::new(Self::File(TreeFile { open: None, ..file.clone() }))
            }
            _ => self.clone(),
        }
    }
}

impl ArchiveState {
    /// Returns the present root of a tree. A dump's root changes its address when the dump is copied to w.
    pub(super) fn root(&self, view: TreeView) -> FsResult<BlockPtr> {
        match view {
            TreeView::Main => Ok(self.fs.mem.root),
            TreeView::Dump(generation) => Ok(self.dumps.get(&generation).ok_or(Errno::ESTALE)?.record.root),
        }
    }

    /// Returns the node of a file, and marks a file of `main` as in use.
    pub(super) fn meet(
        &mut self,
        view: TreeView,
        ino: u64,
        dir: u64,
        name: &[u8],
    ) -> FsResult<Arc<ArchiveNode>> {
        let live = (view == TreeView::Main).then(|| self.lives.get(ino, dir, name));
        let at = (dir, Arc::from(name));
        Ok(Arc::new(ArchiveNode::File(TreeFile { view, ino, live, at, open: None })))
    }
}

/// Returns the type bits of a qid.
pub(super) fn qid_type(st_mode: u32) -> u8 {
    match st_mode & mode::S_IFMT {
        mode::S_IFDIR => Qid::DIR,
        mode::S_IFLNK => Qid::SYMLINK,
        _ => Qid::FILE,
    }
}

fn qid_of(view: TreeView, ino: u64, it: &InodeAttributes) -> Qid {
    Qid { ty: qid_type(it.mode) | it.special(), vers: it.version as u32, path: view.path(ino) }
}

/// Reads the attributes of a file.
pub(super) fn attr_of(
    fs: &ArchiveFs,
    view: TreeView,
    root: BlockPtr,
    ino: u64,
    name: &[u8],
) -> FsResult<Attr> {
    let it = fs.attributes(root, ino)?;
    let is_link = it.mode & mode::S_IFMT == mode::S_IFLNK;
    let target = if is_link { fs.target(root, ino)? } else { Box::default() };
    let texts = Texts { name: name.into(), target, owners: None };
    Ok(Attr {
        valid: GetMask::ALL | GetMask::TEXTS,
        qid: qid_of(view, ino, &it),
        mode: it.mode,
        uid: it.uid,
        gid: it.gid,
        nlink: it.links.into(),
        rdev: makedev(it.major, it.minor),
        size: if it.is_dir() { 0 } else { it.size },
        blksize: fs.block(),
        blocks: match it.blocks {
            0 if it.size <= fs.inline_most() => it.size.div_ceil(512),
            blocks => blocks * fs.block() / 512,
        },
        atime: it.atime,
        mtime: it.mtime,
        ctime: it.ctime,
        btime: it.btime,
        generation: 0,
        data_version: it.version,
        texts: Some(Box::new(texts)),
    })
}

/// Encodes a device number as Linux does.
fn makedev(major: u32, minor: u32) -> u64 {
    let (major, minor) = (u64::from(major), u64::from(minor));
    (minor & 0xff) | (major & 0xfff) << 8 | (minor & !0xff) << 12 | (major & !0xfff) << 32
}

impl Archive {
    /// Reads the attributes of a node. The name is found only if `texts` is set.
    pub(super) fn attr(&self, state: &ArchiveState, node: &ArchiveNode, texts: bool) -> FsResult<Attr> {
        match node {
            ArchiveNode::File(file) => {
                let root = state.root(file.view)?;
                let name: Box<[u8]> = match (&file.live, file.ino) {
                    _ if !texts => Box::default(),
                    (_, ROOT) => self.root_name(state, file.view),
                    (Some(_), _) => match file.place(state) {
                        Ok((_, name)) => name,
                        Err(OperationStop::Error(_)) => Box::from(&file.at.1[..]),
                        Err(stop) => return Err(stop),
                    },
                    (None, _) => Box::from(&file.at.1[..]),
                };
                attr_of(&state.fs, file.view, root, file.ino, &name)
            }
            ArchiveNode::Dumps | ArchiveNode::Year(_) => Ok(self.attr_of_dumps(state, node)),
            ArchiveNode::Xattr(_) | ArchiveNode::PendingXattr(_) => Err(Errno::EBADF.into()),
        }
    }

    pub(super) fn qid(&self, state: &ArchiveState, node: &ArchiveNode) -> FsResult<Qid> {
        match node {
            ArchiveNode::File(file) => {
                let it = state.fs.attributes(state.root(file.view)?, file.ino)?;
                Ok(qid_of(file.view, file.ino, &it))
            }
            ArchiveNode::Dumps | ArchiveNode::Year(_) => Ok(self.qid_of_dumps(state, node)),
            ArchiveNode::Xattr(_) | ArchiveNode::PendingXattr(_) => Err(Errno::EBADF.into()),
        }
    }

    pub(super) fn qid_above(&self, state: &ArchiveState, node: &ArchiveNode) -> FsResult<Qid> {
        match node {
            ArchiveNode::File(TreeFile { view: TreeView::Dump(generation), ino: ROOT, .. }) => {
                let above = self.above_dump(state, *generation);
                self.qid(state, &above)
            }
            ArchiveNode::File(file) => {
                let root = state.root(file.view)?;
                let own = state.fs.attributes(root, file.ino)?;
                match state.fs.attributes(root, own.parent) {
                    Ok(it) => Ok(qid_of(file.view, own.parent, &it)),
                    // Both directories have been removed.
                    Err(OperationStop::Error(_)) if own.links == 0 => Ok(qid_of(file.view, file.ino, &own)),
                    Err(stop) => Err(stop),
                }
            }
            _ => self.qid(state, &ArchiveNode::Dumps),
        }
    }
}
