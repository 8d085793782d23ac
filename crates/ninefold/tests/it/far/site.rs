//! A server and its clients at the two ends of a long link.
//!
//! In: the obstacle in front of the server ([`Door`]). Out: commands, clients and connections of the other side. Each
//! site has a link of its own, so tests do not disturb each other.

use std::io::{BufRead, BufReader, ErrorKind};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::pin::pin;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, LazyLock, Once};
use std::time::Duration;

use futures_util::future::{Either, select};
use nine_io::client::{Client, Dial, Dialing, File, Options};
use nine_net::{Addr, Env, Socket, Transport, rt};
use nine_proto::Dialect;
use nine_sim::delay::{DelayBox, Relay, Shape, Side};
use tempfile::TempDir;

use crate::common::{ended_within, ninefold, not_covered};
use crate::far::gate::{Gate, To, Wall};
use crate::far::talk::Talk;

/// Longer than anything here takes, unless it hangs; and shorter than Linux's connect timeout of minutes.
pub const LIMIT: Duration = Duration::from_secs(60);
/// Round trip; and rate in bits per second.
const RTT: Duration = Duration::from_millis(20);
const RATE: u64 = 400_000_000;
/// Size of a file that is worth a stream even after a part of it was moved, bytes.
pub const SIZE: usize = 12 << 20;

/// Returns the shape of a link without faults.
pub fn shape() -> Shape {
    Shape::symmetric(RTT, RATE)
}

/// Returns bytes without repetition.
pub fn bytes(size: usize) -> &'static [u8] {
    static ALL: LazyLock<Vec<u8>> = LazyLock::new(|| {
        let mut all = vec![0; 2 * SIZE];
        for (n, word) in (1_u64..).zip(all.chunks_exact_mut(8)) {
            word.copy_from_slice(&(n.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (n << 17)).to_ne_bytes());
        }
        all
    });
    &ALL[..size]
}

/// Both sides and the link between them.
pub enum Net {
    Far(DelayBox),
    /// This machine's loopback, if there is no box; each site has 256 addresses of its own.
    Near([u8; 3]),
}

impl Net {
    pub fn new() -> Net {
        let error = match DelayBox::new(shape()) {
            Ok(link) => return Net::Far(link),
            Err(error) => error,
        };
        assert!(matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::Unsupported), "{error}");
        static SAID: Once = Once::new();
        SAID.call_once(|| not_covered(&format!("streams over long links, but over a relay: {error}")));
        static COUNT: AtomicU8 = AtomicU8::new(0);
        let process = std::process::id() % 254 + 1;
        Net::Near([127, process as u8, COUNT.fetch_add(1, Ordering::Relaxed)])
    }

    fn run<T: Send>(&self, side: Side, f: impl FnOnce() -> T + Send) -> T {
        match self {
            Net::Far(link) => link.run(side, f).expect("inside"),
            Net::Near(_) => f(),
        }
    }

    fn address(&self, role: Role) -> Ipv4Addr {
        match (self, role) {
            (Net::Far(_), Role::Hidden | Role::Near) => Ipv4Addr::LOCALHOST,
            (Net::Far(link), Role::Front | Role::Seen) => link.address(Side::There),
            (Net::Near([a, b, c]), _) => Ipv4Addr::new(*a, *b, *c, 1 + role as u8),
        }
    }
}

/// A party with an address.
#[derive(Clone, Copy)]
enum Role {
    /// A server behind a gate.
    Hidden,
    /// The party at the server's end of the link.
    Front,
    /// The address of the front for clients: a relay's, if there is no box.
    Seen,
    /// The party at the clients' end.
    Near,
}

/// The obstacle in front of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Door {
    /// Nothing.
    Open,
    /// A gate at the same port of another address.
    Gate,
    /// A gate at another port.
    Moved,
    /// A gate to its unix socket, where it has no streams.
    Plain,
    /// A gate; but data connections must use a port that never answers.
    Wall,
}

/// A server at the far end, with everything for its clients.
pub struct Site {
    pub server: Server,
    gate: Option<Gate>,
    _relay: Option<Relay>,
    _wall: Option<Wall>,
    pub net: Net,
    /// The server's address for clients.
    pub at: SocketAddr,
    /// Directory where commands run.
    pub home: TempDir,
}

impl Site {
    pub fn new(door: Door) -> Site {
        Site::on(Net::new(), door, &[])
    }

    /// Starts a server; the words `wrap` precede its command line.
    pub fn on(net: Net, door: Door, wrap: &[&str]) -> Site {
        let inside = net.address(if door == Door::Open { Role::Front } else { Role::Hidden });
        let streams = if door == Door::Wall { " -streams 0" } else { "" };
        let listen = format!("tcp!{inside}!0 -insecure{streams}");
        let server = net.run(Side::There, || Server::start(wrap, &listen));
        let own = SocketAddr::from((inside, server.port("tcp!")));
        let gate = match door {
            Door::Open => None,
            Door::Gate | Door::Wall => Some((own.port(), To::Tcp(own))),
            Door::Moved => Some((own.port() ^ 1, To::Tcp(own))),
            Door::Plain => Some((0, To::Unix(server.dir.path().join("s")))),
        };
        let (front, seen) = (net.address(Role::Front), net.address(Role::Seen));
        let gate = gate.map(|(port, to)| net.run(Side::There, || Gate::new((front, port).into(), to)));
        let port = gate.as_ref().map_or(own, Gate::address).port();
        let at = SocketAddr::from((seen, port));
        let relay = match net {
            Net::Far(_) => None,
            Net::Near(_) => Some(Relay::new(at, (front, port).into(), shape()).unwrap()),
        };
        let wall = (door == Door::Wall).then(|| {
            let at = SocketAddr::from((seen, server.port("    streams come in at tcp!")));
            net.run(Side::There, || Wall::new(at))
        });
        Site { server, gate, _relay: relay, _wall: wall, net, at, home: tempfile::tempdir().unwrap() }
    }

