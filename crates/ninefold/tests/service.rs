//! `serve` and `mount` as services: inherited sockets, notifications to a service manager, reloads of the name space,
//! the journal, and the behaviour while the program restarts or is removed.
//!
//! The test acts as the manager. The units with systemd itself are tested by `cargo xtask package`.
//!
//! This file is a program of its own because its sockets are not close-on-exec: every program started meanwhile
//! inherits them, and other tests check which descriptors a program has.

#[path = "it/common/mod.rs"]
mod common;

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use common::{Server, chmod, copy_program, ended_within, ninefold, not_covered, until};
use nine_io::client::{Options, blocking::Client};
use nine_proto::{Errno, OpenFlags};
use rustix::io::{FdFlags, fcntl_dupfd_cloexec, fcntl_setfd};
use rustix::process::{Pid, Signal, geteuid, kill_process};

/// Longer than anything here takes, unless it hangs.
const LIMIT: Duration = Duration::from_mins(1);

/// A service manager: holds a unix socket `s` and a loopback port, and receives notifications at `notify`.
struct Manager {
    dir: tempfile::TempDir,
    sockets: Vec<OwnedFd>,
    port: u16,
    told: UnixDatagram,
}

impl Manager {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        chmod(dir.path(), 0o755);
        fs::create_dir(dir.path().join("files")).unwrap();
        fs::write(dir.path().join("files/motd"), "welcome\n").unwrap();
        let unix = UnixListener::bind(dir.path().join("s")).unwrap();
        chmod(&dir.path().join("s"), 0o600);
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = tcp.local_addr().unwrap().port();
        let told = UnixDatagram::bind(dir.path().join("notify")).unwrap();
        told.set_read_timeout(Some(LIMIT)).unwrap();
        // Use high numbers, because the program must find its sockets at 3 and 4.
        let high = |fd: &dyn AsFd| {
            let fd = fcntl_dupfd_cloexec(fd.as_fd(), 100).unwrap();
            fcntl_setfd(&fd, FdFlags::empty()).unwrap();
            fd
        };
        Self { sockets: vec![high(&unix), high(&tcp)], port, told, dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    /// Returns a command that inherits the sockets under these names, and must send notifications.
    fn command(&self, names: &str, words: &[&str]) -> Command {
        let program = ninefold(self.dir.path());
        let mut command = Command::new("bash");
        let script = format!(
            "exec 3<&{} 4<&{}; export LISTEN_PID=$$; exec \"$0\" \"$@\"",
            self.sockets[0].as_raw_fd(),
            self.sockets[1].as_raw_fd()
        );
        command.arg("-c").arg(script).arg(program.get_program()).args(words).current_dir(self.dir.path());
        for (name, value) in program.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command.env("LISTEN_FDS", "2").env("LISTEN_FDNAMES", names).env("NOTIFY_SOCKET", self.path("notify"));
        command
    }

    /// Starts `serve WORDS` and waits until it is ready.
    fn start(&self, words: &[&str]) -> Served {
        let log = File::options().create(true).append(true).open(self.path("log")).unwrap();
        let mut command = self.command("ninefold.socket:ninefold.socket", &[&["serve"], words].concat());
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        let served = Served(command.spawn().unwrap());
        self.hears("READY=1");
        served
    }

    /// Receives the next message except watchdog messages; it must have this prefix.
    #[track_caller]
    fn hears(&self, what: &str) -> String {
        let message = std::iter::repeat_with(|| self.message()).find(|text| text != "WATCHDOG=1").unwrap();
        assert!(message.starts_with(what), "{message}\n{}", self.log());
        message
    }

    #[track_caller]
    fn message(&self) -> String {
        let mut bytes = [0; 4096];
        let n = self.told.recv(&mut bytes).unwrap_or_else(|e| panic!("nothing is told: {e}\n{}", self.log()));
        String::from_utf8(bytes[..n].to_vec()).unwrap()
    }

    fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    fn client(&self) -> Command {
        let mut command = ninefold(self.dir.path());
        command.env("NINEFOLD_SERVER", format!("unix:{}", self.path("s").display())).stdin(Stdio::null());
        command
    }

    /// Runs a client command that must succeed. Returns its output.
    #[track_caller]
    fn ok(&self, words: &[&str]) -> String {
        let output = self.client().args(words).output().unwrap();
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }
}

struct Served(Child);

impl Served {
    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }

