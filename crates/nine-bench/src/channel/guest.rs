//! The server of a run, and the routes to it. Each route writes the same payloads to the same files.

use std::ffi::OsStr;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nine_guest::{Client, Dialect as GuestDialect, File, Options, Process, Wait};
use nine_io::server::{Anonymous, Core, Door, Entrance, FileServer, Gate, Service};
use nine_net::shm::Waits;
use nine_net::{Addr, Env, rt};
use nine_proto::msg::{Names, OnlyIds, Tmsg};
use nine_proto::{Dialect, Fid, NOFID, NOTAG, OpenFlags, Tag};
use rustix::process::geteuid;

use crate::child::{self, ChildProcess};
use crate::peers::diod;
use crate::place::CpuPlacement;
use crate::report::BenchTurn;
use crate::scratch::ScratchDir;
use crate::server::{MeasuredServer, SILENCE};
use crate::wire::{encoded, receive};

/// A route to a server.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum ServerRoute {
    /// A channel; both ends wait in this mode.
    Channel(Wait),
    Unix,
    Tcp,
    /// diod, at a unix socket, serving the host's devices.
    Diod,
}

impl ServerRoute {
    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Channel(_) => "channel",
            Self::Unix => "unix socket",
            Self::Tcp => "TCP",
            Self::Diod => "diod",
        }
    }
}

/// Sockets of channels in the server's directory.
const DOORS: [(&str, Waits); 3] =
    [("poll", Waits::Poll), ("interrupt", Waits::Interrupt), ("adaptive", Waits::Adaptive)];
const UNIX: &str = "unix";
/// The directory that diod serves.
const DEVICES: &str = "/dev";
/// A file with the TCP address.
const TCP: &str = "tcp";

/// The servers of a run. `files/cached` is a file of the host in the page cache, as long as the largest payload.
pub(super) struct ChannelSite {
    server: ChildProcess,
    diod: Option<MeasuredServer>,
    _remote: ChildProcess,
    sockets: ScratchDir,
    files: ScratchDir,
}

impl ChannelSite {
    pub(super) fn start() -> io::Result<Self> {
        let (files, sockets) = (ScratchDir::new()?, ScratchDir::for_sockets()?);
        std::fs::write(files.path().join("cached"), vec![0; super::BIG[1]])?;
        let far = sockets.path().join("far");
        std::fs::create_dir(&far)?;
        let script = |name: &str, text: String| -> io::Result<PathBuf> {
            let path = files.path().join(name);
            std::fs::write(&path, text)?;
            Ok(path)
        };
        let nulls = script("far.ns", "mount cons: /dev\n".into())?;
        let remote = role(&nulls, &far)?;
        let near = script(
            "near.ns",
            format!(
                "mount cons: /dev\nmount disk:/dev /host\nmount disk:{} /files\nmount {} /n\n",
                files.path().display(),
                std::fs::read_to_string(far.join(TCP))?
            ),
        )?;
        let server = role(&near, sockets.path())?;
        let diod = diod::start(Path::new(DEVICES), sockets.path())?;
        Ok(Self { server, diod, _remote: remote, sockets, files })
    }

    /// Returns the path of the name space file.
    pub(super) fn space(&self) -> PathBuf {
        self.files.path().join("near.ns")
    }

