//! A client and a server on the two ends of a socket pair, on one thread.

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use nine_io::client::{Client, File, Options};
use nine_io::server::{Anonymous, Core, FileServer, Gate, Service};
use nine_net::{Env, Peer, Proof, Socket};
use nine_proto::{Dialect, Errno, NOUID};

pub const ALL: [Dialect; 3] = [Dialect::L, Dialect::U, Dialect::P2000];

/// Runs `main` with the root of a server, attached as root.
pub fn serve(server: impl FileServer, dialect: Dialect, main: impl AsyncFnOnce(File)) {
    serve_as(server, dialect, 0, async |root| main(root.expect("attached")).await);
}

/// The same as another user. The attach may be refused.
pub fn serve_as(
    server: impl FileServer,
    dialect: Dialect,
    uid: u32,
    main: impl AsyncFnOnce(nine_io::client::Result<File>),
) {
    let server: Arc<dyn FileServer> = Arc::new(server);
    nine_net::rt::block_on(async |env| {
        let client = connect(&env, server, dialect).await;
        let uname = if uid == NOUID || !dialect.is_l() { uid.to_string() } else { String::new() };
        main(client.attach(&uname, uid, "").await).await;
    })
    .expect("a runtime");
}

/// Returns the first `count` bytes of a server's answers to these bytes.
pub fn raw(server: Arc<dyn FileServer>, bytes: Vec<u8>, count: usize) -> Vec<u8> {
    let (mut near, far) = UnixStream::pair().expect("a pair of sockets");
    let client = std::thread::spawn(move || {
        near.write_all(&bytes).expect("the server reads");
        let mut answers = vec![0; count];
        near.read_exact(&mut answers).expect("answers");
        answers
    });
    nine_net::rt::block_on(async |_| {
        Service::new(server, trusting(), Core::default()).connect(Box::new(socket(far))).await;
    })
    .expect("a runtime");
    client.join().expect("a client")
}

/// Returns a new connection to a server.
pub async fn connect(env: &nine_net::rt::Real, server: Arc<dyn FileServer>, dialect: Dialect) -> Client {
    connect_by(env, server, dialect, trusting()).await
}

/// The same with this gate.
pub async fn connect_by(
    env: &nine_net::rt::Real,
    server: Arc<dyn FileServer>,
    dialect: Dialect,
    gate: Gate,
) -> Client {
    let (near, far) = UnixStream::pair().expect("a pair of sockets");
    let [near, far] = [near, far].map(socket);
    env.spawn(Box::pin(Service::new(server, gate, Core::default()).connect(Box::new(far))));
    let options = Options { dialects: vec![dialect], ..Options::default() };
    let (client, driver) = Client::connect(near, options).await.expect("a session");
    env.spawn(Box::pin(async move {
        // Requests still waiting get the error.
        let _ = driver.await;
    }));
    client
}

/// Returns the root of a service for its owner, authenticated by the kernel.
pub async fn owner(env: &nine_net::rt::Real, service: &Service) -> File {
    let peer = Peer { addr: "owner".into(), proof: Proof::Unix { uid: 0, gid: 0 } };
    let client = Client::within(env, service, peer, Options::default()).await.expect("a session");
    client.attach("", 0, "").await.expect("the owner may attach")
}

fn socket(end: UnixStream) -> Socket {
    end.set_nonblocking(true).expect("a socket");
    let peer = Peer { addr: "pair".into(), proof: Proof::None };
    Socket::from_parts(OwnedFd::from(end), peer).expect("a socket on the runtime")
}

fn trusting() -> Gate {
    Gate { anonymous: Anonymous::Trusted, ..Gate::default() }
}

/// Returns the names in a directory, sorted.
pub async fn list(dir: &File) -> Vec<String> {
    let mut names = Vec::new();
    let mut entries = dir.read_dir().await.expect("a directory");
    while let Some(entry) = entries.next().await {
        names.push(String::from_utf8_lossy(&entry.expect("an entry").name).into_owned());
    }
    names.sort_unstable();
    names
}

/// Returns the contents of a file.
pub async fn content(file: &File) -> Vec<u8> {
    let mut data = vec![0; 4 << 20];
    let n = file.read_at(0, &mut data).await.expect("content");
    data.truncate(n);
    data
}

/// Returns the errno of a result that must be an error.
#[track_caller]
pub fn errno<T>(result: nine_io::client::Result<T>) -> Errno {
    match result {
        Ok(_) => panic!("it should have failed"),
        Err(error) => error.errno(),
    }
}

pub fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        not_covered("this test needs root");
    }
    root
}

/// Writes to stderr directly, since the test runner hides the output of a passing test.
pub fn not_covered(what: &str) {
    std::io::Write::write_all(&mut std::io::stderr(), format!("NOT COVERED: {what}\n").as_bytes()).unwrap();
}