    #[track_caller]
    fn stop(&mut self) {
        self.signal(Signal::TERM);
        assert_eq!(ended_within(&mut self.0, LIMIT).expect("it ends").code(), Some(0));
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // This fails if the process has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn sockets_of_a_manager_are_listened_on_and_left_to_it() {
    let manager = Manager::new();
    let mut served = manager.start(&["files"]);
    assert_eq!(manager.ok(&["ls", "/"]), "motd\n");
    assert_eq!(manager.ok(&["cat", &format!("9p://127.0.0.1:{}/motd", manager.port)]), "welcome\n");
    // It has no other listeners.
    assert!(!manager.path("ninefold.sock").exists() && !manager.log().contains("http!"));
    served.stop();
    assert!(manager.path("s").exists(), "the name is the manager's");
    manager.hears("STOPPING=1");

    // A client that connects before the start waits.
    let early = manager.client().args(["cat", "/motd"]).stdout(Stdio::piped()).spawn().unwrap();
    let _served = manager.start(&["files"]);
    let output = early.wait_with_output().unwrap();
    assert!(output.status.success() && output.stdout == b"welcome\n");
}

#[test]
fn what_a_line_says_of_an_address_holds_for_a_socket_of_it() {
    for host in ["127.0.0.1", "localhost"] {
        let manager = Manager::new();
        let (path, port) = (manager.path("s"), manager.port);
        let said = format!("listen unix!{}\nlisten tcp!{host}!{port} -insecure\n", path.display());
        manager.write("home.ns", &format!("mount disk:files /\n{said}"));
        let _served = manager.start(&["home.ns"]);
        manager.ok(&["rm", &format!("9p://127.0.0.1:{port}/motd")]);
        assert!(!manager.path("files/motd").exists());
    }
}

#[test]
fn the_name_of_a_socket_says_what_is_spoken() {
    let manager = Manager::new();
    let log = File::create(manager.path("log")).unwrap();
    let mut command = manager.command("shm:http", &["serve", "files"]);
    command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
    let _served = Served(command.spawn().unwrap());
    manager.hears("READY=1");
    assert_eq!(manager.ok(&["cat", &format!("shm:{}/motd", manager.path("s").display())]), "welcome\n");
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", manager.port)).unwrap();
    stream.write_all(b"GET /motd HTTP/1.0\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("\r\n\r\nwelcome\n"), "{answer}");
}

#[test]
fn sockets_that_cannot_be_used_are_named() {
    let manager = Manager::new();
    let fails = |command: &mut Command| {
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8(output.stderr).unwrap()
    };
    let said = fails(manager.command("", &["serve", "files"]).env("LISTEN_FDS", "three"));
    assert!(said.contains("LISTEN_FDS: it is no number"), "{said}");
    let said = fails(manager.command("", &["serve", "files"]).env("LISTEN_FDS", "9"));
    assert!(said.contains("LISTEN_FDS: Bad file descriptor"), "{said}");
    chmod(&manager.path("s"), 0o666);
    let said = fails(&mut manager.command("", &["serve", "files"]));
    assert!(said.contains("its SocketMode= lets everybody in"), "{said}");
    // Sockets for another process are ignored.
    let mut command = ninefold(manager.dir.path());
    command.args(["serve", "files", "--listen", "tcp!127.0.0.1!0"]);
    command.env("LISTEN_PID", "1").env("LISTEN_FDS", "three");
    drop(Server::by(tempfile::tempdir_in(manager.dir.path()).unwrap(), command));
}

#[test]
fn a_manager_is_told_of_each_step_and_that_it_lives() {
    let manager = Manager::new();
    manager.write("home.ns", "mount disk:files /lab\n");
    let log = File::create(manager.path("log")).unwrap();
    let mut command = manager.command("", &["serve", "home.ns"]);
    command.env("WATCHDOG_USEC", "100000").stdout(log.try_clone().unwrap()).stderr(log);
    let mut served = Served(command.spawn().unwrap());
    assert_eq!(manager.hears("READY=1"), "READY=1\nSTATUS=serves home.ns");
    for _ in 0..3 {
        until("it lives", || manager.message() == "WATCHDOG=1");
    }
    served.signal(Signal::HUP);
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic).tv_sec as u64;
    let reloading = manager.hears("RELOADING=1\nMONOTONIC_USEC=");
    let said = reloading.split(['=', '\n']).nth(3).unwrap().parse::<u64>().unwrap();
    assert!((said / 1_000_000).abs_diff(now) < 60, "{reloading}");
    assert_eq!(manager.hears("READY=1"), "READY=1\nSTATUS=serves home.ns");
    manager.write("home.ns", "mount disk:files /lab\n\nmonut ram: /\n");
    served.signal(Signal::HUP);
    manager.hears("RELOADING=1");
    let ready = manager.hears("READY=1");
    assert!(ready.contains("serves home.ns, as before: home.ns:3:1: `monut` is not known"), "{ready}");
    served.stop();
    manager.hears("STOPPING=1");
}

#[test]
fn a_name_space_is_read_again_and_nobody_is_dropped() {
    let manager = Manager::new();
    manager
        .write("home.ns", "mount disk:files /old\nmount ram: /tmp\nspace guests 4711\nmount disk:files /g\n");
    let served = manager.start(&["home.ns"]);
    let again = || {
        served.signal(Signal::HUP);
        manager.hears("RELOADING=1");
        manager.hears("READY=1")
    };
    let mut writer = manager.client();
    let mut writer = writer.args(["write", "--create", "/old/long"]).stdin(Stdio::piped()).spawn().unwrap();
    let mut input = writer.stdin.take().unwrap();
    // More than pipes hold, so that the file is open.
    let half = vec![b'x'; 4 << 20];
    input.write_all(&half).unwrap();
    let mut kept = manager.client();
    let mut kept = kept.args(["write", "--create", "/tmp/note"]).stdin(Stdio::piped()).spawn().unwrap();
    kept.stdin.take().unwrap().write_all(b"kept").unwrap();
    assert!(kept.wait().unwrap().success());

    manager.write("home.ns", "mount disk:files /new\nmount ram: /tmp\nbind /tmp /also\n");
    assert_eq!(again(), "READY=1\nSTATUS=serves home.ns");
    input.write_all(&half).unwrap();
    drop(input);
    assert!(writer.wait().unwrap().success());
    assert_eq!(fs::metadata(manager.path("files/long")).unwrap().len(), 8 << 20);
    assert_eq!(manager.ok(&["ls", "/new"]), "long\nmotd\n");
    assert_eq!(manager.ok(&["cat", "/also/note"]), "kept", "the same line is the same tree");
    assert_eq!(manager.ok(&["cat", "/mux/mounts"]).lines().last(), Some("bind /tmp /also"));
    // The mount point was created in the root, and stays there, empty.
    assert_eq!(manager.ok(&["ls", "/old"]), "");
    let gone = manager.client().args(["ls", "--aname", "guests"]).output().unwrap();
    assert!(String::from_utf8_lossy(&gone.stderr).contains("does not let us in: No such file"), "{gone:?}");
    assert_eq!(
        manager.ok(&["ls", "--user", "4711", "/new/motd"]),
        "/new/motd\n",
        "whose space it was gets main"
    );

    // Errors are reported with their location and change nothing: a word, a missing server, a server that refuses.
    for (text, why) in [
        ("mount disk:files /x\nmount -q ram: /y\n", "home.ns:2:7: `-q` is not known"),
        ("mount ram: /x\nmount disk:none /y\n", "home.ns:2: mount disk:"),
        ("mount ram: /x\nbind /absent /y\n", "home.ns:2: bind /absent /y"),
    ] {
        manager.write("home.ns", text);
        let ready = again();
        assert!(ready.contains("as before: ") && ready.contains(why), "{ready}");
        assert!(manager.log().contains(&format!("the old name space stays: {why}")), "{}", manager.log());
        assert_eq!(manager.ok(&["ls", "/new"]), "long\nmotd\n");
        assert_eq!(manager.ok(&["cat", "/also/note"]), "kept");
    }
    // Manual mounts are not in the file and vanish.
    manager.write("home.ns", "mount disk:files /new\nlisten unix!/elsewhere\n");
    manager.ok(&["mux", "mount", "ram:", "/mine"]);
    again();
    assert_eq!(manager.ok(&["cat", "/mux/mounts"]).lines().count(), 1);
    assert!(
        manager.log().contains("`listen` lines have changed: they need a new start"),
        "{}",
        manager.log()
    );
}

#[test]
fn who_has_a_name_space_that_is_for_others_now_does_not_see_what_they_get() {
    let manager = Manager::new();
    fs::create_dir(manager.path("secret")).unwrap();
    manager.write("secret/plan", "theirs\n");
    manager.write("home.ns", "mount disk:files /all\nspace guests 4711\nmount disk:files /g\n");
    let served = manager.start(&["home.ns"]);
    let addr: nine_net::Addr = format!("unix!{}", manager.path("s").display()).parse().unwrap();
    let client = Client::dial(&addr, LIMIT, Options::default()).unwrap();
    let had = client.attach("4711", 4711, "guests").unwrap();
    manager.write("home.ns", "mount disk:files /all\nspace guests 4712\nmount disk:secret /s\n");
    served.signal(Signal::HUP);
    manager.hears("RELOADING=1");
    manager.hears("READY=1");
    assert_eq!(had.open("g/motd", OpenFlags::READ).unwrap().read(0, 7).unwrap(), "welcome");
    assert_eq!(had.walk("s/plan").unwrap_err().errno(), Errno::ENOENT);
    assert_eq!(client.attach("4711", 4711, "guests").unwrap_err().errno(), Errno::EACCES);
    let has = client.attach("4712", 4712, "guests").unwrap();
    has.walk("s/plan").unwrap();
    assert_eq!(has.walk("g/motd").unwrap_err().errno(), Errno::ENOENT);
}

#[test]
fn lines_for_the_journal_have_their_level_and_neither_time_nor_secrets() {
    let manager = Manager::new();
    let log = File::create(manager.path("log")).unwrap();
    let meta = log.metadata().unwrap();
    let mut command = manager.command("", &["serve", "files"]);
    command.env("JOURNAL_STREAM", format!("{}:{}", meta.dev(), meta.ino()));
    command.args(["--token-file", "token"]).stdout(log.try_clone().unwrap()).stderr(log);
    let mut served = Served(command.spawn().unwrap());
    manager.hears("READY=1");
    manager.ok(&["ls", "/"]);
    manager.write("ninefold.toml", "");
    served.stop();
    let log = manager.log();
    let token = fs::read_to_string(manager.path("token")).unwrap();
    assert!(!token.trim().is_empty() && !log.contains(token.trim()), "{log}");
    assert!(log.contains("the token is in token"), "{log}");
    assert!(log.contains("\n<6>audit: attached"), "{log}");
    let is_dated = |line: &&str| line.contains("T") && line.contains("Z ") && line.starts_with("20");
    assert_eq!(log.lines().find(is_dated), None);
    // Also for an error at the start, and for each of its lines.
    manager.write("bad.ns", "one\ntwo\n");
    let log = File::create(manager.path("log2")).unwrap();
    let meta = log.metadata().unwrap();
    let mut command = manager.command("", &["serve", "bad.ns"]);
    command.env("JOURNAL_STREAM", format!("{}:{}", meta.dev(), meta.ino()));
    assert_eq!(command.stderr(log).status().unwrap().code(), Some(1));
    let said = fs::read_to_string(manager.path("log2")).unwrap();
    assert!(said.lines().count() == 2 && said.lines().all(|line| line.starts_with("<3>")), "{said}");
}

/// Returns whether this user may mount here.
fn may_mount() -> bool {
    let device = File::options().read(true).write(true).open("/dev/fuse");
    let may = geteuid().is_root() && device.is_ok();
    if !may {
        not_covered("mounts of services: this is not root, or there is no /dev/fuse");
    }
    may
}

/// A mount, unmounted on drop.
struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).stderr(Stdio::null()).status();
    }
}

