//! Lists a directory that spans several servers: a union, or a directory that contains a mount point.
//!
//! Members are opened when the listing reaches them. A reply is filled across members with whole entries. A name that
//! several members have is listed once, for the first one, as a walk would find it, unless the mount shows duplicates.
//! An entry that is a mount point shows the mounted file (mountfix of the kernel). A member that fails is skipped,
//! unless it is the only one or the client already has a part of it.
//!
//! Always holds: an entry's cookie is its number in the listing, from the start. The next read continues after the last
//! one. A client that seeks back causes a new listing from the start. Up to [`SEEN_MAX`] names are remembered, as
//! hashes; beyond that, duplicates may appear.

use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use futures_util::future::join_all;
use nine_io::client::{Entry, Error, File};
use nine_io::server::{Later, Reply};
use nine_proto::{Attr, DirBuf, Dirent, Errno, GetMask, OpenFlags, Qid, mode};

use crate::cfid::{ClientFid, PathStep};
use crate::core::{MuxCore, refused};
use crate::space::{MountPoint, TreePath};
use crate::upstream::TreeRoot;
use crate::walk::LOOK;

/// Maximum number of names that an open directory remembers.
pub const SEEN_MAX: usize = 1 << 20;
/// Directory data requested from a member at once, in bytes.
const DIR_REQUEST_LEN: u32 = 64 * 1024;

/// An open directory and its reading position.
pub(crate) struct UnionListing {
    members: Vec<ListingMember>,
    /// The index of the member that is being listed.
    at: usize,
    /// Entries that the client has not got yet, at most one block.
    pending: VecDeque<ShownEntry>,
    /// Number of entries that the client has.
    given: u64,
    seen: HashSet<u64>,
    hash: RandomState,
    /// Whether a name is listed only once.
    unique: bool,
}

struct ListingMember {
    place: TreePath,
    dir: Option<OpenMember>,
}

/// An open member.
struct OpenMember {
    root: Arc<TreeRoot>,
    /// The directory to walk from, for attributes.
    file: Arc<File>,
    open: File,
    cursor: u64,
    /// Number of entries from this member, and number of those to skip after a reopen.
    given: u64,
    skip: u64,
    /// Whether the client has entries of this member.
    listed: bool,
    ended: bool,
}

/// An entry as the client sees it.
struct ShownEntry {
    name: Box<[u8]>,
    qid: Qid,
    ty: u8,
    attr: Option<Attr>,
}

