//! Publishes changes in the served directory, by any program, using inotify(7). A thread of its own runs while the
//! change file has readers.
//!
//! In: the root, and inotify events. Out: changes. It does not use [`HostFs`](super::HostFs): a simulated host has
//! real directories, and injects no faults here.
//!
//! Always holds:
//! - Every directory that can be watched is watched before the first reader gets its greeting. A new directory is
//!   watched before its creation is reported; files created in it meanwhile are reported after it. A directory that
//!   cannot be watched is reported as blind.
//! - No symbolic link is followed, and nothing outside the root is read.
//! - A directory's path is derived from its parent. So the cost of a rename does not depend on the tree below.

use std::collections::{HashMap, HashSet};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use nine_io::changes::{Change, Changes, Path, join};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::fs::{Dir as HostDir, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};

use super::REMOTE;

/// The maximum number of watched directories. Each takes about 1 KiB of kernel memory; further ones are blind. The
/// kernel's own limit is fs.inotify.max_user_watches.
const WATCHES_MAX: usize = 1 << 16;
/// The watcher continues without readers for this long, at most twice as long.
const IDLE_WATCH_TIMEOUT: Duration = Duration::from_secs(60);
/// How late the second half of a rename may be. The kernel reports both in one call.
const RENAME_HALF_TIMEOUT: Duration = Duration::from_millis(10);
/// Bytes of events in one read.
const EVENTS_READ_LEN: usize = 64 << 10;

/// Returns the changes of the directory behind `root`. It is watched while there are readers.
pub(super) fn changes(root: Arc<OwnedFd>) -> Arc<Changes> {
    // The write end of a pipe. The watcher sees a hangup when the server is dropped or another watcher starts.
    let alive = Mutex::new(None::<OwnedFd>);
    Changes::watched(move |changes| {
        let begun = pipe_with(PipeFlags::CLOEXEC).and_then(|(end, held)| {
            *alive.lock().unwrap_or_else(PoisonError::into_inner) = Some(held);
            let watcher = TreeWatcher::new(root.clone(), end, Arc::downgrade(changes))?;
            let thread = thread::Builder::new().name("changes".into());
            thread.spawn(move || watcher.run()).map_err(|_| Errno::AGAIN).map(drop)
        });
        if let Err(error) = begun {
            tracing::warn!(%error, "changes of the disk are not told");
            changes.tell(|| Change::Blind(b"/"[..].into()));
            changes.ready();
        }
    })
}

/// The result of a wait for events.
enum EventWaitResult {
    Events,
    Nothing,
    End,
}

struct TreeWatcher {
    root: Arc<OwnedFd>,
    /// Hangs up when the watcher must end.
    end: OwnedFd,
    changes: Weak<Changes>,
    inotify: OwnedFd,
    dirs: HashMap<i32, WatchedDir>,
    /// The root's watch.
    top: i32,
    /// The first half of a rename: its cookie, directory and name, and whether it is a directory.
    half: Option<(u32, i32, Box<[u8]>, bool)>,
    /// Names already reported when a scan found them. The kernel will report their creation again.
    found: HashSet<(i32, Box<[u8]>)>,
    told: Vec<Change>,
}

/// A watched directory.
struct WatchedDir {
    /// The root is its own parent.
    parent: i32,
    name: Box<[u8]>,
    below: HashMap<Box<[u8]>, i32>,
}

impl TreeWatcher {
    fn new(root: Arc<OwnedFd>, end: OwnedFd, changes: Weak<Changes>) -> rustix::io::Result<Self> {
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        let (dirs, found) = Default::default();
        Ok(Self { root, end, changes, inotify, dirs, top: 0, half: None, found, told: Vec::new() })
    }