    /// Returns the server's TCP port.
    pub(super) fn port(&self) -> io::Result<u16> {
        let address = std::fs::read_to_string(self.sockets.path().join(TCP))?;
        let port = address.trim().rsplit('!').next().and_then(|port| port.parse().ok());
        port.ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// Returns whether diod is available.
    pub(super) fn has_diod(&self) -> bool {
        self.diod.is_some()
    }

    /// Measures a write of `size` bytes to a file of the server, microseconds. The payload is filled again before each
    /// write.
    pub(super) fn turn(
        &self,
        road: ServerRoute,
        file: &'static str,
        size: usize,
        times: u32,
        place: CpuPlacement,
    ) -> io::Result<BenchTurn<'_>> {
        Ok(Box::new(move || {
            let diod = self.diod.as_ref().filter(|_| road == ServerRoute::Diod);
            place.arrange(&[diod.map_or(self.server.pid(), MeasuredServer::pid)])?;
            match road {
                ServerRoute::Channel(wait) => {
                    let (mut client, file) = self.join(wait, file)?;
                    let mut buffer = client.buffer(size.max(1)).map_err(failed)?;
                    let mut all = |times: u32| {
                        for n in 0..times {
                            buffer.fill(0, size, n as u8);
                            let wrote = client.write_from(&file, 0, &buffer, ..size).map_err(failed)?;
                            whole(wrote, size)?;
                        }
                        Ok::<_, io::Error>(())
                    };
                    all(times / 10)?;
                    let begun = Instant::now();
                    all(times)?;
                    Ok(begun.elapsed().as_secs_f64() * 1e6 / f64::from(times))
                }
                ServerRoute::Unix => {
                    let stream = UnixStream::connect(self.sockets.path().join(UNIX))?;
                    LeanClient::begin(stream, "", file, size)?.writes(times)
                }
                ServerRoute::Diod => {
                    let stream = UnixStream::connect(self.sockets.path().join("diod"))?;
                    LeanClient::begin(stream, DEVICES, file, size)?.writes(times)
                }
                ServerRoute::Tcp => {
                    let stream = TcpStream::connect(("127.0.0.1", self.port()?))?;
                    stream.set_nodelay(true)?;
                    LeanClient::begin(stream, "", file, size)?.writes(times)
                }
            }
        }))
    }

    fn join(&self, wait: Wait, file: &str) -> io::Result<(Client<Process>, File)> {
        let door = DOORS[wait as usize].0;
        let options = Options { wait, dialect: GuestDialect::L, ..Options::default() };
        let process = Process::dial(self.sockets.path().join(door))?;
        let mut client = process.client_with(options).map_err(failed)?;
        let root = client.attach("", "").map_err(failed)?;
        let file = client.open(&root, file, OpenFlags::WRITE).map_err(failed)?;
        Ok((client, file))
    }

    /// Counts the server's wake-ups in a second beside an idle channel.
    pub(super) fn idle_wakeups(&self) -> io::Result<f64> {
        let (client, _file) = self.join(Wait::Adaptive, "dev/null")?;
        // Do not count the polls before the first sleep.
        std::thread::sleep(Duration::from_millis(200));
        let before = self.switches()?;
        let begun = Instant::now();
        std::thread::sleep(Duration::from_secs(1));
        let woken = self.switches()? - before;
        drop(client);
        Ok(woken as f64 / begun.elapsed().as_secs_f64())
    }

    /// Counts the context switches of a write, server and guest together: how often a thread goes to sleep.
    pub(super) fn switches_of(
        &self,
        road: ServerRoute,
        file: &'static str,
        size: usize,
        times: u32,
    ) -> io::Result<f64> {
        let all = || Ok::<_, io::Error>(self.switches()? + switches(std::process::id())?);
        let mut turn = self.turn(road, file, size, times, CpuPlacement::Cross)?;
        let before = all()?;
        turn()?;
        // The warm-up adds a tenth of the writes.
        Ok((all()? - before) as f64 / (f64::from(times) * 1.1))
    }

    /// Counts how often the server's threads have gone to sleep.
    fn switches(&self) -> io::Result<u64> {
        switches(self.server.pid().as_raw_nonzero().get().unsigned_abs())
    }
}

/// Counts how often the threads of a process have gone to sleep.
fn switches(pid: u32) -> io::Result<u64> {
    let mut all = 0;
    for task in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let status = std::fs::read_to_string(task?.path().join("status"))?;
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        all += line.and_then(|n| n.trim().parse::<u64>().ok()).unwrap_or(0);
    }
    Ok(all)
}

/// Fills a payload with new bytes.
pub(super) fn fill(payload: &mut [u8], n: u32) {
    payload.fill(n as u8);
}

fn role(script: &Path, sockets: &Path) -> io::Result<ChildProcess> {
    ChildProcess::role(&[OsStr::new("channel"), script.as_os_str(), sockets.as_os_str()])
}

