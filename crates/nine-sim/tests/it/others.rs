//! Clients with the rights of "other" users: at every file server they can read exactly the files whose modes allow it.

use std::collections::HashMap;
use std::path::Path;
use std::pin::pin;
use std::sync::atomic::{AtomicIsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use futures_util::future::{Either, select};
use nine_io::Payload;
use nine_io::client::{self, Client, File};
use nine_io::server::{Anonymous, Answer, Core, FileServer, Gate, Later, Node, Reply, Req, ReqId, Service};
use nine_mux::{As, Flags, Local, MAIN, Mux, Owner};
use nine_net::{Env, Peer, Proof, rt};
use nine_proto::{Attr, Dialect, Errno, GetMask, NOGID, NOUID, Op, OpenFlags, Qid, SetAttr, Walked, mode};
use nine_servers::{Disk, DiskOptions, Ram};

async fn client(
    env: rt::Real,
    server: Arc<dyn FileServer>,
    anonymous: Anonymous,
    dialect: Dialect,
) -> Client {
    let gate = Gate { anonymous, ..Gate::default() };
    let service = Service::new(server, gate, Core::default());
    let peer = Peer { addr: "pipe".into(), proof: Proof::None };
    let options = client::Options { dialects: vec![dialect], ..client::Options::default() };
    Client::within(&env, &service, peer, options).await.expect("connected")
}

async fn root(env: rt::Real, server: &Arc<dyn FileServer>, anonymous: Anonymous) -> File {
    let client = client(env, server.clone(), anonymous, Dialect::L).await;
    client.attach("u", NOUID, "").await.expect("attached")
}

/// Returns a mux with these directories of the first server as a union on its root, and each below its own path.
async fn mux(env: rt::Real, server: Arc<dyn FileServer>, union: &[&str]) -> (Mux, Arc<dyn FileServer>) {
    let root = Local::scratch("root", Arc::new(Ram::new(1 << 20)), Core::default());
    let mux = Mux::new(root, nine_servers::disk::names());
    env.spawn(Box::pin(mux.run(env, &[])));
    let user = As::User { name: "u".into(), uid: None };
    let space = mux.space(MAIN, Owner::default());
    let local = Local::server("s", server, Core::default());
    space.mount(local, "", &user, "/", Flags::REPLACE).await.expect("mounted");
    for (n, dir) in union.iter().enumerate() {
        let flags = if n == 0 { Flags::REPLACE } else { Flags::AFTER };
        space.bind(dir, "/union", flags).await.expect("bound");
    }
    let server: Arc<dyn FileServer> = Arc::new(mux.clone());
    (mux, server)
}

async fn make(root: &File, path: &str, perm: u32) {
    let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
    let dir = root.walk(dir).await.expect("a directory");
    match name.ends_with(".d") {
        true => {
            dir.mkdir(name, 0o777, NOGID).await.expect("made");
        }
        false => {
            let file = dir.create(name, OpenFlags::WRITE, 0o666, NOGID).await.expect("made");
            file.write(0, name.as_bytes()).await.expect("written");
        }
    }
    // Independent of the umask.
    chmod(root, path, perm).await;
}

async fn chmod(root: &File, path: &str, perm: u32) {
    let file = root.walk(path).await.expect("a file");
    file.setattr(&SetAttr { mode: Some(perm), ..SetAttr::default() }).await.expect("changed");
}

async fn read(root: &File, path: &str) -> Result<Vec<u8>, Errno> {
    let file = root.open(path, OpenFlags::READ).await.map_err(|error| error.errno())?;
    Ok(file.read(0, 100).await.expect("it is open").to_vec())
}

async fn list(root: &File, path: &str) -> Result<usize, Errno> {
    let dir = root.open(path, OpenFlags::READ).await.map_err(|error| error.errno())?;
    let (mut entries, mut count) = (dir.read_dir().await.expect("it is open"), 0);
    while let Some(entry) = entries.next().await {
        let entry = entry.expect("an entry");
        count += usize::from(!matches!(&*entry.name, b"." | b".."));
    }
    Ok(count)
}

/// Checks the same tree at a file server that uses modes only.
async fn judged(env: rt::Real, server: Arc<dyn FileServer>) {
    let own = root(env, &server, Anonymous::Trusted).await;
    chmod(&own, "", 0o755).await;
    for (path, perm) in [
        ("open.d", 0o755),
        ("open.d/f", 0o644),
        ("open.d/secret", 0o640),
        ("closed.d", 0o750),
        ("closed.d/f", 0o644),
        ("closed.d/below.d", 0o755),
        ("search.d", 0o711),
        ("search.d/f", 0o604),
        ("names.d", 0o744),
        ("names.d/f", 0o644),
    ] {
        make(&own, path, perm).await;
    }
    let all = root(env, &server, Anonymous::ReadOnly).await;
    let other = root(env, &server, Anonymous::AsOther).await;
    for (path, is_open) in [
        ("open.d/f", true),
        ("open.d/secret", false),
        ("closed.d/f", false),
        ("search.d/f", true),
        ("names.d/f", false),
        ("open.d/../search.d/f", true),
        ("closed.d/../open.d/f", false),
    ] {
        let name = path.rsplit('/').next().expect("a name").as_bytes().to_vec();
        assert_eq!(read(&all, path).await, Ok(name.clone()), "{path}");
        assert_eq!(read(&other, path).await, if is_open { Ok(name) } else { Err(Errno::EACCES) }, "{path}");
    }
    assert_eq!((list(&other, "").await.is_ok(), list(&other, "open.d").await), (true, Ok(2)));
    for path in ["closed.d", "closed.d/below.d", "search.d", "names.d"] {
        assert_eq!(list(&other, path).await, Err(Errno::EACCES), "{path}");
        assert!(list(&all, path).await.is_ok(), "{path}");
    }
    // Attributes can be read for any file that a walk reaches.
    let stat = async |path| other.walk_attr(path, GetMask::BASIC).await.map(|(_, attr)| attr.mode & 0o777);
    assert_eq!(stat("open.d/secret").await.expect("its directory is open"), 0o640);
    assert_eq!(stat("closed.d/f").await.unwrap_err().errno(), Errno::EACCES);
    assert_eq!(read(&other, "open.d/none").await, Err(Errno::ENOENT));
    assert!(other.walk("open.d/f/none").await.is_err());
    // A change file names all files of a tree.
    let walked = other.walk(nine_io::changes::NAME).await.map(drop);
    assert!(walked.is_err_and(|error| matches!(error.errno(), Errno::EACCES | Errno::ENOENT)));
    // Each attach and each dialect gives the same result.
    for dialect in [Dialect::L, Dialect::U, Dialect::P2000] {
        let client = client(env, server.clone(), Anonymous::AsOther, dialect).await;
        let attach = async |aname| client.attach("root", 0, aname).await;
        assert_eq!(read(&attach("/open.d").await.expect("open"), "f").await, Ok(b"f".to_vec()));
        assert_eq!(read(&attach("/closed.d").await.expect("reached"), "f").await, Err(Errno::EACCES));
        assert_eq!(attach("/closed.d/below.d").await.map(drop).unwrap_err().errno(), Errno::EACCES);
        let root = attach("/").await.expect("open");
        assert_eq!(read(&root, "open.d/secret").await, Err(Errno::EACCES));
        assert_eq!(read(&root, "open.d/f").await, Ok(b"f".to_vec()));
        assert!(root.create("x", OpenFlags::WRITE, 0o666, NOGID).await.is_err());
    }
    // A change of modes applies from the next request on.
    chmod(&own, "closed.d", 0o755).await;
    assert_eq!(read(&other, "closed.d/f").await, Ok(b"f".to_vec()));
    chmod(&own, "", 0o700).await;
    assert_eq!(read(&other, "open.d/f").await, Err(Errno::EACCES));
    assert_eq!(list(&other, "").await, Err(Errno::EACCES));
    assert_eq!(read(&all, "open.d/f").await, Ok(b"f".to_vec()));
}

fn disk(path: &Path) -> Arc<dyn FileServer> {
    Arc::new(Disk::open(path, DiskOptions::default()).expect("a directory"))
}

#[test]
fn modes_decide_what_others_read_at_every_file_server() {
    let dirs = [(); 2].map(|()| tempfile::tempdir().expect("a directory"));
    rt::block_on(async |env| {
        judged(env, Arc::new(Ram::new(1 << 20))).await;
        judged(env, disk(dirs[0].path())).await;
        judged(env, mux(env, disk(dirs[1].path()), &[]).await.1).await;
    })
    .expect("a runtime");
}

#[test]
fn a_union_lets_others_in_if_all_of_its_members_do() {
    rt::block_on(async |env| {
        let ram: Arc<dyn FileServer> = Arc::new(Ram::new(1 << 20));
        let own = root(env, &ram, Anonymous::Trusted).await;
        for (path, perm) in [("a.d", 0o755), ("a.d/f", 0o644), ("b.d", 0o755), ("b.d/g", 0o644)] {
            make(&own, path, perm).await;
        }
        own.mkdir("union", 0o755, NOGID).await.expect("made");
        let (_mux, server) = mux(env, ram, &["/a.d", "/b.d"]).await;
        let other = root(env, &server, Anonymous::AsOther).await;
        assert_eq!(read(&other, "union/g").await, Ok(b"g".to_vec()));
        chmod(&own, "b.d", 0o700).await;
        assert_eq!(read(&other, "union/g").await, Err(Errno::EACCES));
        assert_eq!(list(&other, "union").await, Err(Errno::EACCES));
        assert_eq!(read(&other, "a.d/f").await, Ok(b"f".to_vec()));
        let all = root(env, &server, Anonymous::ReadOnly).await;
        assert_eq!((read(&all, "union/g").await, list(&all, "union").await), (Ok(b"g".to_vec()), Ok(2)));
    })
    .expect("a runtime");
}

/// Nested directories that answer from another thread, and count their nodes.
#[derive(Default)]
struct Slow {
    nodes: Arc<AtomicIsize>,
    /// Requests for [`STUCK`], which wait for cancellation.
    stuck: Mutex<HashMap<ReqId, Later>>,
}

const STUCK: &[u8] = b"stuck";

impl Slow {
    fn node(nodes: &AtomicIsize, name: &[u8]) -> Node {
        nodes.fetch_add(1, Ordering::SeqCst);
        Arc::new(name.to_vec())
    }

    fn answer(req: &Later, nodes: &AtomicIsize) -> Result<Reply, nine_proto::Error> {
        let qid = |name: &[u8]| Qid { ty: Qid::DIR, vers: 0, path: name.len() as u64 };
        match req.op() {
            Op::Attach { aname, .. } => {
                let name = aname.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
                Ok(Reply::Attach { qid: qid(name), node: Self::node(nodes, name) })
            }
            Op::Walk { names } => {
                let mut qids = Walked::new();
                names.iter().for_each(|name| qids.push(qid(name)));
                let here = req.node::<Vec<u8>>()?;
                let name = names.iter().last().unwrap_or(&here);
                Ok(Reply::Walk { qids, node: Some(Self::node(nodes, name)) })
            }
            Op::Getattr { .. } => {
                let name = req.node::<Vec<u8>>()?;
                let perm = if name.starts_with(b"closed") { 0o700 } else { 0o755 };
                let (valid, mode) = (GetMask::BASIC, mode::S_IFDIR | perm);
                Ok(Reply::Attr(Box::new(Attr { valid, mode, qid: qid(&name), ..Attr::default() })))
            }
            Op::Open { .. } => {
                let node = req.node::<Vec<u8>>()?;
                Ok(Reply::Open { qid: qid(&node), iounit: 0, node })
            }
            Op::Clunk | Op::Remove => {
                nodes.fetch_sub(1, Ordering::SeqCst);
                Ok(Reply::Done)
            }
            Op::Read { .. } => Ok(Reply::Read(Payload::EMPTY)),
            _ => Err(Errno::EOPNOTSUPP.into()),
        }
    }
}

impl FileServer for Slow {
    fn serve(&self, req: Req) -> Answer {
        let is_stuck =
            matches!(req.op(), Op::Getattr { .. }) && req.node::<Vec<u8>>().is_ok_and(|name| *name == STUCK);
        let id = req.id();
        let (answer, later) = req.later();
        if is_stuck {
            self.stuck.lock().unwrap().insert(id, later);
            return answer;
        }
        let nodes = self.nodes.clone();
        thread::spawn(move || {
            let result = Self::answer(&later, &nodes);
            later.respond(result);
        });
        answer
    }

    fn cancel(&self, id: ReqId, _: Option<&Node>) {
        if let Some(later) = self.stuck.lock().unwrap().remove(&id) {
            later.respond(Err(Errno::EINTR.into()));
        }
    }
}

#[test]
fn checks_that_wait_leave_no_file_behind_and_can_be_cancelled() {
    rt::block_on(async |env| {
        let slow = Arc::new(Slow::default());
        let server: Arc<dyn FileServer> = slow.clone();
        let client = client(env, server, Anonymous::AsOther, Dialect::L).await;
        let root = client.attach("u", NOUID, "/a/b/c").await.expect("attached");
        assert_eq!(
            client.attach("u", NOUID, "/a/closed/c").await.map(drop).unwrap_err().errno(),
            Errno::EACCES
        );
        let there = root.walk("d/e/f/g").await.expect("walked");
        drop(there.open_here(OpenFlags::READ).await.expect("opened"));
        assert_eq!(root.walk("d/closed/f").await.map(drop).unwrap_err().errno(), Errno::EACCES);
        assert!(root.walk("d/closed").await.is_ok());
        // The walk waits at `stuck`, is cancelled, and the next request is served.
        let seen = async {
            while slow.stuck.lock().unwrap().is_empty() {
                env.sleep_until(env.now()).await;
            }
        };
        match select(pin!(root.walk("x/stuck/y")), pin!(seen)).await {
            Either::Left((walked, _)) => panic!("nobody has answered: {:?}", walked.map(drop)),
            Either::Right(_) => {}
        }
        assert!(root.walk("d").await.is_ok());
        assert!(slow.stuck.lock().unwrap().is_empty());
        drop((root, client));
        while slow.nodes.load(Ordering::SeqCst) != 0 {
            env.sleep_until(env.now()).await;
        }
    })
    .expect("a runtime");
}
