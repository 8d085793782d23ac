//! A file tree in memory.
//!
//! In: requests. Out: answers, all immediate. A file lives as long as a name or a fid refers to it. Permissions are
//! not checked: every client that may attach may do everything. Stored data is charged against a limit in bytes.
//! Beyond it, and beyond 2^20 files, requests fail with ENOSPC. Append-only files only grow. Exclusive-use files can
//! be open once at a time (open(5)).
//!
//! Concurrency: one request at a time, under one lock.

mod told;
mod tree;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use bytes::Bytes;
use nine_io::Payload;
use nine_io::changes::{Changes, Tap};
use nine_io::limits::FairLimit;
use nine_io::server::acl::{AclKind, PosixAcl};
use nine_io::server::{Answer, FileServer, Reply, Req, Request};
use nine_proto::mode::{S_IFDIR, S_IFLNK, S_IFMT, S_IFREG};
use nine_proto::{
    Errno, Error, LockStatus, Make, NOGID, Op, OpenFlags, Perm, Qid, RenameMode, Result, Walked,
};

use nine_io::server::locks::{LOCKS_MAX, Wanted};
use nine_io::server::xattr::{XATTR_CREATE, XATTR_REPLACE, XattrInput, XattrLimit, XattrValue};
use tree::{EntryLocation, RamInode, TreeBudget, now, part};

/// The maximum length of a symbolic link's target in bytes, as in Linux.
const TARGET_MAX: usize = 4095;

/// See the module.
pub struct Ram {
    root: Arc<RamInode>,
    one_at_a_time: Mutex<()>,
    space: Arc<TreeBudget>,
    next: AtomicU64,
    changes: Arc<Changes>,
    /// Limits the record locks on all files.
    locks: Arc<FairLimit>,
    xattr_limit: XattrLimit,
}

/// The state behind a fid.
enum RamFidState {
    /// `at`: the name it was walked to. `open`: the number of the open, and whether writes append.
    File {
        inode: Arc<RamInode>,
        at: EntryLocation,
        open: Option<(u64, bool)>,
    },
    Xattr(XattrValue),
    NewXattr {
        inode: Arc<RamInode>,
        input: XattrInput,
    },
}

impl Ram {
    /// Returns an empty tree that stores at most `limit_bytes`.
    pub fn new(limit_bytes: u64) -> Self {
        let (space, next) = (TreeBudget::new(limit_bytes), AtomicU64::new(3));
        let root = RamInode::new(&space, 1, S_IFDIR | 0o777, (0, 0), nowhere())
            .expect("the limit has room for the root");
        let (changes, locks) = (Changes::new(), FairLimit::new(LOCKS_MAX));
        let (one_at_a_time, xattr_limit) = (Mutex::new(()), XattrLimit::default());
        Self { root, one_at_a_time, space, next, changes, locks, xattr_limit }
    }