    fn run(mut self) {
        self.begin();
        let Some(changes) = self.changes.upgrade() else { return };
        changes.tell_all(self.told.drain(..));
        changes.ready();
        drop(changes);
        let mut idle = false;
        let mut buf = vec![MaybeUninit::uninit(); EVENTS_READ_LEN];
        loop {
            let more = self.read(&mut buf);
            let Some(changes) = self.changes.upgrade().filter(|changes| changes.is_on()) else { return };
            changes.tell_all(self.told.drain(..));
            if more {
                continue;
            }
            let was_idle = std::mem::replace(&mut idle, changes.readers() == 0);
            drop(changes);
            let most = if self.half.is_some() { RENAME_HALF_TIMEOUT } else { IDLE_WATCH_TIMEOUT };
            match self.wait(most) {
                EventWaitResult::Events => {}
                EventWaitResult::End => return,
                EventWaitResult::Nothing => {
                    let ends = most == IDLE_WATCH_TIMEOUT && idle && was_idle;
                    if ends && self.changes.upgrade().is_none_or(|changes| changes.end()) {
                        return;
                    }
                    self.half_only();
                }
            }
        }
    }

    /// Waits for events, or for the end.
    fn wait(&self, most: Duration) -> EventWaitResult {
        let limit = Timespec::try_from(most).ok();
        let (events, end) = (PollFlags::IN, PollFlags::empty());
        let mut fds = [PollFd::new(&self.inotify, events), PollFd::new(&self.end, end)];
        match poll(&mut fds, limit.as_ref()) {
            Ok(n) if n > 0 && !fds[1].revents().is_empty() => EventWaitResult::End,
            Ok(n) if n > 0 => EventWaitResult::Events,
            _ => EventWaitResult::Nothing,
        }
    }

    /// Reads and handles one buffer of events. Returns whether there were any.
    fn read(&mut self, buf: &mut [MaybeUninit<u8>]) -> bool {
        let mut reader = Reader::new(&self.inotify, buf);
        let mut come = Vec::new();
        while let Ok(event) = reader.next() {
            let name = event.file_name().map(|name| Box::from(name.to_bytes()));
            come.push((event.wd(), event.events(), event.cookie(), name));
            if reader.is_buffer_empty() {
                break;
            }
        }
        if come.is_empty() {
            self.found.clear();
        }
        let any = !come.is_empty();
        for (wd, events, cookie, name) in come {
            if events.contains(ReadFlags::QUEUE_OVERFLOW) {
                self.begin_again();
                break;
            }
            self.event(wd, events, cookie, name);
        }
        any
    }

    /// Watches the whole tree.
    fn begin(&mut self) {
        match self.watch(b"/", None) {
            Some(top) => {
                self.top = top;
                self.descend(top, false);
            }
            None => self.tell(Change::Blind(b"/"[..].into())),
        }
    }

