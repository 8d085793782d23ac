//! Posted connections as files (srv(3)): servers' addresses under names, for other programs.
//!
//! In: requests, and a function that checks addresses. Out: answers, all immediate; the posts, for mounts.
//!
//! A client creates a file and writes one text to it, once: an address, and the modules to push on connections to it.
//! Reads return the text without its secrets. The post exists until its file is removed. A file that is closed before
//! anything was written is removed. Only the owner may post and remove, since the server dials the address, with its
//! own identity and from its own machine. A post by a server of this process ([`Posts::post`]) is also removed with
//! that server.
//!
//! Always holds: at most [`POSTS_MAX`] posts, of at most [`TEXT_MAX`] bytes. A post's number is not reused, so a fid
//! of a removed post never refers to another one.
//!
//! Concurrency: one request at a time, under one lock.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use nine_io::Payload;
use nine_io::server::{Answer, FileServer, Reply, Req, Request, Who};
use nine_net::Clock;
use nine_net::lock::{Mutex, lock};
use nine_proto::mode::{S_IFDIR, S_IFREG};
use nine_proto::{
    Attr, DirBuf, Dirent, Errno, Error, GetMask, Make, Op, OpenFlags, Qid, Result, SetAttr, Statfs, Texts,
    Time, Walked,
};

/// The maximum number of posts. A further one is refused with ENFILE.
pub const POSTS_MAX: usize = 1000;
/// The maximum length of a post's text in bytes. A longer one is refused with EINVAL.
pub const TEXT_MAX: usize = 4096;

/// The file server of posts. See the module.
pub struct Posts {
    shared: Arc<PostsShared>,
    /// Returns a text as readers may see it, or the reason why it is invalid.
    judge: Box<PostCheckFn>,
    owns: Box<OwnerCheckFn>,
    clock: Arc<dyn Clock>,
    begun: Time,
    ids: (u32, u32),
}

type PostCheckFn = dyn Fn(&str) -> Result<String, String> + Send + Sync;
type OwnerCheckFn = dyn Fn(&Who, &[u8]) -> bool + Send + Sync;

#[derive(Default)]
struct PostsShared(Mutex<PostTable>);

#[derive(Default)]
struct PostTable {
    /// In the order of creation, by numbers that are not reused.
    posts: BTreeMap<u64, PostEntry>,
    next: u64,
}

struct PostEntry {
    name: Box<[u8]>,
    mode: u32,
    time: Time,
    /// `None`: nothing was written yet.
    text: Option<PostText>,
}

struct PostText {
    whole: String,
    shown: Bytes,
}

/// A post of a server of this process. Dropping it removes the post, if it still exists.
pub struct Posted {
    shared: Arc<PostsShared>,
    number: u64,
}

/// The state behind a fid.
struct PostFidState {
    owner: bool,
    /// `None`: the directory.
    post: Option<u64>,
    /// Set if this fid created the post. An unwritten post is removed with it.
    maker: Option<Arc<PostsShared>>,
}

impl Posts {
    /// Creates an empty server. `owns` decides from a client and its aname whether it is the owner. `judge` returns
    /// the part of a text that readers may see, or the reason why it is invalid.
    pub fn new(
        clock: Arc<dyn Clock>,
        owns: impl Fn(&Who, &[u8]) -> bool + Send + Sync + 'static,
        judge: impl Fn(&str) -> Result<String, String> + Send + Sync + 'static,
    ) -> Self {
        let (shared, begun, ids) = (Arc::default(), time(&*clock), nine_net::own_ids());
        Self { shared, judge: Box::new(judge), owns: Box::new(owns), clock, begun, ids }
    }

    /// Returns the whole text of the post with this name.
    pub fn get(&self, name: &str) -> Option<String> {
        let table = lock(&self.shared.0);
        let (_, post) = table.find(name.as_bytes())?;
        post.text.as_ref().map(|text| text.whole.clone())
    }

    /// Posts a text without a check by `judge`. Fails like a client's post if the name is taken or there are too
    /// many.
    pub fn post(&self, name: &str, text: &str) -> Result<Posted> {
        let mut table = lock(&self.shared.0);
        let number = table.make(name.as_bytes(), POST_MODE, time(&*self.clock))?;
        let post = table.posts.get_mut(&number).expect("just made");
        post.text = Some(PostText { whole: text.into(), shown: format!("{text}\n").into() });
        drop(table);
        Ok(Posted { shared: self.shared.clone(), number })
    }