    pub fn gate(&self) -> &Gate {
        self.gate.as_ref().expect("one stands there")
    }

    /// Opens a gate on the clients' side, at the same port.
    pub fn near_gate(&self) -> Gate {
        let at = SocketAddr::from((self.net.address(Role::Near), self.at.port()));
        self.net.run(Side::Here, || Gate::new(at, To::Tcp(self.at)))
    }

    /// Returns the path of a server's file.
    pub fn file(&self, name: &str) -> PathBuf {
        self.server.files().join(name)
    }

    pub fn put(&self, name: &str, bytes: &[u8]) {
        std::fs::write(self.file(name), bytes).unwrap();
    }

    /// Starts the command on the clients' side.
    pub fn spawn(&self, words: &[&str]) -> Child {
        self.spawn_to(self.at, words)
    }

    /// Like [`Site::spawn`], with the server at this address.
    pub fn spawn_to(&self, at: SocketAddr, words: &[&str]) -> Child {
        let mut command = ninefold(self.home.path());
        command.env("NINEFOLD_SERVER", format!("tcp!{}!{}", at.ip(), at.port())).args(words);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        self.net.run(Side::Here, || command.spawn().unwrap())
    }

    pub fn run(&self, words: &[&str]) -> (Option<i32>, String) {
        ended(self.spawn(words))
    }

    pub fn connect(&self) -> TcpStream {
        let io = self.net.run(Side::Here, || TcpStream::connect(self.at).unwrap());
        io.set_nodelay(true).unwrap();
        io.set_read_timeout(Some(LIMIT)).unwrap();
        io.set_write_timeout(Some(LIMIT)).unwrap();
        io
    }

    pub fn talk(&self) -> Talk {
        Talk::new(self.connect(), "9P2000.L.s")
    }

    /// Runs `main` with a client of nine-io at the root.
    pub fn client<T: Send>(&self, main: impl AsyncFnOnce(File) -> T + Send) -> T {
        let main = async |env: rt::Real| {
            let addr = Addr::Tcp { host: self.at.ip().to_string(), port: self.at.port() };
            let socket = Socket::connect(&addr, LIMIT).await.unwrap();
            let options =
                Options { dialects: vec![Dialect::L], clock: Some(env.clock()), ..Options::default() };
            let (client, driver) =
                Client::connect(socket, options.with_streams(Arc::new(Patient))).await.unwrap();
            env.spawn(Box::pin(async { drop(driver.await) }));
            let root = client.attach("", rustix::process::geteuid().as_raw(), "").await.unwrap();
            let late = env.sleep_until(env.now() + LIMIT);
            match select(pin!(main(root)), late).await {
                Either::Left((done, _)) => done,
                Either::Right(_) => panic!("it hangs"),
            }
        };
        self.net.run(Side::Here, || rt::block_on(main).unwrap())
    }
}

/// Waits for a command. Returns its status and its error text.
pub fn ended(mut child: Child) -> (Option<i32>, String) {
    if ended_within(&mut child, LIMIT).is_none() {
        child.kill().unwrap();
        panic!("it hangs: {:?}", child.wait_with_output());
    }
    let output = child.wait_with_output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

/// Dials data connections with a longer limit than the command, so that tests do not depend on the load of the machine.
struct Patient;

impl Dial for Patient {
    fn dial(&self, peer: &str, addr: &str) -> Dialing {
        let (host, _) = peer.strip_prefix("tcp!").and_then(|at| at.rsplit_once('!')).expect("host and port");
        let addr: Addr = addr.replace('*', host).parse().expect("a dial string");
        Box::pin(async move { Ok(Box::new(Socket::connect(&addr, LIMIT).await?) as Box<dyn Transport>) })
    }
}

/// A server of the directory `files`.
pub struct Server {
    pub dir: TempDir,
    pub child: Child,
    banner: String,
    _stdout: BufReader<ChildStdout>,
}

impl Server {
    fn start(wrap: &[&str], listen: &str) -> Server {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("files")).unwrap();
        let program = ninefold(dir.path());
        let mut command = match wrap {
            [] => program,
            [first, rest @ ..] => {
                let mut command = Command::new(first);
                command.current_dir(dir.path()).args(rest).arg(program.get_program());
                command
            }
        };
        let socket = format!("unix!{}", dir.path().join("s").display());
        command.args(["serve", "files", "--listen", listen, "--listen", &socket]);
        let log = std::fs::File::create(dir.path().join("log")).unwrap();
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
        let mut child = command.spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut banner = String::new();
        while !banner.ends_with("\nready\n") {
            let n = stdout.read_line(&mut banner).unwrap();
            assert!(n > 0, "it ended: {banner}{}", std::fs::read_to_string(dir.path().join("log")).unwrap());
        }
        Server { dir, child, banner, _stdout: stdout }
    }

    pub fn files(&self) -> PathBuf {
        self.dir.path().join("files")
    }

    /// Returns the port at the end of the line with this prefix.
    fn port(&self, begin: &str) -> u16 {
        let line = self.banner.lines().find(|line| line.starts_with(begin)).expect(begin);
        line.rsplit_once('!').unwrap().1.parse().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // This fails if the process has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