    /// Scans the tree again after the kernel has dropped events.
    fn begin_again(&mut self) {
        tracing::debug!("the kernel has dropped events of the disk");
        (self.half, self.told) = (None, vec![Change::Lost(0)]);
        self.found.clear();
        self.dirs.clear();
        match inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK) {
            Ok(inotify) => self.inotify = inotify,
            Err(_) => return self.tell(Change::Blind(b"/"[..].into())),
        }
        self.begin();
        self.tell(Change::Lost(0));
    }

    fn event(&mut self, wd: i32, events: ReadFlags, cookie: u32, name: Option<Box<[u8]>>) {
        let completes =
            events.contains(ReadFlags::MOVED_TO) && matches!(&self.half, Some((of, ..)) if *of == cookie);
        if !completes {
            self.half_only();
        }
        let is_dir = events.contains(ReadFlags::ISDIR);
        let Some(name) = name else { return self.own(wd, events) };
        // Events of a directory that is no longer watched may still arrive.
        let Some(path) = self.path_in(wd, &name) else { return };
        if events.intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO) {
            if let Some((_, from, old, _)) = self.half.take_if(|_| completes) {
                let old_path = self.path_in(from, &old);
                self.moved((from, &old), (wd, &name), is_dir);
                return match old_path {
                    Some(old) => self.tell(Change::Move(old, path)),
                    None => self.tell(Change::Create(path)),
                };
            }
            if events.contains(ReadFlags::CREATE) && self.found.remove(&(wd, name.clone())) {
                return;
            }
            let made = if is_dir { self.enter(wd, &name, &path) } else { None };
            self.tell(Change::Create(path));
            made.into_iter().for_each(|made| self.descend(made, true));
        } else if events.contains(ReadFlags::MOVED_FROM) {
            self.half = Some((cookie, wd, name, is_dir));
        } else if events.contains(ReadFlags::DELETE) {
            self.found.remove(&(wd, name.clone()));
            self.leave(wd, &name);
            self.tell(Change::Remove(path));
        } else if events.intersects(ReadFlags::MODIFY | ReadFlags::CLOSE_WRITE) {
            self.tell(Change::Write(path));
        } else if events.contains(ReadFlags::ATTRIB) {
            self.tell(Change::Attr(path));
        }
    }

    /// Handles an event of a directory itself. A parent that is watched reports the same.
    fn own(&mut self, wd: i32, events: ReadFlags) {
        if events.contains(ReadFlags::IGNORED) {
            let Some(dir) = self.dirs.get(&wd) else { return };
            let (parent, name) = (dir.parent, dir.name.clone());
            self.leave(parent, &name);
            self.forget(wd);
        } else if wd == self.top && events.contains(ReadFlags::ATTRIB) {
            self.tell(Change::Attr(b"/"[..].into()));
        } else if events.contains(ReadFlags::UNMOUNT)
            && let Some(path) = self.path(wd)
        {
            // The mount point is now another directory, or none.
            self.told.extend([
                Change::Remove(path.clone()),
                Change::Create(path.clone()),
                Change::Blind(path),
            ]);
        }
    }

    /// Handles a first half of a rename without a second: the file has left the tree.
    fn half_only(&mut self) {
        let Some((_, wd, name, _)) = self.half.take() else { return };
        let path = self.path_in(wd, &name);
        self.leave(wd, &name);
        path.into_iter().for_each(|path| self.tell(Change::Remove(path)));
    }

    fn moved(&mut self, (from, old): (i32, &[u8]), (to, new): (i32, &[u8]), is_dir: bool) {
        if !is_dir {
            return;
        }
        let moved = self.dirs.get_mut(&from).and_then(|dir| dir.below.remove(old));
        match moved {
            Some(wd) => {
                // The replaced directory was empty. Entries found under its path belong to the moved directory.
                let replaced = self.dirs.get(&to).and_then(|dir| dir.below.get(new)).copied();
                let replaced = replaced.and_then(|wd| self.dirs.get_mut(&wd));
                let below = replaced.map(|dir| std::mem::take(&mut dir.below)).unwrap_or_default();
                self.leave(to, new);
                self.put(wd, to, new);
                for (name, below) in below {
                    self.put(below, wd, &name);
                }
            }
            // The directory was not watched, or was found under its new name already.
            None => {
                let Some(path) = self.path_in(to, new) else { return };
                let found = self.enter(to, new, &path);
                found.into_iter().for_each(|wd| self.descend(wd, false));
            }
        }
    }

    /// Watches a directory found under a name. Returns its watch if it is new, so that the caller scans it.
    fn enter(&mut self, parent: i32, name: &[u8], path: &[u8]) -> Option<i32> {
        if self.dirs.get(&parent)?.below.contains_key(name) {
            return None;
        }
        self.watch(path, Some((parent, name)))
    }

    /// Watches all directories below one. `tell`: reports every entry as created.
    fn descend(&mut self, wd: i32, tell: bool) {
        let mut rest = vec![wd];
        while let Some(wd) = rest.pop() {
            let Some(path) = self.path(wd) else { continue };
            let Ok(fd) = self.open(&path) else { continue };
            let Ok(entries) = HostDir::new(fd) else { continue };
            for entry in entries.map_while(Result::ok) {
                let name = entry.file_name().to_bytes();
                if matches!(name, b"." | b"..") {
                    continue;
                }
                let at = join(&path, &[b"/", name].concat());
                // If the file system does not return the type, the open decides.
                let may_be_dir = matches!(entry.file_type(), FileType::Directory | FileType::Unknown);
                let found = if may_be_dir { self.enter(wd, name, &at) } else { None };
                rest.extend(found);
                if tell && self.found.insert((wd, name.into())) {
                    self.tell(Change::Create(at));
                }
            }
        }
    }

    /// Watches the directory at a path. `None` if it is not a directory or cannot be watched.
    fn watch(&mut self, path: &[u8], at: Option<(i32, &[u8])>) -> Option<i32> {
        let blind = |this: &mut Self| {
            if at.is_some() {
                this.tell(Change::Blind(path.into()));
            }
            None
        };
        let fd = match self.open(path) {
            Ok(fd) => fd,
            // It was removed, or is not a directory, or not any more.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return None,
            Err(_) => return blind(self),
        };
        let is_remote = rustix::fs::fstatfs(&fd).is_ok_and(|fs| REMOTE.contains(&(fs.f_type as u32)));
        if is_remote || self.dirs.len() >= WATCHES_MAX {
            return blind(self);
        }
        let wanted = WatchFlags::CREATE
            | WatchFlags::DELETE
            | WatchFlags::MOVE
            | WatchFlags::MODIFY
            // A write through a mapping causes no other event.
            | WatchFlags::CLOSE_WRITE
            | WatchFlags::ATTRIB
            | WatchFlags::EXCL_UNLINK
            | WatchFlags::ONLYDIR;
        let Ok(wd) = inotify::add_watch(&self.inotify, proc_path(&fd), wanted) else { return blind(self) };
        let (parent, name) = at.unwrap_or((wd, b""));
        if let Some(known) = self.dirs.get(&wd) {
            // The directory was moved and the event has not arrived yet, or it is mounted in two places.
            let (elsewhere, was) = (self.path(wd), (known.parent, known.name.clone()));
            if elsewhere.is_none_or(|old| self.is_same(&old, &fd)) || self.is_below(parent, wd) {
                return blind(self);
            }
            if let Some(dir) = self.dirs.get_mut(&was.0) {
                dir.below.remove(&was.1);
            }
            self.put(wd, parent, name);
            return None;
        }
        self.dirs.insert(wd, WatchedDir { parent, name: name.into(), below: HashMap::new() });
        if at.is_some() {
            self.put(wd, parent, name);
        }
        Some(wd)
    }

    fn put(&mut self, wd: i32, parent: i32, name: &[u8]) {
        if let Some(dir) = self.dirs.get_mut(&wd) {
            (dir.parent, dir.name) = (parent, name.into());
        }
        if let Some(dir) = self.dirs.get_mut(&parent) {
            dir.below.insert(name.into(), wd);
        }
    }

    /// Removes a name from a directory. If it was a directory, its watches are removed.
    fn leave(&mut self, parent: i32, name: &[u8]) {
        let gone = self.dirs.get_mut(&parent).and_then(|dir| dir.below.remove(name));
        gone.into_iter().for_each(|wd| self.forget(wd));
    }

    fn forget(&mut self, wd: i32) {
        let mut rest = vec![wd];
        while let Some(wd) = rest.pop() {
            let Some(dir) = self.dirs.remove(&wd) else { continue };
            rest.extend(dir.below.into_values());
            // The kernel may have removed the watch already.
            let _ = inotify::remove_watch(&self.inotify, wd);
        }
    }

    fn is_below(&self, mut wd: i32, top: i32) -> bool {
        while wd != top {
            match self.dirs.get(&wd) {
                Some(dir) if dir.parent != wd => wd = dir.parent,
                _ => return false,
            }
        }
        true
    }

    /// Returns whether the path still leads to this directory.
    fn is_same(&self, path: &[u8], fd: &OwnedFd) -> bool {
        let id = |fd: &OwnedFd| rustix::fs::fstat(fd).map(|stat| (stat.st_dev, stat.st_ino));
        self.open(path).and_then(|there| Ok(id(&there)? == id(fd)?)).unwrap_or(false)
    }

    fn path_in(&self, wd: i32, name: &[u8]) -> Option<Path> {
        Some(join(&self.path(wd)?, &[b"/", name].concat()))
    }

    /// Returns the path of a directory; `None` if it is no longer watched.
    fn path(&self, mut wd: i32) -> Option<Path> {
        let mut names = Vec::new();
        loop {
            let dir = self.dirs.get(&wd)?;
            if dir.parent == wd {
                break;
            }
            names.push(&*dir.name);
            wd = dir.parent;
        }
        let path: Vec<u8> = names.iter().rev().flat_map(|name| [b"/", *name]).flatten().copied().collect();
        Some(if path.is_empty() { b"/"[..].into() } else { path.into() })
    }

    fn open(&self, path: &[u8]) -> rustix::io::Result<OwnedFd> {
        let path = if path == b"/" { b"." } else { &path[1..] };
        let flags =
            OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        rustix::fs::openat2(self.root.as_fd(), path, flags, Mode::empty(), resolve)
    }

    fn tell(&mut self, change: Change) {
        self.told.push(change);
    }
}