    /// Returns the names of the posts, in the order of creation.
    pub fn posted(&self) -> Vec<String> {
        let table = lock(&self.shared.0);
        let posted = table.posts.values().filter(|post| post.text.is_some());
        posted.map(|post| String::from_utf8_lossy(&post.name).into_owned()).collect()
    }

    fn run(&self, req: &Request) -> Result<Reply> {
        let op = req.op();
        match op {
            Op::Auth { .. } => return Err(Error::new(Errno::ENOENT, "authentication not required")),
            Op::Attach { aname, .. } => {
                let node = held((self.owns)(req.who(), aname), None);
                return Ok(Reply::Attach { qid: ROOT, node });
            }
            _ => {}
        }
        let here = req.node::<PostFidState>()?;
        let mut table = lock(&self.shared.0);
        match op {
            Op::Walk { names } => {
                let (mut post, mut qids) = (here.post, Walked::new());
                for name in names.iter() {
                    match (post, name) {
                        (Some(_), _) if qids.is_empty() => return Err(Errno::ENOTDIR.into()),
                        (Some(_), _) => return Ok(Reply::Walk { qids, node: None }),
                        (None, b"..") => {}
                        (None, name) => match table.find(name) {
                            Some((number, _)) => post = Some(number),
                            None if qids.is_empty() => return Err(Errno::ENOENT.into()),
                            None => return Ok(Reply::Walk { qids, node: None }),
                        },
                    }
                    qids.push(post.map_or(ROOT, qid));
                }
                Ok(Reply::Walk { qids, node: Some(held(here.owner, post)) })
            }
            Op::Open { flags } => {
                table.may_open(&here, flags)?;
                let qid = here.post.map_or(ROOT, qid);
                Ok(Reply::Open { qid, iounit: 0, node: held(here.owner, here.post) })
            }
            Op::Create { name, make: Make::File, flags, perm, .. } => {
                let reuse = flags.has(OpenFlags::CREAT) && !flags.has(OpenFlags::EXCL);
                if let Some((number, _)) = table.find(name).filter(|_| reuse) {
                    let there = PostFidState { owner: here.owner, post: Some(number), maker: None };
                    table.may_open(&there, flags)?;
                    return Ok(Reply::Open {
                        qid: qid(number),
                        iounit: 0,
                        node: held(here.owner, there.post),
                    });
                }
                here.may_change()?;
                let number = table.make(name, perm.in_dir(ROOT_MODE, false), time(&*self.clock))?;
                let maker = Some(self.shared.clone());
                let node = Arc::new(PostFidState { owner: true, post: Some(number), maker });
                Ok(Reply::Open { qid: qid(number), iounit: 0, node })
            }
            Op::Create { .. } | Op::Make { .. } => {
                Err(Error::new(Errno::EPERM, "only files that are posts are made here"))
            }
            Op::Read { offset, count } => {
                let post = table.post(&here)?;
                let shown = post.text.as_ref().map_or(Bytes::new(), |text| text.shown.clone());
                let from = usize::try_from(offset).unwrap_or(usize::MAX).min(shown.len());
                let to = from.saturating_add(count as usize).min(shown.len());
                Ok(Reply::Read(Payload::Bytes(shown.slice(from..to))))
            }
            Op::Write { data, .. } => {
                if here.maker.is_none() {
                    return Err(Error::new(Errno::EPERM, WRITTEN));
                }
                let post = table.post_mut(&here)?;
                if post.text.is_some() {
                    return Err(Error::new(Errno::EPERM, WRITTEN));
                }
                post.text = Some(self.text(data)?);
                Ok(Reply::Wrote(data.len() as u32))
            }
            Op::Readdir { cookie } => Ok(Reply::Dir(self.readdir(&table, cookie, req.dir_buf(self.names())))),
            Op::Getattr { .. } => Ok(Reply::Attr(Box::new(match here.post {
                None => self.attr(ROOT, S_IFDIR | ROOT_MODE, self.begun, b"/", 0),
                Some(number) => self.attr_of(number, table.post(&here)?),
            }))),
            Op::Setattr { set } => table.set(&here, &set).map(|()| Reply::Done),
            Op::Unlink { dir: true, .. } => Err(Errno::ENOTDIR.into()),
            Op::Unlink { name, .. } => {
                here.may_change()?;
                let number = table.find(name).ok_or(Errno::ENOENT)?.0;
                table.posts.remove(&number);
                Ok(Reply::Done)
            }
            Op::Remove => {
                here.may_change()?;
                let number = here.post.ok_or(Errno::EPERM)?;
                table.posts.remove(&number).ok_or(Errno::ENOENT)?;
                Ok(Reply::Done)
            }
            Op::Clunk => {
                table.close(&here);
                Ok(Reply::Done)
            }
            Op::Fsync { .. } => Ok(Reply::Done),
            Op::Statfs => {
                Ok(Reply::Statfs(Statfs { ty: Statfs::V9FS, bsize: 4096, namelen: 255, ..Statfs::default() }))
            }
            Op::Readlink => Err(Errno::EINVAL.into()),
            Op::Rename { .. } | Op::RenameAt { .. } => {
                Err(Error::new(Errno::EPERM, "remove it and post it anew"))
            }
            _ => Err(Errno::EOPNOTSUPP.into()),
        }
    }