    fn run(&self, req: &Request) -> Result<Reply> {
        let op = req.op();
        match op {
            Op::Auth { .. } => return Err(Error::new(Errno::ENOENT, "authentication not required")),
            Op::Attach { aname, .. } => {
                let (mut inode, mut at) = (self.root.clone(), nowhere());
                for name in aname.split(|&b| b == b'/').filter(|&name| !matches!(name, b"" | b".")) {
                    nine_proto::check_name(name)?;
                    at = (Arc::downgrade(&inode), name.into());
                    inode = inode.child(name)?;
                }
                return Ok(Reply::Attach { qid: inode.qid(), node: RamFidState::walked(inode, at) });
            }
            _ => {}
        }
        let node = req.node::<RamFidState>()?;
        match (&*node, &op) {
            (RamFidState::Xattr(value), &Op::Read { offset, count }) => {
                return Ok(Reply::Read(Payload::Bytes(value.bytes.slice_ref(part(
                    &value.bytes,
                    offset,
                    count,
                )))));
            }
            (RamFidState::NewXattr { input, .. }, Op::Write { offset, data }) => {
                return input.write(*offset, data).map(Reply::Wrote);
            }
            (RamFidState::NewXattr { .. }, Op::Clunk) => return node.store_xattr(),
            (RamFidState::File { .. }, _) => {}
            (_, Op::Clunk | Op::Remove) => return Ok(Reply::Done),
            _ => return Err(Errno::EBADF.into()),
        }
        let RamFidState::File { inode, at, open } = &*node else {
            unreachable!("the others are answered above")
        };
        match op {
            Op::Auth { .. } | Op::Attach { .. } => unreachable!("answered above"),
            Op::Walk { names } => {
                let (mut inode, mut at, mut qids) = (inode.clone(), at.clone(), Walked::new());
                for name in names.iter() {
                    match inode.child(name) {
                        Ok(next) => {
                            at = match name {
                                b".." => next.lock().place.clone(),
                                name => (Arc::downgrade(&inode), name.into()),
                            };
                            inode = next;
                        }
                        Err(error) if qids.is_empty() => return Err(error),
                        Err(_) => return Ok(Reply::Walk { qids, node: None }),
                    }
                    qids.push(inode.qid());
                }
                Ok(Reply::Walk { qids, node: Some(RamFidState::walked(inode, at)) })
            }
            Op::Open { flags } => self.open(inode.clone(), at.clone(), flags),
            Op::Create { name, make, flags, perm, gid } => {
                let reuse = make == Make::File && flags.has(OpenFlags::CREAT) && !flags.has(OpenFlags::EXCL);
                let made = match inode.child(name) {
                    Ok(old) if reuse => old,
                    _ => self.make(req, inode, name, make, perm, gid)?,
                };
                let at = (Arc::downgrade(inode), name.into());
                match make {
                    Make::File | Make::Dir => self.open(made, at, flags),
                    // The others cannot be read: the fid only moves there.
                    _ => Ok(Reply::Open { qid: made.qid(), iounit: 0, node: RamFidState::walked(made, at) }),
                }
            }
            Op::Make { name, make, perm, gid } => {
                Ok(Reply::Made(self.make(req, inode, name, make, perm, gid)?.qid()))
            }
            Op::Rename { name } => {
                let to = req.node2::<RamFidState>()?;
                let (dir, old) = inode.place(at)?;
                dir.rename(&old, to.inode()?, name, RenameMode::Replace).map(|()| Reply::Done)
            }
            Op::RenameAt { old, new, how } => {
                inode.rename(old, req.node2::<RamFidState>()?.inode()?, new, how).map(|()| Reply::Done)
            }
            Op::Unlink { name, dir } => match (inode.child(name)?.is_dir(), dir) {
                (true, false) => Err(Errno::EISDIR.into()),
                (false, true) => Err(Errno::ENOTDIR.into()),
                _ => inode.unlink(name).map(|_| Reply::Done),
            },
            Op::Remove => {
                node.release_locks();
                let (dir, name) = inode.place(at)?;
                dir.unlink(&name).map(|_| Reply::Done)
            }
            Op::Readlink => match inode.mode() & S_IFMT {
                S_IFLNK => Ok(Reply::Target(inode.lock().data.as_slice().into())),
                _ => Err(Errno::EINVAL.into()),
            },
            Op::Getattr { .. } => Ok(Reply::Attr(Box::new(inode.attr()))),
            Op::Setattr { set } => inode.setattr(at, &set).map(|()| Reply::Done),
            Op::Readdir { cookie } => Ok(Reply::Dir(inode.readdir(cookie, req.dir_buf(self.names())))),
            Op::Read { offset, count } => Ok(Reply::Read(inode.read(offset, count))),
            Op::Write { offset, data } => inode.write(open.is_some_and(|(_, append)| append), offset, data),
            Op::Fsync { .. } => Ok(Reply::Done),
            Op::Lock(asked) => {
                let want = Wanted::of(req, open.ok_or(Errno::EBADF)?.0, &asked)?;
                let locks = &mut inode.lock().locks;
                if locks.conflict(&want).is_some() {
                    return Ok(Reply::Lock(LockStatus::Blocked));
                }
                locks.replace(want, &self.locks).map(|()| Reply::Lock(LockStatus::Success))
            }
            Op::Getlock(asked) => {
                let want = Wanted::of(req, open.ok_or(Errno::EBADF)?.0, &asked)?;
                Ok(inode.lock().locks.getlock(&asked, &want))
            }
            Op::XattrWalk { name } => {
                let xattrs = &inode.lock().xattrs;
                let value: Bytes = match name {
                    b"" => xattrs.keys().flat_map(|name| [name, &b"\0"[..]].concat()).collect(),
                    name => xattrs.get(name).ok_or(Errno::ENODATA)?.clone(),
                };
                let size = value.len() as u64;
                let value = XattrValue::new(value, req, &self.xattr_limit)?;
                Ok(Reply::Xattr { size, node: Arc::new(RamFidState::Xattr(value)) })
            }
            // Only access control lists are supported in the `system.` namespace (xattr(7)).
            Op::XattrCreate { name, .. } if name.starts_with(b"system.") && AclKind::of(name).is_none() => {
                Err(Errno::EOPNOTSUPP.into())
            }
            Op::XattrCreate { name, .. }
                if AclKind::of(name).is_some() && inode.mode() & S_IFMT == S_IFLNK =>
            {
                Err(Errno::EOPNOTSUPP.into())
            }
            Op::XattrCreate { name, size, flags } => {
                let input = XattrInput::new(name, size, flags, req, &self.xattr_limit)?;
                Ok(Reply::Moved(Arc::new(RamFidState::NewXattr { inode: inode.clone(), input })))
            }
            Op::Statfs => Ok(Reply::Statfs(self.space.statfs())),
            Op::Clunk => {
                node.release_locks();
                Ok(Reply::Done)
            }
            Op::Stream { .. } | Op::Sclose { .. } => Err(Errno::EOPNOTSUPP.into()),
        }
    }

