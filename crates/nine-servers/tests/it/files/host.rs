//! A recording host and a failing one: permitted calls of the event loop, and the errors clients get.

use std::fs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};

use nine_proto::{Dialect, Errno, GetMask, NOGID, OpenFlags, SetAttr, Statfs};
use nine_servers::disk::host::{self, Block, HostFs, HostLock, Linux, Resident, Result, Stat};
use nine_servers::disk::{Disk, DiskOptions};
use rustix::fs::{Mode, OFlags, RenameFlags, Timestamps};

use crate::files::world::{content, errno, list, serve};

/// Runs before a call of this name and may fail it. `nowait`: the call promises not to wait.
type CallHook = dyn Fn(&'static str, bool) -> Result<()> + Send + Sync;

#[derive(Clone)]
struct HookedHost(Arc<CallHook>);

type HostFd<'a> = BorrowedFd<'a>;

/// `name(arguments) -> result, whether the call does not wait;`
macro_rules! wrap {
    ($($name:ident($($arg:ident: $ty:ty),*) -> $result:ty, $nowait:expr;)*) => {
        impl HostFs for HookedHost {
            $(fn $name(&self, $($arg: $ty),*) -> Result<$result> {
                (self.0)(stringify!($name), $nowait)?;
                Linux.$name($($arg),*)
            })*
            fn resident(&self, file: HostFd<'_>, offset: u64, len: u64) -> Resident {
                Linux.resident(file, offset, len)
            }
        }
    };
}

wrap! {
    open(dir: HostFd<'_>, name: &[u8], flags: OFlags, mode: Mode, cached: bool) -> OwnedFd, cached;
    reopen(file: HostFd<'_>, flags: OFlags) -> OwnedFd, false;
    stat(dir: HostFd<'_>, name: &[u8]) -> Stat, name.is_empty();
    access(file: HostFd<'_>, rights: u32) -> (), true;
    readlink(dir: HostFd<'_>, name: &[u8]) -> Vec<u8>, false;
    mkdir(dir: HostFd<'_>, name: &[u8], mode: u32) -> (), false;
    mknod(dir: HostFd<'_>, name: &[u8], mode: u32, major: u32, minor: u32) -> (), false;
    symlink(target: &[u8], dir: HostFd<'_>, name: &[u8]) -> (), false;
    link(file: HostFd<'_>, dir: HostFd<'_>, name: &[u8]) -> (), false;
    rename(from: (HostFd<'_>, &[u8]), to: (HostFd<'_>, &[u8]), flags: RenameFlags) -> (), false;
    unlink(dir: HostFd<'_>, name: &[u8], is_dir: bool) -> (), false;
    chmod(file: HostFd<'_>, mode: u32) -> (), false;
    chown(file: HostFd<'_>, uid: Option<u32>, gid: Option<u32>) -> (), false;
    utimens(file: HostFd<'_>, times: &Timestamps) -> (), false;
    truncate(file: HostFd<'_>, size: u64) -> (), false;
    getdents(dir: HostFd<'_>, block: &mut Block) -> (), false;
    seek(dir: HostFd<'_>, cookie: u64) -> (), true;
    pread(file: HostFd<'_>, buf: &mut Vec<u8>, offset: u64, nowait: bool) -> usize, nowait;
    pwrite(file: HostFd<'_>, data: &[u8], offset: u64, nowait: bool) -> usize, nowait;
    fill(file: HostFd<'_>, pipe: HostFd<'_>, offset: u64, len: usize) -> usize, false;
    fsync(file: HostFd<'_>, data_only: bool) -> (), false;
    statfs(file: HostFd<'_>) -> Statfs, false;
    getxattr(file: HostFd<'_>, name: &[u8], buf: &mut [u8]) -> usize, false;
    listxattr(file: HostFd<'_>, buf: &mut [u8]) -> usize, false;
    setxattr(file: HostFd<'_>, name: &[u8], value: &[u8], flags: u32) -> (), false;
    removexattr(file: HostFd<'_>, name: &[u8]) -> (), false;
    lock(file: HostFd<'_>, lock: HostLock) -> (), false;
    getlock(file: HostFd<'_>, lock: HostLock) -> Option<HostLock>, false;
}

/// Returns a disk that runs `before` at each call, and its directory. Calls of its own start are exempt.
fn disk(
    before: impl Fn(&'static str, bool) -> Result<()> + Send + Sync + 'static,
) -> (Disk<HookedHost>, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let started = Arc::new(Mutex::new(false));
    let ready = started.clone();
    let host = HookedHost(Arc::new(
        move |name, nowait| {
            if *ready.lock().unwrap() { before(name, nowait) } else { Ok(()) }
        },
    ));
    let disk = Disk::with_host(host, dir.path(), DiskOptions::default()).unwrap();
    *started.lock().unwrap() = true;
    (disk, dir)
}

#[test]
fn the_event_loop_makes_no_call_that_may_wait() {
    let event_loop = thread::current().id();
    let calls: Arc<Mutex<Vec<(&'static str, ThreadId)>>> = Arc::default();
    let seen = calls.clone();
    let (disk, dir) = disk(move |name, nowait| {
        let thread = thread::current().id();
        assert!(nowait || thread != event_loop, "{name} may wait");
        seen.lock().unwrap().push((name, thread));
        Ok(())
    });
    fs::create_dir(dir.path().join("d")).unwrap();
    fs::write(dir.path().join("d/f"), vec![1; 100_000]).unwrap();
    // On a file system in memory even plain calls do not wait. This test is about the others.
    let memory = rustix::fs::statfs(dir.path()).unwrap().f_type == 0x0102_1994;
    serve(disk, Dialect::L, async |root| {
        let f = root.walk("d/f").await.unwrap();
        let open = root.open("d/f", OpenFlags::RDWR).await.unwrap();
        if !memory {
            assert_eq!(content(&open).await.len(), 100_000);
            open.write_all_at(0, b"x").await.unwrap();
        }
        list(&root).await;
        root.mkdir("e", 0o755, NOGID).await.unwrap();
        root.create("e", OpenFlags::RDWR, 0o644, NOGID).await.unwrap_err();
        root.create("g", OpenFlags::RDWR, 0o644, NOGID).await.unwrap();
        root.symlink("s", "g", NOGID).await.unwrap();
        root.walk("s").await.unwrap().readlink().await.unwrap();
        root.link("h", &f).await.unwrap();
        root.rename("h", &root, "i").await.unwrap();
        root.unlink("i", false).await.unwrap();
        f.setattr(&SetAttr { size: Some(10), mode: Some(0o600), ..SetAttr::default() }).await.unwrap();
        f.set_xattr("user.a", b"b", 0).await.unwrap();
        f.xattrs().await.unwrap();
        root.statfs().await.unwrap();
        open.fsync(false).await.unwrap();
        open.close().await.unwrap();
        root.walk("d").await.unwrap().open_here(OpenFlags::READ).await.unwrap();

        // Cached data is answered on the event loop.
        calls.lock().unwrap().clear();
        let f = root.walk("d/f").await.unwrap();
        f.getattr(GetMask::BASIC).await.unwrap();
        let open = f.open_here(OpenFlags::READ).await.unwrap();
        if !memory {
            open.read(0, 4096).await.unwrap();
        }
        let calls = calls.lock().unwrap();
        assert!(calls.iter().all(|&(_, thread)| thread == event_loop), "{calls:?}");
    });
}

/// Returns a disk that fails the calls of these names.
fn failing(names: &'static [&'static str], error: host::Errno) -> (Disk<HookedHost>, tempfile::TempDir) {
    disk(move |name, _| if names.contains(&name) { Err(error) } else { Ok(()) })
}

#[test]
fn a_full_disk_says_so_and_what_was_there_stays() {
    let (disk, dir) = failing(&["pwrite", "mkdir", "setxattr"], host::Errno::NOSPC);
    fs::write(dir.path().join("f"), "as it was").unwrap();
    serve(disk, Dialect::L, async |root| {
        let file = root.open("f", OpenFlags::RDWR).await.unwrap();
        assert_eq!(errno(file.write_all_at(0, b"new").await), Errno::ENOSPC);
        assert_eq!(errno(root.mkdir("d", 0o755, NOGID).await), Errno::ENOSPC);
        assert_eq!(errno(file.walk("").await.unwrap().set_xattr("user.a", b"b", 0).await), Errno::ENOSPC);
        assert_eq!(content(&file).await, b"as it was");
    });
}

#[test]
fn errors_have_a_number_in_l_and_a_text_in_9p2000() {
    for (error, want) in [(host::Errno::IO, Errno::EIO), (host::Errno::ROFS, Errno::EROFS)] {
        for dialect in crate::files::world::ALL {
            let (disk, dir) = failing(&["pread", "pwrite", "unlink", "getdents"], error);
            fs::write(dir.path().join("f"), "x").unwrap();
            serve(disk, dialect, async |root| {
                let file = root.open("f", OpenFlags::RDWR).await.unwrap();
                assert_eq!(errno(file.read(0, 10).await), want);
                assert_eq!(errno(file.write(0, b"y").await), want);
                assert_eq!(errno(root.unlink("f", false).await), want);
                assert_eq!(errno(root.read_dir().await.unwrap().next().await.unwrap()), want);
            });
        }
    }
}

#[test]
fn a_setattr_that_fails_half_way_is_taken_back() {
    let (disk, dir) = failing(&["truncate"], host::Errno::FBIG);
    let path = dir.path().join("f");
    fs::write(&path, "x").unwrap();
    let before = fs::metadata(&path).unwrap();
    serve(disk, Dialect::U, async |root| {
        let f = root.walk("f").await.unwrap();
        let set = SetAttr { name: Some(b"g"), mode: Some(0o600), size: Some(9), ..SetAttr::default() };
        assert_eq!(errno(f.setattr(&set).await), Errno::EFBIG);
        let after = fs::metadata(&path).unwrap();
        assert_eq!((after.permissions(), after.len()), (before.permissions(), 1));
        assert_eq!(list(&root).await, ["f"]);
        assert_eq!(&*f.getattr(GetMask::BASIC).await.unwrap().texts.unwrap().name, b"f");
    });
}

#[test]
fn out_of_descriptors_the_cache_gives_up_its_own() {
    let used_up = Arc::new(Mutex::new(0));
    let left = used_up.clone();
    let (disk, dir) = disk(move |name, _| {
        let mut left = left.lock().unwrap();
        if *left > 0 && matches!(name, "open" | "reopen") {
            *left -= 1;
            return Err(host::Errno::MFILE);
        }
        Ok(())
    });
    for name in ["a", "b", "c"] {
        fs::write(dir.path().join(name), name).unwrap();
    }
    serve(disk, Dialect::L, async |root| {
        let (_a, _b) = (root.walk("a").await.unwrap(), root.walk("b").await.unwrap());
        // Once inline, once in the pool; then there are descriptors.
        *used_up.lock().unwrap() = 2;
        root.walk("c").await.unwrap();
        assert_eq!(*used_up.lock().unwrap(), 0);
        *used_up.lock().unwrap() = 10;
        assert_eq!(errno(root.walk("c").await), Errno::EMFILE);
    });
}

#[test]
fn the_event_loop_enters_no_other_file_system() {
    let open =
        |dir: HostFd<'_>, name: &[u8], cached| Linux.open(dir, name, OFlags::PATH, Mode::empty(), cached);
    let root = fs::File::open("/").unwrap();
    assert_eq!(open(root.as_fd(), b"proc", true).err(), Some(host::Errno::AGAIN));
    open(root.as_fd(), b"proc", false).unwrap();
}
