//! Mounts of a server that lies, stalls, and publishes changes at will.
//!
//! Tests that need root are skipped without it, with a message. Calls that may hang run on a thread or in a program of
//! their own, and the mount is removed by force in the end.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::future::{AbortHandle, abortable};
use nine_gate::fuse::{Cache, GRACE, Mount, MountOptions, Options, serve, unmount};
use nine_io::Payload;
use nine_io::changes::{Change, Changes, Tap};
use nine_io::client::{self, Client};
use nine_io::server::{Anonymous, Answer, Core, FileServer, Gate, Later, Reply, Req, Request, Service};
use nine_net::{Env, Peer, Proof, rt};
use nine_proto::mode::{S_IFDIR, S_IFMT, S_IFREG};
use nine_proto::{Attr, Dirent, Errno, GetMask, LockStatus, LockType, NOUID, Op, Qid, Time, Walked};
use rustix::fs::FlockOperation;
use rustix::mount::UnmountFlags;

mod prefetch;
mod write_behind;

/// Longer than anything here takes, unless it hangs; and the time for an invalidation to take effect.
const LIMIT: Duration = Duration::from_secs(20);
const PATIENCE: Duration = Duration::from_secs(1);
/// A server that takes longer counts as far away.
const FAR: Duration = Duration::from_millis(2);

/// A file of the server. A directory has the files below its path, but may list others.
#[derive(Clone, Default)]
struct Lie {
    attr: Attr,
    data: Vec<u8>,
    /// Names with their cookies.
    list: Vec<(Vec<u8>, u64)>,
    /// Its listing has no end.
    endless: bool,
    /// Its entries have no inode numbers.
    bare: bool,
    /// Reads return this many bytes more than requested.
    more: usize,
    /// Getattr fails with this.
    errno: Option<Errno>,
    /// It exists once it was created.
    comes: bool,
    /// It alternates between a file and a directory.
    flips: bool,
    /// Requests of this kind are held and never answered: a walk to it, a getattr, a read.
    keeps: Option<&'static str>,
    /// Writes are held until the test executes them.
    holds_writes: bool,
    /// A walk to it takes as long as to a server far away.
    far: bool,
}

/// A write that is not executed yet.
struct HeldWrite {
    later: Later,
    path: String,
    offset: u64,
    data: Vec<u8>,
}

#[derive(Default)]
struct Liar {
    files: Mutex<BTreeMap<String, Lie>>,
    kept: Mutex<Vec<Later>>,
    held: Mutex<Vec<HeldWrite>>,
    /// Files that were walked to.
    walked: Mutex<Vec<String>>,
    nodes: Arc<()>,
    changes: Option<Arc<Changes>>,
    /// Files of which an extended attribute was requested. None has any.
    looked: Mutex<Vec<String>>,
}

/// The node of a fid: a path, and a counted reference.
struct Node {
    path: String,
    _counted: Arc<()>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap()
}

fn plain(number: u64, data: &str) -> Lie {
    let qid = Qid { ty: 0, vers: 1, path: number };
    let mut attr = Attr { valid: GetMask::BASIC, qid, mode: S_IFREG | 0o644, nlink: 1, ..Attr::default() };
    attr.size = data.len() as u64;
    Lie { attr, data: data.into(), ..Lie::default() }
}

fn dir(number: u64, names: &[&str]) -> Lie {
    let mut lie = plain(number, "");
    (lie.attr.mode, lie.attr.qid.ty) = (S_IFDIR | 0o755, Qid::DIR);
    lie.list = names.iter().zip(1..).map(|(name, at)| (name.as_bytes().to_vec(), at)).collect();
    lie
}

