//! A server over a mux, on the loopback, and a client that may send anything.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use futures_util::future::{AbortHandle, abortable, pending};
use nine_gate::http::{Options, Server};
use nine_io::client::{self, Client, Net};
use nine_io::server::{Anonymous, Core, FileServer, Gate, Service};
use nine_mux::{As, Flags, Local, MAIN, Mux, Owner};
use nine_net::{Env, Peer, Proof, rt};
use nine_proto::NOUID;
use nine_servers::net::{Network, Policy, Tcp};
use nine_servers::{Disk, DiskOptions, Ram};

/// Long enough for everything that works.
pub const LIMIT: Duration = Duration::from_secs(30);

pub struct Site {
    pub addr: SocketAddr,
    stop: AbortHandle,
    thread: Option<JoinHandle<()>>,
}

impl Site {
    /// Serves a directory of the host.
    pub fn disk(dir: &Path, options: Options) -> Self {
        Self::of(Self::tree(dir), options)
    }

    fn tree(dir: &Path) -> Arc<dyn FileServer> {
        Arc::new(Disk::open(dir, DiskOptions::default()).unwrap())
    }

    /// The same over messages of this size.
    pub fn by_messages(dir: &Path, msize: u32) -> Self {
        Self::asked(Self::tree(dir), Options::default(), msize)
    }

    pub fn of(tree: Arc<dyn FileServer>, options: Options) -> Self {
        Self::asked(tree, options, client::Options::default().msize)
    }

    fn asked(tree: Arc<dyn FileServer>, options: Options, msize: u32) -> Self {
        let (told, known) = mpsc::channel();
        let (stopped, stop) = abortable(pending::<()>());
        let thread = thread::spawn(move || {
            rt::block_on(async |env| {
                let server = open(env, tree, options, msize).await;
                let port = server.local().rsplit_once('!').unwrap().1.parse().unwrap();
                told.send(SocketAddr::from(([127, 0, 0, 1], port))).unwrap();
                server
                    .run(
                        &env,
                        async {
                            let _ = stopped.await;
                        },
                        LIMIT,
                    )
                    .await;
            })
            .unwrap();
        });
        let addr = known.recv_timeout(LIMIT).expect("it listens");
        Self { addr, stop, thread: Some(thread) }
    }

    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.addr).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream.set_write_timeout(Some(LIMIT)).unwrap();
        stream
    }

    /// Sends `text` and returns everything up to the end.
    pub fn say(&self, text: &[u8]) -> Vec<u8> {
        let mut stream = self.connect();
        // An early refusal may close the connection before all is sent.
        let _ = stream.write_all(text);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        answer
    }

    /// Sends one request, and returns its answer.
    pub fn get(&self, path: &str, headers: &str) -> Answer {
        let mut stream = self.connect();
        self.ask(&mut stream, "GET", path, headers)
    }

    pub fn ask(&self, stream: &mut TcpStream, method: &str, path: &str, headers: &str) -> Answer {
        write!(stream, "{method} {path} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n").unwrap();
        Answer::read(stream, method == "HEAD")
    }

    /// Stops the server, which sends pending answers first.
    pub fn stop(&mut self) {
        self.stop.abort();
        self.thread.take().map(JoinHandle::join).transpose().expect("no panic");
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        if thread::panicking() {
            return;
        }
        self.stop();
    }
}

async fn open(env: rt::Real, tree: Arc<dyn FileServer>, options: Options, msize: u32) -> Server {
    let core = Core::default();
    let root = Local::scratch("root", Arc::new(Ram::new(1 << 20)), core.clone());
    let mux = Mux::new(root, nine_servers::disk::names());
    env.spawn(Box::pin(mux.run(env, &[])));
    let owner = As::User { name: "u".into(), uid: None };
    let main = mux.space(MAIN, Owner::default());
    let tree = Local::server("tree", tree, core.clone());
    main.mount(tree, "", &owner, "/", Flags::REPLACE).await.unwrap();
    let networks: Vec<Arc<dyn Network>> = vec![Arc::new(Tcp)];
    let modules = nine_net::modules::modules();
    let (net, driver) = nine_servers::Net::new(networks, Policy::loopback(), modules, env.clock(), 1000);
    env.spawn(Box::pin(driver));
    let net = Local::server("net", Arc::new(net), core.clone());
    mux.space("own", Owner::default()).mount(net, "", &owner, "/net", Flags::REPLACE).await.unwrap();
    let gate = Gate { anonymous: Anonymous::Trusted, ..Gate::default() };
    let service = Service { own: true, ..Service::new(Arc::new(mux), gate, core) };
    let peer = Peer { addr: "pipe".into(), proof: Proof::None };
    let asks = client::Options { msize, ..client::Options::default() };
    let client = Client::within(&env, &service, peer, asks).await.unwrap();
    let own = client.attach("u", NOUID, "own").await.unwrap();
    let net = Net::new(own.walk("net").await.unwrap());
    let root = client.attach("u", NOUID, "").await.unwrap();
    let mux = root.walk("mux").await.ok().map(Arc::new);
    let options = Options { mux, ..options };
    Server::open(&net, "tcp!127.0.0.1!0", Some(root), options, env.clock()).await.unwrap()
}

/// An answer of the server.
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn read(stream: &mut TcpStream, is_head: bool) -> Self {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            assert_eq!(stream.read(&mut byte).expect("an answer"), 1, "{}", String::from_utf8_lossy(&head));
            head.push(byte[0]);
        }
        let head = String::from_utf8(head).unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let mut answer = Self { status, head, body: Vec::new() };
        if is_head || matches!(status, 204 | 304) {
            return answer;
        }
        if answer.header("Transfer-Encoding").is_some() {
            loop {
                let mut line = Vec::new();
                while !line.ends_with(b"\r\n") {
                    let mut byte = [0];
                    stream.read_exact(&mut byte).unwrap();
                    line.push(byte[0]);
                }
                let len = usize::from_str_radix(std::str::from_utf8(&line).unwrap().trim(), 16).unwrap();
                let mut chunk = vec![0; len + 2];
                stream.read_exact(&mut chunk).unwrap();
                answer.body.extend_from_slice(&chunk[..len]);
                if len == 0 {
                    return answer;
                }
            }
        }
        let len: usize = answer.header("Content-Length").expect("a length").parse().unwrap();
        answer.body = vec![0; len];
        stream.read_exact(&mut answer.body).expect("all of it");
        answer
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (of, value) = line.split_once(": ")?;
            of.eq_ignore_ascii_case(name).then_some(value)
        })
    }
}