    fn open(&self, inode: Arc<RamInode>, at: EntryLocation, flags: OpenFlags) -> Result<Reply> {
        let special = inode.qid().ty;
        if special & Qid::EXCL != 0 && inode.lock().taken.is_some() {
            return Err(Error::new(Errno::EBUSY, "exclusive use: somebody has it open"));
        }
        match inode.mode() & S_IFMT {
            ty if ty != S_IFDIR && flags.has(OpenFlags::DIRECTORY) => return Err(Errno::ENOTDIR.into()),
            // An append-only file is not truncated, which is not an error (open(5)).
            S_IFREG if flags.has(OpenFlags::TRUNC) && special & Qid::APPEND == 0 => inode.resize(0)?,
            S_IFREG => {}
            S_IFDIR if flags.changes() => return Err(Errno::EISDIR.into()),
            S_IFDIR => {}
            S_IFLNK => return Err(Errno::ELOOP.into()),
            _ => return Err(Errno::ENXIO.into()),
        }
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        if special & Qid::EXCL != 0 && !inode.is_dir() {
            inode.lock().taken = Some(number);
        }
        let (qid, open) = (inode.qid(), Some((number, flags.has(OpenFlags::APPEND))));
        Ok(Reply::Open { qid, iounit: 0, node: Arc::new(RamFidState::File { inode, at, open }) })
    }