impl Liar {
    fn with(files: impl IntoIterator<Item = (&'static str, Lie)>) -> Self {
        let root = [(String::new(), dir(1, &[]))];
        let all = root.into_iter().chain(files.into_iter().map(|(path, lie)| (path.to_owned(), lie)));
        Self { files: Mutex::new(all.collect()), ..Self::default() }
    }

    fn tells(self) -> Self {
        Self { changes: Some(Changes::new()), ..self }
    }

    fn set(&self, path: &str, lie: Lie) {
        lock(&self.files).insert(path.into(), lie);
    }

    fn remove(&self, path: &str) {
        lock(&self.files).remove(path);
    }

    fn tell(&self, changes: impl IntoIterator<Item = Change>) {
        self.changes.as_ref().unwrap().tell_all(changes);
    }

    fn node(&self, path: impl Into<String>) -> Arc<Node> {
        Arc::new(Node { path: path.into(), _counted: self.nodes.clone() })
    }

    /// Waits until this many requests are held.
    fn until_kept(&self, many: usize) {
        until("requests are kept", || lock(&self.kept).len() >= many);
    }

    fn write(&self, path: &str, offset: u64, data: &[u8]) -> nine_proto::Result<Reply> {
        let (mut files, end) = (lock(&self.files), offset as usize + data.len());
        let lie = files.get_mut(path).ok_or(Errno::EIO)?;
        lie.data.resize(lie.data.len().max(end), 0);
        lie.data[offset as usize..end].copy_from_slice(data);
        lie.attr.size = lie.data.len() as u64;
        Ok(Reply::Wrote(data.len() as u32))
    }

    fn answer(&self, request: &Req, lie: &Lie, path: &str) -> nine_proto::Result<Reply> {
        Ok(match request.op() {
            Op::Getattr { .. } => match lie.errno {
                Some(errno) => return Err(errno.into()),
                None => Reply::Attr(Box::new(lie.attr.clone())),
            },
            Op::Open { .. } => Reply::Open { qid: lie.attr.qid, iounit: 0, node: self.node(path) },
            Op::Create { name, perm, .. } => {
                let path = format!("{path}/{}", String::from_utf8_lossy(name));
                let known = lock(&self.files).get(&path).cloned();
                let mut new = known.unwrap_or_else(|| plain(path.len() as u64 + 1000, ""));
                (new.attr.qid.vers, new.comes) = (0, false);
                new.attr.mode = new.attr.mode & S_IFMT | perm.bits;
                let qid = new.attr.qid;
                self.set(&path, new);
                Reply::Open { qid, iounit: 0, node: self.node(path) }
            }
            Op::Read { offset, count } => {
                let from = (offset as usize).min(lie.data.len());
                let to = (from + count as usize).min(lie.data.len());
                let mut data = lie.data[from..to].to_vec();
                data.resize(data.len() + lie.more, b'+');
                Reply::Read(Payload::Bytes(Bytes::from(data)))
            }
            Op::Write { offset, data } => self.write(path, offset, data)?,
            Op::Fsync { .. } => Reply::Done,
            Op::Readdir { cookie } => {
                let mut buf = request.dir_buf(Arc::new(nine_proto::Numeric));
                let at = lie.list.iter().position(|&(_, at)| at == cookie).map_or(0, |at| at + 1);
                if lie.endless {
                    let qid = Qid { path: 1, ..Qid::default() };
                    let entry = |cookie| Dirent { qid, cookie, ty: 8, name: b"again" };
                    let mut next = cookie + 1;
                    while buf.push(&entry(next), Some(&lie.attr)) {
                        next += 1;
                    }
                    return Ok(Reply::Dir(buf));
                }
                for (n, (name, cookie)) in lie.list.iter().enumerate().skip(at) {
                    let path = if lie.bare { 0 } else { n as u64 + 1 };
                    let qid = Qid { path, ..Qid::default() };
                    let entry = Dirent { qid, cookie: *cookie, ty: 8, name };
                    if !buf.push(&entry, Some(&lie.attr)) {
                        break;
                    }
                }
                Reply::Dir(buf)
            }
            Op::Clunk => Reply::Done,
            Op::Lock { .. } => Reply::Lock(LockStatus::Success),
            Op::Getlock { .. } => {
                let (start, length, client_id) = (0, 0, Default::default());
                Reply::Getlock { ty: LockType::Unlock, start, length, proc_id: 0, client_id }
            }
            Op::XattrWalk { name: b"security.capability" } => {
                lock(&self.looked).push(path.into());
                return Err(Errno::ENODATA.into());
            }
            _ => return Err(Errno::EOPNOTSUPP.into()),
        })
    }
}

impl FileServer for Liar {
    fn serve(&self, request: Req) -> Answer {
        let mut above = Vec::new();
        let (kind, path) = match request.op() {
            Op::Attach { .. } => {
                let qid = lock(&self.files)[""].attr.qid;
                return request.now(Ok(Reply::Attach { qid, node: self.node("") }));
            }
            Op::Walk { names } => {
                let mut path = request.node::<Node>().unwrap().path.clone();
                for name in names.iter() {
                    path = format!("{path}/{}", String::from_utf8_lossy(name));
                    above.push(path.clone());
                }
                (if names.is_empty() { "clone" } else { "walk" }, path)
            }
            op => {
                let kind = match op {
                    Op::Getattr { .. } => "getattr",
                    Op::Read { .. } => "read",
                    _ => "",
                };
                (kind, request.node::<Node>().unwrap().path.clone())
            }
        };
        let lie = {
            let mut files = lock(&self.files);
            let Some(lie) = files.get_mut(&path).filter(|lie| !lie.comes) else {
                drop(files);
                let is_clunk = matches!(request.op(), Op::Clunk);
                return request.now(if is_clunk { Ok(Reply::Done) } else { Err(Errno::ENOENT.into()) });
            };
            if lie.flips && kind == "getattr" {
                lie.attr.mode ^= S_IFREG ^ S_IFDIR;
                lie.attr.qid.ty ^= Qid::DIR;
            }
            lie.clone()
        };
        if lie.keeps == Some(kind) {
            let (answer, later) = request.later();
            lock(&self.kept).push(later);
            return answer;
        }
        if let (true, Op::Write { offset, data }) = (lie.holds_writes, request.op()) {
            let data = data.to_vec();
            let (answer, later) = request.later();
            lock(&self.held).push(HeldWrite { later, path, offset, data });
            return answer;
        }
        let reply = match kind {
            "clone" => Ok(Reply::Walk { qids: Walked::new(), node: Some(self.node(path)) }),
            "walk" => {
                let begun = Instant::now();
                while lie.far && begun.elapsed() < FAR {}
                lock(&self.walked).push(path.clone());
                let files = lock(&self.files);
                let qid = |path: &String| files.get(path).map_or(lie.attr.qid, |lie| lie.attr.qid);
                let mut qids = Walked::new();
                above.iter().for_each(|path| qids.push(qid(path)));
                Ok(Reply::Walk { qids, node: Some(self.node(path)) })
            }
            _ => self.answer(&request, &lie, &path),
        };
        request.now(reply)
    }