/// The role: serves a name space at all sockets.
pub fn serve(script: &Path, sockets: &Path) -> io::Result<()> {
    crate::ours::space(script, async |env: rt::Real, core: Core, mux: std::sync::Arc<dyn FileServer>| {
        let (gate, here) = (Gate::default(), sockets.to_owned());
        let open = |addr: Addr, waits: Waits, gate: Gate| -> io::Result<String> {
            let listener = Entrance::bind(&addr, &env)?.waiting(waits);
            let at = listener.addr().to_string();
            let door = Door { listener, tls: None, clients: 64 };
            let service = Service::new(mux.clone(), gate, core.clone());
            env.spawn(Box::pin(async move { drop(nine_io::server::listen(env, door, service, &[]).await) }));
            Ok(at)
        };
        for (name, waits) in DOORS {
            open(Addr::Shm { path: here.join(name) }, waits, gate.clone())?;
        }
        open(Addr::Unix { path: here.join(UNIX) }, Waits::Adaptive, gate.clone())?;
        let trusted = Gate { anonymous: Anonymous::Trusted, ..gate };
        let tcp = open(Addr::Tcp { host: "127.0.0.1".into(), port: 0 }, Waits::Adaptive, trusted)?;
        std::fs::write(here.join(TCP), tcp)?;
        child::ready();
        std::future::pending().await
    })
}

/// A minimal client over a socket: one message, encoded in advance; its payload is filled in place.
struct LeanClient<S> {
    stream: S,
    request: Vec<u8>,
    size: usize,
}

/// `size[4] type[1] tag[2] fid[4] offset[8] count[4]`.
const TWRITE_HEAD_LEN: usize = 23;
const RWRITE: usize = 11;

impl<S: Read + Write> LeanClient<S> {
    fn begin(stream: S, aname: &str, file: &str, size: usize) -> io::Result<Self> {
        let data = nine_proto::msg::Data::Bytes(&vec![0; size]);
        let request = encoded(&Tmsg::Write { fid: Fid(1), offset: 0, data }, Tag(1));
        let mut lean = Self { stream, request, size };
        let names: Vec<&[u8]> = file.split('/').map(str::as_bytes).collect();
        let n_uname = OnlyIds(geteuid().as_raw());
        let messages = [
            (Tmsg::Version { msize: 1 << 20, version: Dialect::L.name().as_bytes() }, NOTAG),
            (Tmsg::Attach { fid: Fid(0), afid: NOFID, uname: b"", aname: aname.as_bytes(), n_uname }, Tag(1)),
            (Tmsg::Walk { fid: Fid(0), newfid: Fid(1), names: Names::Slice(&names) }, Tag(1)),
            (Tmsg::Lopen { fid: Fid(1), flags: OpenFlags::WRITE.to_wire() }, Tag(1)),
        ];
        for (message, tag) in messages {
            lean.stream.write_all(&encoded(&message, tag))?;
            let mut answer = Vec::new();
            receive(&mut lean.stream, 1 << 20, &mut answer)?;
            if answer[4] != message.number() + 1 {
                return Err(io::Error::other(format!("{message:?} is refused")));
            }
        }
        Ok(lean)
    }

    fn writes(mut self, times: u32) -> io::Result<f64> {
        self.all(times / 10)?;
        let begun = Instant::now();
        self.all(times)?;
        Ok(begun.elapsed().as_secs_f64() * 1e6 / f64::from(times))
    }

    fn all(&mut self, times: u32) -> io::Result<()> {
        let mut answer = [0; RWRITE];
        for n in 0..times {
            fill(&mut self.request[TWRITE_HEAD_LEN..], n);
            self.stream.write_all(&self.request)?;
            self.stream.read_exact(&mut answer)?;
            whole(u32::from_le_bytes(answer[7..].try_into().expect("four bytes")) as usize, self.size)?;
        }
        Ok(())
    }
}

fn whole(wrote: usize, size: usize) -> io::Result<()> {
    if wrote == size { Ok(()) } else { Err(io::Error::other(format!("{wrote} of {size} bytes were taken"))) }
}

fn failed(error: nine_proto::Error) -> io::Error {
    io::Error::other(format!("{error:?}; a server is silent for {SILENCE:?} at most"))
}