    fn make(
        &self,
        req: &Request,
        dir: &Arc<RamInode>,
        name: &[u8],
        make: Make<'_>,
        perm: Perm,
        gid: u32,
    ) -> Result<Arc<RamInode>> {
        if make == Make::Link {
            let linked = req.node2::<RamFidState>()?.inode()?.clone();
            if linked.is_dir() {
                return Err(Errno::EPERM.into());
            }
            if linked.lock().attr.nlink == 0 {
                return Err(Errno::ENOENT.into());
            }
            dir.link(name, &linked)?;
            return Ok(linked);
        }
        let (acls, bits) = match (make, dir.acl(AclKind::Default)?) {
            (Make::Symlink(_), _) => (Vec::new(), 0o777),
            (_, None) => (Vec::new(), perm.in_dir(dir.mode(), make == Make::Dir)),
            (_, Some(list)) => {
                let (own, bits) = list.inherit(perm.bits);
                let own = own.is_extended().then_some((AclKind::Access, own));
                (
                    own.into_iter().chain((make == Make::Dir).then_some((AclKind::Default, list))).collect(),
                    bits,
                )
            }
        };
        let ty = match make {
            Make::Dir => S_IFDIR,
            Make::Symlink(b"") => return Err(Errno::ENOENT.into()),
            Make::Symlink(target) if target.len() > TARGET_MAX => return Err(Errno::ENAMETOOLONG.into()),
            Make::Symlink(_) => S_IFLNK,
            Make::Node { ty, .. } => ty,
            Make::File | Make::Link => S_IFREG,
        };
        let gid = if gid == NOGID { dir.lock().attr.gid } else { gid };
        let path = self.next.fetch_add(1, Ordering::Relaxed);
        let owner = (req.who().uid.unwrap_or(0), gid);
        let made =
            RamInode::new(&self.space, path, ty | bits & 0o7777, owner, (Arc::downgrade(dir), name.into()))?;
        match make {
            Make::Symlink(target) => drop(made.write(false, 0, target)?),
            Make::Node { major, minor, .. } => made.lock().attr.rdev = rustix::fs::makedev(major, minor),
            Make::File | Make::Dir => made.lock().attr.qid.ty |= perm.special & Qid::SPECIAL,
            Make::Link => {}
        }
        for (kind, list) in acls {
            made.store_xattr(kind.name(), Some(list.encode().into()))?;
        }
        dir.link(name, &made)?;
        Ok(made)
    }
}

impl FileServer for Ram {
    fn serve(&self, req: Req) -> Answer {
        let result = {
            let _one = lock(&self.one_at_a_time);
            let changes = if self.changes.is_on() { told::changes(&req) } else { Vec::new() };
            let result = self.run(&req);
            if result.is_ok() && !changes.is_empty() {
                self.changes.tell_all(changes);
            }
            result
        };
        req.now(result)
    }

    fn changes(&self, walk: &Request) -> Option<Result<Tap>> {
        let node = walk.node::<RamFidState>().ok()?;
        let RamFidState::File { inode, at, .. } = &*node else { return None };
        let base = told::path(inode, at).ok_or_else(|| Errno::ENOENT.into());
        Some(base.map(|base| Tap { changes: self.changes.clone(), base }))
    }
}

/// The place of the root.
fn nowhere() -> EntryLocation {
    (Weak::new(), b"/"[..].into())
}

impl RamFidState {
    fn walked(inode: Arc<RamInode>, at: EntryLocation) -> Arc<Self> {
        Arc::new(Self::File { inode, at, open: None })
    }

    fn inode(&self) -> Result<&Arc<RamInode>> {
        if let Self::File { inode, .. } = self { Ok(inode) } else { Err(Errno::EBADF.into()) }
    }

    fn release_locks(&self) {
        if let Self::File { inode, open: Some((number, _)), .. } = self {
            let mut state = inode.lock();
            state.locks.release(*number);
            state.taken = state.taken.filter(|taken| taken != number);
        }
    }

    /// Stores a new attribute at the clunk. An incomplete value changes nothing.
    fn store_xattr(&self) -> Result<Reply> {
        let Self::NewXattr { inode, input } = self else { return Ok(Reply::Done) };
        let (name, flags, value) = (input.name(), input.flags(), input.value()?);
        let has = inode.lock().xattrs.contains_key(name);
        let acl = match AclKind::of(name) {
            Some(kind) => Some((kind, PosixAcl::parse(&value)?)),
            None => None,
        };
        // A Linux client sends removexattr(2) as an empty value with XATTR_REPLACE.
        let is_removed = value.is_empty() && flags == XATTR_REPLACE || matches!(acl, Some((_, None)));
        match (has, flags) {
            // As in Linux, removing a list that does not exist is not an error.
            (false, _) if is_removed && acl.is_some() => return Ok(Reply::Done),
            (false, XATTR_REPLACE) => return Err(Errno::ENODATA.into()),
            (true, XATTR_CREATE) => return Err(Errno::EEXIST.into()),
            _ => {}
        }
        match acl {
            Some((kind, list)) => inode.set_acl(kind, list.as_ref())?,
            None => inode.store_xattr(name, (!is_removed).then(|| value.into()))?,
        }
        inode.lock().attr.ctime = now();
        Ok(Reply::Done)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