    fn changes(&self, _: &Request) -> Option<nine_proto::Result<Tap>> {
        self.changes.clone().map(|changes| Ok(Tap { changes, base: b"/"[..].into() }))
    }
}

struct Mounted {
    server: Arc<Liar>,
    dir: tempfile::TempDir,
    stop: AbortHandle,
    thread: Option<JoinHandle<()>>,
}

impl Mounted {
    fn new(server: Liar) -> Option<Self> {
        let device = File::options().read(true).write(true).open("/dev/fuse");
        if !rustix::process::geteuid().is_root() || device.is_err() {
            let said =
                b"NOT COVERED: mounts of a server that lies: this is not root, or there is no /dev/fuse\n";
            std::io::stderr().write_all(said).unwrap();
            return None;
        }
        let (dir, server) = (tempfile::tempdir().unwrap(), Arc::new(server));
        let (mount, device) = Mount::new(dir.path(), &MountOptions::default()).unwrap();
        mount.gone();
        let (told, stop) = mpsc::channel();
        let lies = server.clone();
        let thread = thread::spawn(move || {
            rt::block_on(async |env| {
                let gate = Gate { anonymous: Anonymous::Trusted, ..Gate::default() };
                let service = Service::new(lies, gate, Core::default());
                let peer = Peer { addr: "test".into(), proof: Proof::None };
                let asks = client::Options { clock: Some(env.clock()), ..client::Options::default() };
                let client = Client::within(&env, &service, peer, asks).await.unwrap();
                let root = client.attach("u", NOUID, "").await.unwrap();
                let options = Options {
                    cache: Cache::Told,
                    write_back: false,
                    all_users: false,
                    checked: false,
                    owner: None,
                    passthrough: true,
                    patience: PATIENCE,
                    write_behind: true,
                };
                let (served, stop) = abortable(serve(env, device, root, options));
                told.send(stop).unwrap();
                let _ = served.await;
            })
            .unwrap();
        });
        let stop = stop.recv_timeout(LIMIT).expect("it is served");
        Some(Self { server, dir, stop, thread: Some(thread) })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Runs a call that must end.
    #[track_caller]
    fn ends<T: Send + 'static>(&self, name: &str, what: impl FnOnce(&Path) -> T + Send + 'static) -> T {
        let (path, (done, ended)) = (self.path(name), mpsc::channel());
        thread::spawn(move || done.send(what(&path)));
        ended.recv_timeout(LIMIT).expect("it ends, and does not panic")
    }

    #[track_caller]
    fn read(&self, name: &str) -> Result<String, i32> {
        let read = self.ends(name, |path| fs::read(path));
        read.map(|data| String::from_utf8(data).unwrap()).map_err(|error| error.raw_os_error().unwrap())
    }