/// Mounts in the background.
fn mount(program: &Path, home: &Path, what: &str, dir: &Path) -> Mounted {
    fs::create_dir(dir).unwrap();
    let usual = ninefold(home);
    let mut command = Command::new(program);
    command.current_dir(home).envs(usual.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let output = command.arg("mount").arg(what).arg(dir).stdin(Stdio::null()).output().unwrap();
    let mounted = Mounted(dir.into());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    mounted
}

#[test]
fn muxes_and_mounts_outlive_a_new_start() {
    let manager = Manager::new();
    let mut served = manager.start(&["files"]);
    let there = format!("unix!{}", manager.path("s").display());
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("mux.ns"), format!("mount -r {there} /n\n")).unwrap();
    let listen = format!("unix!{}", dir.path().join("s").display());
    let mux = Server::in_dir(dir, &["serve", "mux.ns", "--listen", &listen]);
    assert_eq!(mux.ok(["cat", "/n/motd"]), "welcome\n");
    let mounted = may_mount().then(|| {
        mount(Path::new(env!("CARGO_BIN_EXE_ninefold")), manager.dir.path(), &there, &manager.path("mnt"))
    });
    let open = mounted.as_ref().map(|mounted| File::open(mounted.0.join("motd")).unwrap());
    for signal in [Signal::TERM, Signal::KILL] {
        served.signal(signal);
        ended_within(&mut served.0, LIMIT).expect("it ends");
        // Sent while no server is running.
        let asked = mux.client().args(["cat", "/n/motd"]).stdout(Stdio::piped()).spawn().unwrap();
        let path = mounted.as_ref().map(|mounted| mounted.0.join("motd"));
        let reads = thread::spawn(move || path.map(|path| fs::read_to_string(path).unwrap()));
        while signal == Signal::TERM && !manager.message().starts_with("STOPPING=1") {}
        served = manager.start(&["files"]);
        assert_eq!(asked.wait_with_output().unwrap().stdout, b"welcome\n");
        let read = reads.join().unwrap();
        assert!(read.is_none_or(|text| text == "welcome\n"));
        if let Some(mut open) = open.as_ref() {
            let mut text = String::new();
            std::io::Seek::rewind(&mut open).unwrap();
            open.read_to_string(&mut text).unwrap();
            assert_eq!(text, "welcome\n", "what was open is open");
        }
    }
}