    fn text(&self, data: &[u8]) -> Result<PostText> {
        let refused = |what: String| Error::new(Errno::EINVAL, what);
        if data.len() > TEXT_MAX {
            return Err(refused(format!("a post has at most {TEXT_MAX} bytes")));
        }
        let whole = std::str::from_utf8(data).map_err(|_| refused("this is no text".into()))?.trim();
        let shown = (self.judge)(whole).map_err(refused)?;
        Ok(PostText { whole: whole.into(), shown: format!("{shown}\n").into() })
    }

    fn readdir(&self, table: &PostTable, cookie: u64, mut buf: DirBuf) -> DirBuf {
        for (name, at) in [(&b"."[..], 1), (b"..", 2)] {
            if cookie < at && !buf.push(&Dirent { qid: ROOT, cookie: at, ty: 4, name }, None) {
                return buf;
            }
        }
        // A post's cookie is its number plus 2.
        for (&number, post) in table.posts.range(cookie.saturating_sub(2) + 1..) {
            let attr = self.attr_of(number, post);
            let (qid, cookie, ty) = (attr.qid, number + 2, Dirent::type_of_mode(attr.mode));
            if !buf.push(&Dirent { qid, cookie, ty, name: &post.name }, Some(&attr)) {
                break;
            }
        }
        buf
    }

    fn attr_of(&self, number: u64, post: &PostEntry) -> Attr {
        let size = post.text.as_ref().map_or(0, |text| text.shown.len() as u64);
        self.attr(qid(number), S_IFREG | post.mode, post.time, &post.name, size)
    }

    fn attr(&self, qid: Qid, mode: u32, time: Time, name: &[u8], size: u64) -> Attr {
        let (uid, gid) = self.ids;
        Attr {
            valid: GetMask::BASIC | GetMask::TEXTS,
            qid,
            mode,
            uid,
            gid,
            nlink: if qid.is_dir() { 2 } else { 1 },
            size,
            blocks: size.div_ceil(512),
            blksize: 4096,
            atime: time,
            mtime: time,
            ctime: time,
            texts: Some(Box::new(Texts { name: name.into(), ..Texts::default() })),
            ..Attr::default()
        }
    }
}

impl FileServer for Posts {
    fn serve(&self, req: Req) -> Answer {
        let result = self.run(&req);
        req.now(result)
    }
}

impl PostTable {
    fn find(&self, name: &[u8]) -> Option<(u64, &PostEntry)> {
        let mut all = self.posts.iter();
        all.find(|(_, post)| *post.name == *name).map(|(&number, post)| (number, post))
    }

    /// Returns the post behind a fid, if it still exists.
    fn post(&self, held: &PostFidState) -> Result<&PostEntry> {
        let number = held.post.ok_or(Errno::EISDIR)?;
        Ok(self.posts.get(&number).ok_or(Errno::ENOENT)?)
    }