    #[track_caller]
    fn stat(&self, name: &str) -> Result<fs::Metadata, i32> {
        self.ends(name, |path| fs::symlink_metadata(path)).map_err(|error| error.raw_os_error().unwrap())
    }

    /// Starts a program with this file as its last argument.
    fn program(&self, words: &[&str], name: &str) -> Child {
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).arg(self.path(name)).stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().unwrap()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(self.dir.path(), UnmountFlags::FORCE | UnmountFlags::DETACH);
        self.stop.abort();
        let ended = self.thread.take().unwrap().join();
        assert!(ended.is_ok() || thread::panicking(), "whoever serves has panicked");
        lock(&self.server.kept).drain(..).for_each(|later| later.respond(Err(Errno::EIO.into())));
        lock(&self.server.held).drain(..).for_each(|held| held.later.respond(Err(Errno::EIO.into())));
    }
}

#[track_caller]
fn until(what: &str, mut is: impl FnMut() -> bool) {
    let end = Instant::now() + LIMIT;
    while !is() {
        assert!(Instant::now() < end, "in time: {what}");
        thread::yield_now();
    }
}

#[track_caller]
fn ended(child: &mut Child) -> ExitStatus {
    let mut status = None;
    until("the program ends", || {
        status = child.try_wait().unwrap();
        status.is_some()
    });
    status.unwrap()
}

/// Reads at most `most` names, up to an error.
fn names(path: &Path, most: usize) -> Vec<Result<OsString, i32>> {
    let found = fs::read_dir(path).unwrap().take(most);
    found.map(|entry| Ok(entry.map_err(|error| error.raw_os_error().unwrap())?.file_name())).collect()
}

fn at(path: &str) -> Box<[u8]> {
    path.as_bytes().into()
}

#[test]
fn a_server_may_lie_about_sizes() {
    let (mut long, mut short, mut huge, mut more) =
        (plain(2, "hello"), plain(3, "hello, world"), plain(4, "x"), plain(5, "x"));
    (long.attr.size, short.attr.size, huge.attr.size) = (1 << 40, 5, u64::MAX);
    more.more = 5000;
    more.attr.size = 4096;
    let files = [("/long", long), ("/short", short), ("/huge", huge), ("/more", more)];
    let Some(mounted) = Mounted::new(Liar::with(files)) else { return };
    let first = mounted.ends("long", |path| {
        let mut file = File::open(path).unwrap();
        let mut text = [0; 100];
        let n = file.read(&mut text).unwrap();
        text[..n].to_vec()
    });
    assert!(first.starts_with(b"hello") && first[5..].iter().all(|&byte| byte == 0));
    assert_eq!(mounted.read("short"), Ok("hello".into()));
    assert_eq!(mounted.stat("huge").map(drop), Err(Errno::EIO.0 as i32));
    // The faulty read ends the session, and its data is not used.
    assert!(mounted.read("more").is_err());
    assert!(mounted.ends("short", |path| fs::metadata(path).is_ok() || path.parent().is_some()));
}

#[test]
fn a_server_may_say_errors_that_are_none() {
    let errnos = [0, 511, 512, 600, 4095, 4096, u32::MAX];
    let wrong = |n: u32| Lie { errno: Some(Errno(n)), ..plain(2, "") };
    let names = ["/0", "/1", "/2", "/3", "/4", "/5", "/6"];
    let files = names.into_iter().zip(errnos.map(wrong));
    let Some(mounted) = Mounted::new(Liar::with(files)) else { return };
    for (name, errno) in names.iter().zip(errnos) {
        let said = mounted.stat(&name[1..]).map(drop).unwrap_err();
        assert_eq!(said, if errno == 511 { 511 } else { Errno::EIO.0 as i32 }, "{errno}");
    }
}

