//! A mux over two servers, which the guest mounts: diod, and a `ninefold serve` that the mux reaches only by its
//! socket.
//!
//! In: a folder with the directories `diod` and `ours`, which they serve. Out: the mux's port, and a control port where
//! the guest can stop or kill a server. Always holds: `mend` restores a server that was stopped or killed.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::child::{Child, last_lines};
use crate::guest::Scratch;
use crate::packages;
use crate::served::{Program, Served};

/// The servers and the mux. Dropping it ends them.
pub struct Mux {
    served: Served,
    beneath: [Beneath; 2],
    asked: TcpListener,
    _sockets: Scratch,
}

/// A server behind the mux.
struct Beneath {
    name: &'static str,
    words: Vec<String>,
    socket: PathBuf,
    /// `None` after it was killed.
    child: Option<Child>,
}

impl Mux {
    /// Starts both servers and the mux over them. Returns `None` without diod, which was reported when the packages
    /// were looked up.
    pub fn start(program: &Program, place: &Path) -> Result<Option<Mux>, String> {
        let Some(diod) = packages::program("diod") else { return Ok(None) };
        let sockets = sockets()?;
        let socket = |name: &str| sockets.0.join(name).display().to_string();
        let dir = |name: &str| place.join(name).display().to_string();
        let uid = place.metadata().map_err(|e| e.to_string())?.uid().to_string();
        let diod = diod.display().to_string();
        let ours = program.0.display().to_string();
        let (export, disk, listen) = (dir("diod"), format!("disk:{}", dir("ours")), socket("ours"));
        let listen = format!("unix!{listen}");
        let (at, config) = (socket("diod"), "/dev/null");
        // As the user that it serves, diod does not query the user data base. Without SIGPIPE it survives a client that
        // disconnects early.
        let mut beneath = [
            Beneath::new(
                "diod",
                &["env", "--ignore-signal=PIPE", &diod, "-f", "-n", "-c", config, "-L", "stderr", "-u", &uid]
                    .iter()
                    .chain(&["-l", &at, "-e", &export])
                    .copied()
                    .collect::<Vec<_>>(),
                &sockets,
            ),
            Beneath::new("ours", &[&ours, "serve", &disk, "--listen", &listen, "--config", config], &sockets),
        ];
        for server in &mut beneath {
            server.mend()?;
        }
        let [diod, ours] = ["diod", "ours"].map(|name| word(&format!("unix!{}", socket(name))));
        let export = word(&export);
        let space = format!(
            "mount {diod} /diod {export}\n\
             mount {ours} /ours\n\
             mount -r {diod} /kept/diod {export}\n\
             mount -r {ours} /kept/ours\n\
             mount ram:64M /ram\n\
             bind /diod/union /both\n\
             bind -ac /ours/union /both\n",
        );
        let file = place.join("mux.ns");
        std::fs::write(&file, space).map_err(|e| format!("{}: {e}", file.display()))?;
        let served = Served::start(program, &file.display().to_string(), &[])?;
        let asked = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(|e| e.to_string())?;
        Ok(Some(Mux { served, beneath, asked, _sockets: sockets }))
    }

    /// Returns the port of the mux and the control port, on 127.0.0.1.
    pub fn ports(&self) -> [u16; 2] {
        [self.served.port, self.asked.local_addr().map_or(0, |addr| addr.port())]
    }

    /// Serves control connections while `f` runs. A connection has one line, `stop NAME`, `kill NAME` or `mend`, and
    /// the answer is `ok` or an error.
    pub fn beside<T>(&mut self, f: impl FnOnce() -> T) -> T {
        let (asked, beneath) = (&self.asked, &mut self.beneath);
        std::thread::scope(|scope| {
            scope.spawn(|| while answer(asked, beneath) {});
            let ended = f();
            let end = asked.local_addr().and_then(TcpStream::connect);
            end.and_then(|mut end| end.write_all(b"end\n")).expect("the loopback leads to our own listener");
            ended
        })
    }

    /// Returns the logs of all servers, for a report.
    pub fn log(&mut self) -> String {
        let mut log = self.served.log();
        for server in &mut self.beneath {
            let said = server.child.as_mut().map(|child| {
                child.catch_up();
                last_lines(&child.output(), 20)
            });
            log += &format!("{} beneath, the last of its log:\n{}", server.name, said.unwrap_or_default());
        }
        log
    }
}

/// Serves one control connection. Returns false if it asked to end.
fn answer(asked: &TcpListener, beneath: &mut [Beneath]) -> bool {
    let Ok((stream, _)) = asked.accept() else { return true };
    let mut line = String::new();
    // A connection without a line is not a request.
    let _ = BufReader::new(&stream).read_line(&mut line);
    let mut named = |name: &str, f: fn(&mut Beneath) -> Result<(), String>| {
        beneath.iter_mut().filter(|server| name.is_empty() || server.name == name).try_for_each(f)
    };
    let done = match line.split_whitespace().collect::<Vec<_>>()[..] {
        ["end"] => return false,
        ["stop", name] => named(name, |server| server.signal("STOP")),
        ["kill", name] => named(name, |server| {
            server.child = None;
            Ok(())
        }),
        ["mend"] => named("", Beneath::mend),
        _ => Err(format!("not understood: {line}")),
    };
    // The client may have disconnected.
    let _ = writeln!(&stream, "{}", done.err().unwrap_or_else(|| "ok".to_string()));
    true
}

impl Beneath {
    fn new(name: &'static str, words: &[&str], sockets: &Scratch) -> Beneath {
        let words = words.iter().map(|word| word.to_string()).collect();
        Beneath { name, words, socket: sockets.0.join(name), child: None }
    }

    fn signal(&mut self, signal: &str) -> Result<(), String> {
        self.child.as_ref().ok_or_else(|| format!("{} does not run", self.name))?.signal(signal)
    }

    /// Continues a stopped server. Restarts a killed one at the same address and waits until it listens.
    fn mend(&mut self) -> Result<(), String> {
        if self.child.is_some() {
            return self.signal("CONT");
        }
        let mut child = Child::start(&self.words[0], &self.words[1..], false)?;
        let until = Instant::now() + Duration::from_secs(60);
        while UnixStream::connect(&self.socket).is_err() {
            if Instant::now() > until {
                child.catch_up();
                return Err(format!("{} does not listen\n{}", self.name, last_lines(&child.output(), 20)));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        self.child = Some(child);
        Ok(())
    }
}

/// Creates a private folder for sockets. It is in the temporary directory because socket paths must be short.
fn sockets() -> Result<Scratch, String> {
    let dir = std::env::temp_dir().join(format!("ninefold-mux-{}", std::process::id()));
    // A killed run with this process id may have left it.
    let _ = std::fs::remove_dir_all(&dir);
    let made = std::fs::DirBuilder::new().mode(0o700).create(&dir);
    made.map(|()| Scratch(dir.clone())).map_err(|e| format!("{}: {e}", dir.display()))
}

/// Quotes a word for a name space file.
fn word(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}