impl UnionListing {
    /// Opens the directory of a fid. Fails if no member can be opened.
    pub(crate) async fn open(core: &MuxCore, cfid: &ClientFid) -> Result<Self, Error> {
        let (places, unique) = match &cfid.crossed() {
            Some((head, _)) => {
                let places = head.members.iter().map(|member| member.to.clone()).collect();
                (places, !head.duplicates && head.members.len() > 1)
            }
            None => (vec![cfid.step().covered.clone()], false),
        };
        let members = places.into_iter().map(|place| ListingMember { place, dir: None }).collect();
        let (pending, seen, hash) = (VecDeque::new(), HashSet::new(), RandomState::new());
        let mut listing = Self { members, at: 0, pending, given: 0, seen, hash, unique };
        // The first member that can be opened decides whether the client may read.
        let mut failed = None;
        for index in 0..listing.members.len() {
            match listing.member(core, cfid, index).await {
                Ok(_) => return Ok(listing),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        Err(failed.expect("a directory has a member"))
    }

    /// Appends entries to `buf`, from `cookie` on.
    pub(crate) async fn read(
        &mut self,
        core: &MuxCore,
        cfid: &ClientFid,
        cookie: u64,
        buf: &mut DirBuf,
    ) -> Result<(), Error> {
        if cookie < self.given {
            self.rewind(cookie);
        }
        while let Some(entry) = self.next(core, cfid, buf.wants_attrs()).await? {
            let next = self.given + 1;
            if next > cookie {
                let ShownEntry { name, qid, ty, attr } = &entry;
                let dirent = Dirent { qid: *qid, cookie: next, ty: *ty, name };
                if !buf.push(&dirent, attr.as_ref()) {
                    self.pending.push_front(entry);
                    return Ok(());
                }
            }
            self.given = next;
        }
        if cookie > self.given {
            return Err(refused(Errno::EINVAL, "bad offset"));
        }
        Ok(())
    }

    fn rewind(&mut self, cookie: u64) {
        (self.at, self.given) = (0, 0);
        self.pending.clear();
        self.seen.clear();
        for dir in self.members.iter_mut().filter_map(|member| member.dir.as_mut()) {
            (dir.cursor, dir.given, dir.skip, dir.ended) = (0, 0, 0, false);
            // A client that reads on relies on the entries that it has.
            dir.listed &= cookie > 0;
        }
    }

    async fn next(
        &mut self,
        core: &MuxCore,
        cfid: &ClientFid,
        attrs: bool,
    ) -> Result<Option<ShownEntry>, Error> {
        if self.given == 0 && self.pending.is_empty() && self.at == 0 {
            self.pending.extend(dots(cfid));
        }
        while self.pending.is_empty() && self.at < self.members.len() {
            match self.block(core, cfid, attrs).await {
                Ok(true) => {}
                Ok(false) => self.at += 1,
                Err(error) if error.errno() == Errno::EINTR => return Err(error),
                Err(error) if self.members.len() == 1 || core.keeps(&error) => return Err(error),
                Err(error) if self.members[self.at].dir.as_ref().is_some_and(|dir| dir.listed) => {
                    return Err(error);
                }
                Err(error) => {
                    tracing::debug!("a member of {} is passed over: {error}", cfid.step.path());
                    self.at += 1;
                }
            }
        }
        Ok(self.pending.pop_front())
    }

    /// Fetches the next block of the current member. Returns false if there is none.
    async fn block(&mut self, core: &MuxCore, cfid: &ClientFid, attrs: bool) -> Result<bool, Error> {
        let at = self.at;
        let dir = self.member(core, cfid, at).await?;
        if dir.ended {
            return Ok(false);
        }
        let Some((entries, next)) = dir.open.read_dir_block(dir.cursor, DIR_REQUEST_LEN).await? else {
            dir.ended = true;
            return Ok(false);
        };
        let taken = entries.len() as u64;
        let mut entries: Vec<Entry> = entries.into_iter().skip(dir.skip as usize).collect();
        if attrs {
            attributes(&dir.file, &mut entries).await?;
        }
        let root = dir.root.clone();
        let place = self.members[at].place.clone();
        let space = cfid.by.named.space();
        let covered: HashMap<&[u8], &Arc<MountPoint>> = space.covered_names(&place).collect();
        // Concurrently, so that several silent servers delay the listing only once.
        let instead = entries.iter_mut().map(async |entry| match covered.get(&*entry.name) {
            Some(head) => mounted(core, cfid, &place, head, entry, attrs).await,
            None => Ok(None),
        });
        let instead = join_all(instead).await.into_iter().collect::<Result<Vec<_>, _>>()?;
        let shown = entries.into_iter().zip(instead).map(|(entry, instead)| {
            instead.unwrap_or_else(|| {
                let map = |qid| core.qids.map(root.map(), qid);
                let attr = entry.attr.map(|attr| Attr { qid: map(attr.qid), ..attr });
                ShownEntry { name: entry.name, qid: map(entry.qid), ty: entry.ty, attr }
            })
        });
        let shown: Vec<ShownEntry> = shown.collect();
        // No await follows: a flush comes before or after this. So the next read finds the whole block or nothing of
        // it.
        let dir = self.members[at].dir.as_mut().expect("it was opened above");
        (dir.cursor, dir.listed) = (next, true);
        dir.given += shown.len() as u64;
        dir.skip = dir.skip.saturating_sub(taken);
        for entry in shown {
            if !self.unique || self.is_new(&entry.name) {
                self.pending.push_back(entry);
            }
        }
        Ok(true)
    }

    fn is_new(&mut self, name: &[u8]) -> bool {
        let hash = self.hash.hash_one(name);
        if self.seen.len() < SEEN_MAX { self.seen.insert(hash) } else { !self.seen.contains(&hash) }
    }

    async fn member(
        &mut self,
        core: &MuxCore,
        cfid: &ClientFid,
        index: usize,
    ) -> Result<&mut OpenMember, Error> {
        let member = &mut self.members[index];
        let gone = member.dir.as_ref().filter(|dir| dir.root.tree.wait.is_some());
        if let Some(dir) = gone.filter(|dir| dir.root.client.dead().is_some()) {
            let now = cfid.crossed().map(|(head, _)| head.members[index].to.clone());
            let place = now.unwrap_or_else(|| cfid.place());
            member.dir = Some(dir.again(core, cfid, &place).await?);
            member.place = place;
        }
        if member.dir.is_none() {
            let is_here = cfid.crossed().is_none_or(|(_, held)| held == index);
            let (root, file) = if is_here {
                let live = cfid.live();
                (live.root.clone(), live.file.clone())
            } else {
                let (root, file, _) = core.enter_place(&cfid.by, &member.place).await?;
                (root, file)
            };
            let open = file.open("", OpenFlags::READ).await?;
            member.dir = Some(OpenMember {
                root,
                file,
                open,
                cursor: 0,
                given: 0,
                skip: 0,
                listed: false,
                ended: false,
            });
        }
        Ok(member.dir.as_mut().expect("opened just now"))
    }
}

impl OpenMember {
    /// Reopens the directory on a new connection.
    async fn again(&self, core: &MuxCore, cfid: &ClientFid, place: &TreePath) -> Result<Self, Error> {
        let (root, file, raw) = core.enter_place(&cfid.by, place).await?;
        let is_same = root.member == self.root.member && raw.path == self.file.qid().path;
        if !is_same && self.listed {
            return Err(refused(Errno::ESTALE, "the server is back, and has another directory there"));
        }
        let open = file.open("", OpenFlags::READ).await?;
        let Self { cursor, given, skip, listed, ended, .. } = *self;
        // 9P2000 offsets are valid only within one open (read(5)). So the earlier entries are read again.
        let (cursor, skip) = if root.client.dialect().is_l() { (cursor, skip) } else { (0, given) };
        Ok(Self { root, file, open, cursor, given, skip, listed, ended })
    }
}

impl MuxCore {
    /// Returns the attributes of a mount point. For a client with only the rights of others, a union has the
    /// permissions that all its members grant to others: a walk searches each of them.
    pub(crate) async fn shown_attr(&self, req: &Later, cfid: &Arc<ClientFid>) -> Result<Reply, Error> {
        let mut reply = self.mount_attr(req, cfid).await?;
        let union = cfid.crossed().filter(|(head, _)| req.who().as_other && head.members.len() > 1);
        if let (Reply::Attr(attr), Some((head, _))) = (&mut reply, union) {
            for member in &head.members {
                let (_, file, _) = self.enter_place(&cfid.by, &member.to).await?;
                attr.mode &= file.getattr(GetMask::BASIC).await?.mode | !OTHERS;
            }
        }
        Ok(reply)
    }
}

/// The permissions of others in a mode.
const OTHERS: u32 = 0o7;

/// Returns "." and "..", for dialects that list them.
fn dots(cfid: &ClientFid) -> [ShownEntry; 2] {
    [&b"."[..], b".."].map(|name| ShownEntry { name: name.into(), qid: cfid.qid.qid, ty: 4, attr: None })
}

/// Fetches the missing attributes of entries.
async fn attributes(dir: &File, entries: &mut [Entry]) -> Result<(), Error> {
    if entries.iter().all(|entry| entry.attr.is_some()) {
        return Ok(());
    }
    let names: Vec<_> = entries.iter().map(|entry| entry.name.clone()).collect();
    let mut stats = dir.stat_all(names, GetMask::BASIC);
    for entry in entries.iter_mut() {
        match stats.next().await {
            Some(Ok(attr)) => entry.attr = Some(attr),
            Some(Err(error)) if error.is_disconnect() || error.errno() == Errno::EINTR => return Err(error),
            // The file was just removed or is not accessible. It is left out.
            _ => {}
        }
    }
    // Stat records of .u contain the targets of links.
    let is_link = |entry: &&mut Entry| {
        entry.attr.as_ref().is_some_and(|attr| attr.mode & mode::S_IFMT == mode::S_IFLNK)
    };
    join_all(entries.iter_mut().filter(is_link).map(async |entry| {
        let target = async { dir.walk(&entry.name).await?.readlink().await };
        if let (Ok(target), Some(attr)) = (target.await, &mut entry.attr) {
            attr.texts.get_or_insert_default().target = target;
        }
    }))
    .await;
    Ok(())
}

/// Returns the file that is mounted over an entry. `None` if its server cannot be reached: the covered file is listed
/// then. Unlike a walk, a listing waits at most [`LOOK`] for the server of an entry.
async fn mounted(
    core: &MuxCore,
    cfid: &ClientFid,
    dir: &TreePath,
    head: &Arc<MountPoint>,
    entry: &mut Entry,
    attrs: bool,
) -> Result<Option<ShownEntry>, Error> {
    let step = PathStep::child(&cfid.step, dir.child(&entry.name));
    let shown = async {
        let Some(pos) = Box::pin(core.look(&cfid.by, &step, head)).await? else { return Ok(None) };
        let map = |qid| core.qids.map(pos.root.map(), qid);
        let attr = match attrs {
            true => {
                let attr = pos.file.getattr(GetMask::BASIC).await?;
                Some(Attr { qid: map(attr.qid), ..attr })
            }
            false => None,
        };
        let ty = if pos.raw.is_dir() { 4 } else { entry.ty };
        Ok(Some(ShownEntry { name: entry.name.clone(), qid: map(pos.raw), ty, attr }))
    };
    match core.within(LOOK, shown).await {
        Some(Err(error)) if Error::errno(&error) == Errno::EINTR => Err(error),
        Some(Ok(Some(shown))) => Ok(Some(shown)),
        Some(Err(_)) => Ok(None),
        shown => {
            if shown.is_none() {
                core.has_been_silent(head);
            }
            // The same as the attributes of a mount point that is away: see `mount_attr`.
            entry.attr.iter_mut().for_each(|attr| attr.nlink = 0);
            Ok(None)
        }
    }
}