#[test]
fn names_that_no_file_can_have_lead_nowhere() {
    for bad in [&b"a/b"[..], b"/", b"..", b".", b"", b"a\0b", &[b'x'; 256], &[b'x'; 1025], &[b'x'; 5000]] {
        let mut root = dir(1, &[]);
        let listed = [b"one", bad, b"two", b"two"];
        root.list = listed.into_iter().zip(1..).map(|(name, at)| (name.to_vec(), at)).collect();
        let server = Liar::with([("/one", plain(2, "1")), ("/two", plain(3, "2"))]);
        server.set("", root);
        let Some(mounted) = Mounted::new(server) else { return };
        let found = mounted.ends("", |path| names(path, 100));
        let is_known = |name: &OsString| {
            [&b"one"[..], b"two"].contains(&name.as_bytes()) || bad.len() > 255 && name.as_bytes() == bad
        };
        let failed = found.iter().any(|name| name.is_err());
        assert!(found.iter().flatten().all(is_known), "{}: {found:?}", bad.escape_ascii());
        match bad {
            b"." | b".." => assert!(!failed && found.len() == 3, "{found:?}"),
            _ => assert!(failed || bad.len() > 255, "{}: {found:?}", bad.escape_ascii()),
        }
        // A lookup by name works, whatever the listing has.
        assert_eq!(mounted.read("two"), Ok("2".into()));
        let long = OsString::from_vec(bad.iter().copied().filter(|&b| b != 0).collect());
        let long = long.into_string().unwrap();
        assert!(bad.len() < 256 || mounted.stat(&long).is_err());
    }
}

#[test]
fn a_directory_may_be_endless_and_lead_round() {
    let (endless, mut round) = (Lie { endless: true, ..dir(2, &[]) }, dir(3, &["a", "b", "c", "d"]));
    // The last entry leads back behind the first.
    round.list[3].1 = 1;
    let files = [("/endless", endless), ("/round", round), ("/file", plain(4, "x"))];
    let Some(mounted) = Mounted::new(Liar::with(files)) else { return };
    for name in ["endless", "round"] {
        let found = mounted.ends(name, |path| names(path, 100_000));
        let is_endless = name == "endless" && found.len() == 100_000;
        assert!(is_endless || found.last().unwrap().is_err(), "{name}: {}", found.len());
        assert_eq!(mounted.read("file"), Ok("x".into()));
    }
}