    fn post_mut(&mut self, held: &PostFidState) -> Result<&mut PostEntry> {
        let number = held.post.ok_or(Errno::EISDIR)?;
        Ok(self.posts.get_mut(&number).ok_or(Errno::ENOENT)?)
    }

    fn make(&mut self, name: &[u8], mode: u32, time: Time) -> Result<u64> {
        nine_proto::check_name(name)?;
        if self.find(name).is_some() {
            return Err(Errno::EEXIST.into());
        }
        if self.posts.len() >= POSTS_MAX {
            return Err(Error::new(
                Errno::ENFILE,
                format!("there are {POSTS_MAX} posts, and no more may be"),
            ));
        }
        self.next += 1;
        self.posts.insert(self.next, PostEntry { name: name.into(), mode: mode & 0o777, time, text: None });
        Ok(self.next)
    }

    fn may_open(&self, held: &PostFidState, flags: OpenFlags) -> Result<()> {
        let reads = if flags.reads() { 4 } else { 0 };
        let changes = flags.writes() || flags.has(OpenFlags::TRUNC) || flags.has(OpenFlags::RCLOSE);
        let Some(number) = held.post else {
            return if changes { Err(Errno::EISDIR.into()) } else { Ok(()) };
        };
        let post = self.posts.get(&number).ok_or(Errno::ENOENT)?;
        let digit = if held.owner { post.mode >> 6 } else { post.mode };
        match () {
            () if flags.has(OpenFlags::DIRECTORY) => Err(Errno::ENOTDIR.into()),
            () if digit & reads != reads || changes && !held.owner => Err(Errno::EACCES.into()),
            () if changes => Err(Error::new(Errno::EPERM, WRITTEN)),
            () => Ok(()),
        }
    }

    /// Sets attributes. Only the permission bits can change. An unwritten post may be truncated, as a shell's `>`
    /// does.
    fn set(&mut self, held: &PostFidState, set: &SetAttr<'_>) -> Result<()> {
        held.may_change()?;
        let rest = SetAttr { mode: None, special: None, size: None, ..*set };
        let post = self.post_mut(held)?;
        let cuts = set.size.is_some_and(|size| size != 0 || post.text.is_some());
        if cuts || rest != SetAttr::default() {
            return Err(Error::new(Errno::EPERM, WRITTEN));
        }
        post.mode = set.mode.map_or(post.mode, |mode| mode & 0o777);
        Ok(())
    }

    /// Removes a post that was created but not written.
    fn close(&mut self, held: &PostFidState) {
        let made = held.post.filter(|_| held.maker.is_some());
        if let Some(number) = made
            && self.posts.get(&number).is_some_and(|post| post.text.is_none())
        {
            self.posts.remove(&number);
        }
    }
}

impl Posted {
    /// Returns whether the post still exists.
    pub fn is_there(&self) -> bool {
        lock(&self.shared.0).posts.contains_key(&self.number)
    }
}

impl Drop for Posted {
    fn drop(&mut self) {
        lock(&self.shared.0).posts.remove(&self.number);
    }
}

impl PostFidState {
    fn may_change(&self) -> Result<()> {
        let text = "only the owner posts and withdraws: what is posted is dialled as the owner";
        if self.owner { Ok(()) } else { Err(Error::new(Errno::EACCES, text)) }
    }
}

impl Drop for PostFidState {
    /// Also runs when the connection is lost.
    fn drop(&mut self) {
        if let Some(shared) = &self.maker {
            lock(&shared.0).close(self);
        }
    }
}

fn held(owner: bool, post: Option<u64>) -> Arc<PostFidState> {
    Arc::new(PostFidState { owner, post, maker: None })
}

fn qid(number: u64) -> Qid {
    Qid { ty: Qid::FILE, vers: 0, path: number }
}

fn time(clock: &dyn Clock) -> Time {
    let wall = clock.wall();
    Time { sec: wall.as_secs() as i64, nsec: wall.subsec_nanos() }
}

const ROOT: Qid = Qid { ty: Qid::DIR, vers: 0, path: 0 };
const ROOT_MODE: u32 = 0o755;
const POST_MODE: u32 = 0o644;
const WRITTEN: &str = "a post is written once, by who makes it: remove it and post it anew";