#[test]
fn a_mount_goes_on_when_its_program_is_removed_and_ends_when_it_is_unmounted() {
    if !may_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("ninefold");
    copy_program(env!("CARGO_BIN_EXE_ninefold"), &program);
    fs::create_dir(dir.path().join("files")).unwrap();
    let mounted = mount(&program, dir.path(), "disk:files", &dir.path().join("mnt"));
    fs::remove_file(&program).unwrap();
    fs::write(mounted.0.join("new"), "text").unwrap();
    assert_eq!(fs::read_to_string(dir.path().join("files/new")).unwrap(), "text");
    let is_it = |entry: &fs::DirEntry| {
        let exe = fs::read_link(entry.path().join("exe")).unwrap_or_default();
        exe.display().to_string() == format!("{} (deleted)", program.display())
    };
    let runs = || fs::read_dir("/proc").unwrap().flatten().any(|entry| is_it(&entry));
    assert!(runs());
    assert!(Command::new("umount").arg(&mounted.0).status().unwrap().success());
    until("the process ends with its mount", || !runs());
}

#[test]
fn units_are_understood_and_exposed_to_little() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging");
    let analyze = |words: &[&str]| Command::new("systemd-analyze").args(words).current_dir(&dir).output();
    // Exposure levels in tenths. The unit that mounts for all users cannot have its own mount name space, and must run
    // as root.
    for (unit, most) in [("ninefold.service", "29"), ("ninefold-mount@n.service", "42")] {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join(unit);
        fs::copy(dir.join(unit.replace("@n", "@")), &file).unwrap();
        let limit = format!("--threshold={most}");
        match analyze(&["security", "--no-pager", "--offline=true", &limit, file.to_str().unwrap()]) {
            Ok(output) => {
                let said = String::from_utf8_lossy(&output.stdout);
                assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
            }
            Err(_) => not_covered("how exposed the units are: there is no systemd-analyze"),
        }
    }
    // The shipped configuration is valid.
    let check =
        ninefold(&dir).args(["config", "check", "ninefold.toml", "--space", "home.ns"]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&check.stdout), "ninefold.toml: good\nhome.ns: good\n");
    for script in ["postinst", "prerm", "postrm"] {
        assert!(
            Command::new("sh").arg("-n").arg(dir.join("debian").join(script)).status().unwrap().success()
        );
    }
    let mode = dir.join("home.ns").metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o444, 0o444);
}