#[test]
fn a_directory_may_change_while_it_is_read() {
    let many: Vec<String> = (0..5000).map(|n| format!("a name that is not short {n}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let Some(mounted) = Mounted::new(Liar::with([("/d", dir(2, &many))])) else { return };
    let server = mounted.server.clone();
    let found = mounted.ends("d", move |path| {
        let mut entries = fs::read_dir(path).unwrap();
        let first = entries.by_ref().take(10).flatten().count();
        server.set("/d", dir(2, &["new"]));
        let rest = entries.flatten().count();
        (first, rest)
    });
    assert!(found.0 == 10 && found.1 < 5000, "{found:?}");
    // The kernel caches the names of a directory as long as its attributes.
    until("the new name is listed", || mounted.ends("d", |path| names(path, 10)) == [Ok("new".into())]);
}

#[test]
fn files_that_say_to_be_the_same_are_kept_apart_by_kind() {
    let files =
        [("/f", plain(7, "text")), ("/d", dir(7, &["x"])), ("/d/x", plain(8, "x")), ("/r", dir(1, &[]))];
    let Some(mounted) = Mounted::new(Liar::with(files)) else { return };
    for _ in 0..3 {
        assert_eq!(mounted.read("f"), Ok("text".into()));
        assert_eq!(mounted.read("d/x"), Ok("x".into()));
        // A directory that claims to be the root: the root does not get its name.
        let _ = mounted.stat("r");
        assert_eq!(mounted.ends("d", |path| names(path, 9)), [Ok("x".into())]);
    }
}

#[test]
fn files_without_a_number_are_listed() {
    let bare = Lie { bare: true, ..dir(2, &["x"]) };
    let Some(mounted) = Mounted::new(Liar::with([("/d", bare), ("/d/x", plain(0, "x"))])) else { return };
    assert_eq!(mounted.ends("d", |path| names(path, 9)), [Ok("x".into())]);
}

#[test]
fn a_file_may_be_a_directory_by_the_next_answer() {
    let flips = Lie { flips: true, ..plain(2, "x") };
    let Some(mounted) = Mounted::new(Liar::with([("/f", flips), ("/g", plain(3, "g"))])) else { return };
    for n in 0..100 {
        let _ = mounted.stat("f");
        let _ = mounted.read(if n % 2 == 0 { "f" } else { "f/below" });
        let _ = mounted.ends("f", |path| fs::read_dir(path).map(Iterator::count));
    }
    mounted.server.set("/f", plain(2, "firm"));
    until("it is what it is", || mounted.read("f") == Ok("firm".into()));
    assert_eq!(mounted.read("g"), Ok("g".into()));
}

#[test]
fn who_is_killed_ends_whatever_the_server_does() {
    let hang = |number, keeps| Lie { keeps: Some(keeps), ..plain(number, "some text") };
    let files = [("/walk", hang(2, "walk")), ("/getattr", hang(3, "getattr")), ("/read", hang(4, "read"))];
    let Some(mounted) = Mounted::new(Liar::with(files)) else { return };
    for (n, name) in ["walk", "getattr", "read"].into_iter().enumerate() {
        let mut child = mounted.program(&["cat"], name);
        mounted.server.until_kept(n + 1);
        let killed = Instant::now();
        child.kill().unwrap();
        assert_eq!(ended(&mut child).signal(), Some(9));
        let most = GRACE + PATIENCE + Duration::from_secs(2);
        assert!(killed.elapsed() < most, "{name}: {:?}", killed.elapsed());
        // No other request waits, not even in the same directory.
        assert!(mounted.stat("none").is_err());
    }
}

#[test]
fn a_new_file_can_be_written_at_any_place_where_the_server_counts_no_versions() {
    let Some(mounted) = Mounted::new(Liar::with([])) else { return };
    let said = mounted.ends("new", |path| {
        let mut file = File::options().read(true).write(true).create_new(true).open(path)?;
        file.seek(SeekFrom::Start(5))?;
        file.write_all(b"later")?;
        file.seek(SeekFrom::Start(0))?;
        file.write_all(b"first")
    });
    said.unwrap();
    assert_eq!(mounted.read("new"), Ok("firstlater".into()));
}

#[test]
fn a_file_that_was_just_made_has_no_capability_that_one_would_ask_for() {
    let Some(mounted) = Mounted::new(Liar::with([("/old", plain(2, "old"))])) else { return };
    let write = |path: &Path| File::options().write(true).open(path)?.write_all(b"new");
    mounted.ends("old", write).unwrap();
    let made = mounted.ends("new", |path| {
        let begun = Instant::now();
        File::create_new(path)?.write_all(b"new").map(|()| begun.elapsed())
    });
    let looked = std::mem::take(&mut *lock(&mounted.server.looked));
    // A second later the attribute would be requested.
    let is_late = made.unwrap() > GRACE / 2;
    assert!(looked == ["/old"] || is_late && looked == ["/old", "/new"], "{looked:?}");
}

#[test]
fn what_the_kernel_does_not_take_of_a_create_is_let_go_of() {
    let Some(mounted) = Mounted::new(Liar::with([])) else { return };
    assert!(mounted.stat("none").is_err());
    let before = Arc::strong_count(&mounted.server.nodes);
    for n in 0..20 {
        // A different directory each time.
        let make = move |path: &Path| File::options().write(true).create_new(true).open(path).map(drop);
        mounted.server.set("/lie", dir(2 + n, &[]));
        lock(&mounted.server.files).get_mut("/lie").unwrap().comes = true;
        assert!(mounted.ends("lie", make).is_err());
    }
    until("nothing is kept", || Arc::strong_count(&mounted.server.nodes) < before + 10);
}

#[test]
fn a_file_that_is_replaced_by_one_that_nobody_has_seen_is_seen() {
    let Some(mounted) = Mounted::new(Liar::with([("/f", plain(2, "old"))]).tells()) else { return };
    assert_eq!(mounted.read("f"), Ok("old".into()));
    mounted.server.set("/f", plain(3, "new text"));
    mounted.server.tell([Change::Create(at("/tmp")), Change::Move(at("/tmp"), at("/f"))]);
    until("the new file is there", || mounted.read("f") == Ok("new text".into()));
}

#[test]
fn a_directory_has_changed_when_a_name_has_gone_that_nobody_has_looked_at() {
    let Some(mounted) = Mounted::new(Liar::with([("/d", dir(2, &["x"]))]).tells()) else { return };
    let change = |n: i64, change: Change| {
        assert!(mounted.stat("d").unwrap().mtime() < n);
        let mut later = dir(2, &[]);
        later.attr.mtime = Time { sec: n, nsec: 0 };
        mounted.server.set("/d", later);
        mounted.server.tell([change]);
        until("its time is another one", || mounted.stat("d").unwrap().mtime() == n);
    };
    change(1, Change::Create(at("/d/y")));
    change(2, Change::Remove(at("/d/x")));
    change(3, Change::Move(at("/d/y"), at("/elsewhere")));
}

#[test]
fn what_moves_while_somebody_works_in_it_is_followed() {
    let files = [("/d", dir(2, &["f"])), ("/d/f", plain(3, "old"))];
    let Some(mounted) = Mounted::new(Liar::with(files).tells()) else { return };
    let inside = mounted.ends("d", |path| File::open(path).unwrap());
    let len =
        |name: &str| rustix::fs::statat(&inside, name, rustix::fs::AtFlags::empty()).map(|stat| stat.st_size);
    assert_eq!(len("f"), Ok(3));
    mounted.server.set("/e", dir(2, &["f"]));
    mounted.server.tell([Change::Move(at("/d"), at("/e"))]);
    for path in ["/d/f", "/e/f"] {
        mounted.server.set(path, plain(3, "new and longer"));
    }
    mounted.server.tell([Change::Write(at("/e/f"))]);
    until("it is seen", || len("f") == Ok(14));
}

#[test]
fn a_change_that_comes_before_the_answer_counts() {
    let late = |number| Lie { keeps: Some("getattr"), ..plain(number, "late") };
    let files = [("/d", dir(2, &[])), ("/d/w", late(3)), ("/d/r", late(4)), ("/flag", plain(5, "1"))];
    let Some(mounted) = Mounted::new(Liar::with(files).tells()) else { return };
    let len = |name: &str| mounted.stat(name).map(|meta| meta.len());
    assert_eq!(len("flag"), Ok(1));
    let changes = [(Change::Write(at("/d/w")), "d/w", Ok(10)), (Change::Remove(at("/d/r")), "d/r", Err(2))];
    for (n, (change, name, now)) in changes.into_iter().enumerate() {
        let mut child = mounted.program(&["stat"], name);
        mounted.server.until_kept(1);
        mounted.server.set("/flag", plain(5, &"1".repeat(n + 2)));
        // Published together: when the first is visible, the second has been handled.
        mounted.server.tell([Change::Write(at("/flag")), change]);
        until("the changes have come", || len("flag") == Ok(n as u64 + 2));
        match now {
            Ok(_) => mounted.server.set("/d/w", plain(3, "and longer")),
            Err(_) => mounted.server.remove("/d/r"),
        }
        for later in lock(&mounted.server.kept).drain(..) {
            later.respond(Ok(Reply::Attr(Box::new(late(3).attr))));
        }
        ended(&mut child);
        until("it is what it is now", || len(name) == now);
    }
}

#[test]
fn a_file_that_is_only_called_changes_is_not_believed() {
    let files = [("/#changes", plain(2, "here ab 1\n")), ("/f", plain(3, "old"))];
    let Some(mounted) = Mounted::new(Liar::with(files)) else { return };
    assert_eq!(mounted.stat("f").unwrap().len(), 3);
    mounted.server.set("/f", plain(3, "longer"));
    until("the file is asked for again", || mounted.stat("f").unwrap().len() == 6);
}

#[test]
fn who_ends_while_the_kernel_is_told_leaves_nobody_waiting() {
    let hang = Lie { keeps: Some("walk"), ..plain(4, "x") };
    let files = [("/d", dir(2, &["x"])), ("/d/x", plain(3, "x")), ("/d/hang", hang)];
    let Some(mounted) = Mounted::new(Liar::with(files).tells()) else { return };
    assert!(mounted.stat("d/x").is_ok());
    let mut child = mounted.program(&["stat"], "d/hang");
    mounted.server.until_kept(1);
    // The hanging lookup holds the directory's lock, for which the notifier waits.
    mounted.server.tell([Change::Remove(at("/d/x"))]);
    until("the notifier waits", || waits("fuse-notify"));
    mounted.stop.abort();
    assert_eq!(ended(&mut child).code(), Some(1));
}

/// Whether a thread of this name waits in the kernel, uninterruptibly.
fn waits(name: &str) -> bool {
    let tasks = fs::read_dir("/proc/self/task").unwrap().flatten();
    let mut stats = tasks.map(|task| fs::read_to_string(task.path().join("stat")).unwrap_or_default());
    stats.any(|stat| stat.contains(&format!("({name}) D")))
}

#[test]
fn a_file_with_two_names_has_changed_by_both() {
    let (mut a, mut b) = (plain(2, "old"), plain(2, "newer"));
    (a.attr.nlink, b.attr.nlink) = (2, 2);
    let Some(mounted) = Mounted::new(Liar::with([("/b", a)]).tells()) else { return };
    assert_eq!(mounted.read("b"), Ok("old".into()));
    mounted.server.set("/b", b);
    mounted.server.tell([Change::Write(at("/a"))]);
    until("what is written by one name is read by the other", || mounted.read("b") == Ok("newer".into()));
}

#[test]
fn what_is_below_a_blind_directory_gets_old() {
    let files = [("/d", dir(2, &["f"])), ("/d/f", plain(3, "old"))];
    let Some(mounted) = Mounted::new(Liar::with(files).tells()) else { return };
    assert_eq!(mounted.stat("d/f").unwrap().len(), 3);
    mounted.server.tell([Change::Blind(at("/d"))]);
    until("it is read", || mounted.read("d/f") == Ok("old".into()));
    let mut new = plain(3, "new");
    (new.attr.qid.vers, new.attr.mtime) = (2, Time { sec: 9, nsec: 0 });
    mounted.server.set("/d/f", new);
    until("it is read again", || mounted.read("d/f") == Ok("new".into()));
    // The same under another name.
    mounted.server.set("/e", dir(2, &["f"]));
    mounted.server.set("/e/f", plain(3, "moved"));
    mounted.server.remove("/d");
    mounted.server.tell([Change::Move(at("/d"), at("/e"))]);
    until("it is found", || mounted.read("e/f") == Ok("moved".into()));
    mounted.server.set("/e/f", plain(3, "longer yet"));
    until("it is found again", || mounted.stat("e/f").unwrap().len() == 10);
}

/// A file that reports to be generated when it is opened.
fn event(number: u64, data: &str) -> Lie {
    let mut lie = plain(number, data);
    (lie.attr.qid.ty, lie.attr.size) = (Qid::EVENT, 0);
    lie
}

#[test]
fn a_file_of_events_is_read_on_from_where_a_read_has_ended() {
    let Some(mounted) = Mounted::new(Liar::with([("/clone", event(2, "42\n"))])) else { return };
    let (read, asked) = mounted.ends("clone", |path| {
        let mut file = File::options().read(true).write(true).open(path).unwrap();
        let (mut text, mut byte) = (Vec::new(), [0]);
        // As a shell reads a line; at most one read per byte, and one for the end.
        while text.len() < 10 && file.read(&mut byte).unwrap() == 1 {
            text.push(byte[0]);
        }
        // A question, and its answer from the beginning; the next question follows the first.
        file.write_all(b"43").unwrap();
        let mut answer = [0; 3];
        file.read_exact(&mut answer).unwrap();
        file.write_all(b"4\n").unwrap();
        let mut all = [0; 100];
        let n = file.read(&mut all).unwrap();
        (text, [answer.to_vec(), all[..n].to_vec()])
    });
    assert_eq!(read, b"42\n");
    assert_eq!(asked, [b"43\n".to_vec(), b"434\n".to_vec()]);
    assert_eq!(mounted.read("clone"), Ok("434\n".into()));
}

#[test]
fn a_mount_is_taken_away_without_its_server() {
    for (lazy, by) in [(false, "."), (true, "."), (false, "link")] {
        let Some(mounted) = Mounted::new(Liar::with([])) else { return };
        assert!(mounted.stat("none").is_err());
        mounted.server.set("", Lie { keeps: Some("getattr"), ..dir(1, &[]) });
        let (point, beside) = (mounted.dir.path().to_owned(), tempfile::tempdir().unwrap());
        std::os::unix::fs::symlink(&point, beside.path().join("link")).unwrap();
        let path = if by == "." { point.clone() } else { beside.path().join(by) };
        mounted.ends("", move |_| unmount(&path, lazy)).unwrap();
        assert_eq!(unmount(&point, false).unwrap_err().kind(), std::io::ErrorKind::InvalidInput);
        assert!(lock(&mounted.server.kept).is_empty(), "nobody asks the server");
    }
}

#[test]
fn a_lock_does_not_wait_for_another_file_whose_server_is_silent() {
    let silent = Lie { keeps: Some("read"), ..plain(3, "silent") };
    let mut other = plain(4, "000");
    // Without versions, each lock drops the pages.
    other.attr.qid.vers = 0;
    let Some(mounted) = Mounted::new(Liar::with([("/silent", silent), ("/other", other)]).tells()) else {
        return;
    };
    let mut reader = mounted.program(&["cat"], "silent");
    mounted.server.until_kept(1);
    // The kernel has locked the page that is read, and the notifier waits for it.
    mounted.server.tell([Change::Write(at("/silent"))]);
    until("the notifier waits", || waits("fuse-notify"));
    mounted.ends("other", |path| {
        let file = File::options().read(true).write(true).open(path).unwrap();
        for how in [FlockOperation::LockExclusive, FlockOperation::Unlock] {
            rustix::fs::fcntl_lock(&file, how).unwrap();
            rustix::fs::flock(&file, how).unwrap();
        }
    });
    reader.kill().unwrap();
    ended(&mut reader);
}