/// Returns a path by which this very directory is watched, also after a rename.
fn proc_path(fd: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> Path {
        text.as_bytes().into()
    }

    /// Returns a watcher of a directory. `told` returns its reports once no events are left.
    fn watcher(top: &std::path::Path) -> TreeWatcher {
        let root = rustix::fs::open(top, OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap();
        let (end, _) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let mut watcher = TreeWatcher::new(Arc::new(root), end, Weak::new()).unwrap();
        watcher.begin();
        assert_eq!(watcher.told, []);
        watcher
    }

    fn told(watcher: &mut TreeWatcher) -> Vec<Change> {
        let mut buf = vec![MaybeUninit::uninit(); EVENTS_READ_LEN];
        while watcher.read(&mut buf) {}
        watcher.half_only();
        std::mem::take(&mut watcher.told)
    }

    #[test]
    fn events_that_the_kernel_has_dropped_are_lost_and_all_is_watched_again() {
        let top = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(top.path().join("a/b")).unwrap();
        let mut watcher = watcher(top.path());
        // These changes were not reported.
        std::fs::rename(top.path().join("a"), top.path().join("c")).unwrap();
        std::fs::create_dir(top.path().join("d")).unwrap();
        watcher.begin_again();
        assert_eq!(told(&mut watcher), [Change::Lost(0), Change::Lost(0)]);
        std::fs::create_dir(top.path().join("c/b/x")).unwrap();
        std::fs::create_dir(top.path().join("d/y")).unwrap();
        assert_eq!(told(&mut watcher), [Change::Create(path("/c/b/x")), Change::Create(path("/d/y"))]);
    }

    #[test]
    fn directories_come_and_go_and_leave_nothing() {
        let top = tempfile::tempdir().unwrap();
        let mut watcher = watcher(top.path());
        for n in 0..2000 {
            std::fs::create_dir_all(top.path().join(format!("{}/{n}", n % 3))).unwrap();
        }
        // Each is reported once, by a scan or by an event.
        assert_eq!(told(&mut watcher).len(), 2003);
        assert_eq!(watcher.dirs.len(), 2004);
        std::fs::rename(top.path().join("0"), top.path().join("1/0")).unwrap();
        std::fs::remove_dir_all(top.path().join("1")).unwrap();
        std::fs::remove_dir_all(top.path().join("2")).unwrap();
        let told = told(&mut watcher);
        assert_eq!(told[0], Change::Move(path("/0"), path("/1/0")));
        assert_eq!(told.len(), 1 + 2003);
        assert_eq!(watcher.dirs.len(), 1);
    }

    #[test]
    fn a_directory_that_replaces_a_new_one_while_that_is_looked_into_stays_watched() {
        let top = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(top.path().join("old/deep")).unwrap();
        let mut watcher = watcher(top.path());
        std::fs::create_dir(top.path().join("new")).unwrap();
        let new = watcher.enter(watcher.top, b"new", b"/new").unwrap();
        // No event has been read yet.
        std::fs::rename(top.path().join("old"), top.path().join("new")).unwrap();
        watcher.descend(new, true);
        let said = told(&mut watcher);
        assert!(said.contains(&Change::Move(path("/old"), path("/new"))), "{said:?}");
        std::fs::write(top.path().join("new/deep/file"), "").unwrap();
        assert!(told(&mut watcher).contains(&Change::Create(path("/new/deep/file"))));
        assert_eq!(watcher.dirs.len(), 3);
    }

    #[test]
    fn what_may_not_be_watched_is_blind() {
        let top = tempfile::tempdir().unwrap();
        let mut watcher = watcher(top.path());
        for wd in 1000..1000 + WATCHES_MAX as i32 {
            watcher.dirs.insert(wd, WatchedDir { parent: wd, name: Box::default(), below: HashMap::new() });
        }
        std::fs::create_dir_all(top.path().join("a/b")).unwrap();
        assert_eq!(told(&mut watcher), [Change::Blind(path("/a")), Change::Create(path("/a"))]);
    }
}
