//! `shm:`, channels as files, used by clients of a server and by guests of channels.

use std::future::poll_fn;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use nine_io::channel::{Asking, Serving};
use nine_io::client::{Client, File, Options};
use nine_io::server::{Core, Gate, Service};
use nine_net::rt::Real;
use nine_net::shm::{Channel, Kind, Layout, MOST, Place, Waits};
use nine_net::{Addr, Env, Listener, Socket};
use nine_proto::{Dialect, NOGID, NOUID, OpenFlags};
use nine_servers::Ram;

use crate::common::{Server, ninefold};

const RDWR: OpenFlags = OpenFlags::RDWR;
const MINUTE: Duration = Duration::from_secs(60);

/// Serves a name space with channels, on a unix socket and for browsers.
fn served() -> Server {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("files")).unwrap();
    let space = "mount disk:files /files\nmount shm: /shm\nmount srv: /srv\nmount cons: /dev\n";
    std::fs::write(dir.path().join("home.ns"), space).unwrap();
    let listen = format!("unix!{}", dir.path().join("s").display());
    Server::in_dir(dir, &["serve", "home.ns", "--listen", &listen, "--http=http!127.0.0.1!0"])
}

async fn root(env: &Real, server: &Server) -> File {
    let socket = Socket::connect(&Addr::Unix { path: server.socket() }, MINUTE).await.unwrap();
    let options = Options { dialects: vec![Dialect::U], ..Options::default() };
    let (client, driver) = Client::connect(socket, options).await.unwrap();
    env.spawn(Box::pin(async move { drop(driver.await) }));
    client.attach("", rustix::process::geteuid().as_raw(), "").await.unwrap()
}

/// Creates a channel with these control texts. Returns its ctl and its directory.
async fn made(root: &File, texts: &[String]) -> (File, File) {
    let ctl = root.open("shm/clone", RDWR).await.unwrap();
    let number = ctl.read(0, 100).await.unwrap();
    let dir = root.walk([b"shm/", number.trim_ascii_end()].concat()).await.unwrap();
    for text in texts {
        ctl.write(0, text.as_bytes()).await.unwrap();
    }
    (ctl, dir)
}

async fn text(file: &File) -> String {
    String::from_utf8(file.read(0, 8000).await.unwrap().to_vec()).unwrap()
}

async fn status(dir: &File) -> String {
    text(&dir.open("status", OpenFlags::READ).await.unwrap()).await
}

/// Requests a page as a browser. Returns the first line of the answer.
fn browse(server: &Server, path: &str) -> String {
    let at = server.addr("http://").trim_start_matches("http://").trim_end_matches('/').to_owned();
    let mut socket = TcpStream::connect(at).unwrap();
    write!(socket, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    answer.lines().next().unwrap_or_default().into()
}

#[test]
fn a_program_gets_the_name_space_by_a_channel_that_files_have_made() {
    let mut server = served();
    std::fs::write(server.files().join("motd"), "welcome\n").unwrap();
    nine_net::rt::block_on(async |env| {
        let root = root(&env, &server).await;
        let at = server.dir.path().join("guests").display().to_string();
        let (ctl, dir) = made(&root, &["wait interrupt".into(), format!("announce {at}")]).await;
        for _ in 0..3 {
            assert_eq!(server.ok(["cat", &format!("shm:{at}/files/motd")]), "welcome\n");
        }
        // The guest has the identity and the rights of this process's user, the creator of the channel.
        server.fed(&["write", "--create", &format!("shm:{at}/files/new")], b"words\n");
        assert_eq!(std::fs::read(server.files().join("new")).unwrap(), b"words\n");
        assert!(status(&dir).await.contains(" wait interrupt "));
        // Browsers do not see channels.
        assert!(browse(&server, "/files/motd").contains("200"));
        for path in ["/shm/", "/shm/0/status"] {
            assert!(browse(&server, path).contains("404"), "{path}");
        }
        drop((ctl, dir));
        while std::path::Path::new(&at).exists() {
            root.walk("shm").await.unwrap();
        }
    })
    .unwrap();
    assert_eq!(server.stop().0, Some(0));
}

/// Serves an in-memory tree as a guest, in a channel that is announced at this address.
async fn serves(env: &Real, at: &Path, dir: &File) {
    let channel = Channel::dial(at, Waits::Adaptive, MINUTE).await.unwrap();
    let gate = Gate { anonymous: nine_io::server::Anonymous::Trusted, ..Gate::default() };
    let service = Service::new(Arc::new(Ram::new(16 << 20)), gate, Core::default());
    env.spawn(Box::pin(async move { service.connect(Box::new(Serving::new(channel))).await }));
    while !status(dir).await.starts_with("Established") {}
}

#[test]
fn the_files_of_a_guest_are_mounted() {
    let mut server = served();
    nine_net::rt::block_on(async |env| {
        let root = root(&env, &server).await;
        let at = server.dir.path().join("disk");
        let (_ctl, dir) =
            made(&root, &["kind server".into(), "name disk".into(), format!("announce {}", at.display())])
                .await;
        serves(&env, &at, &dir).await;
        let mux = root.open("mux/ctl", OpenFlags::WRITE).await.unwrap();
        mux.write(0, b"mount -c /shm/disk /n/disk").await.unwrap();
        let bytes: Vec<u8> = (0..1_000_000).map(|i| (i * 7 + i / 255) as u8).collect();
        let disk = root.walk("n/disk").await.unwrap();
        let file = disk.create("f", RDWR, 0o644, NOGID).await.unwrap();
        assert_eq!(file.write_at(0, &bytes).await.unwrap(), bytes.len());
        let mut back = vec![0; bytes.len()];
        assert_eq!(file.read_at(0, &mut back).await.unwrap(), bytes.len());
        assert!(back == bytes);
        assert!(text(&root.open("mux/mounts", OpenFlags::READ).await.unwrap()).await.contains("/shm/disk"));
        // After a hangup of the guest's channel its files are unreachable; everything else stays.
        let ctl = dir.open("ctl", RDWR).await.unwrap();
        ctl.write(0, b"hangup").await.unwrap();
        assert!(file.read(0, 10).await.is_err());
        assert!(root.walk("files").await.is_ok());
    })
    .unwrap();
    assert_eq!(server.stop().0, Some(0));
}

#[test]
fn a_channel_that_is_posted_is_mounted_and_connected_to() {
    let mut server = served();
    nine_net::rt::block_on(async |env| {
        let root = root(&env, &server).await;
        let [below, above] = ["below", "above"].map(|name| server.dir.path().join(name));
        let announce = |at: &Path| format!("announce {}", at.display());
        let texts = ["kind server".into(), "name disk".into(), announce(&below), "post lab".into()];
        let (ctl, dir) = made(&root, &texts).await;
        let post = root.open("srv/lab", OpenFlags::READ).await.unwrap();
        assert_eq!(text(&post).await, "/shm/disk\n");
        serves(&env, &below, &dir).await;
        let mux = root.open("mux/ctl", OpenFlags::WRITE).await.unwrap();
        mux.write(0, b"mount -c /srv/lab /n/lab").await.unwrap();
        let file = root.walk("n/lab").await.unwrap().create("f", RDWR, 0o644, NOGID).await.unwrap();
        file.write(0, b"here").await.unwrap();
        drop(file);
        let mounts = text(&root.open("mux/mounts", OpenFlags::READ).await.unwrap()).await;
        assert!(mounts.contains("/srv/lab /n/lab\n"), "{mounts}");
        // After the unmount and a new guest, another program gets the files directly.
        mux.write(0, b"unmount /n/lab").await.unwrap();
        while status(&dir).await.starts_with("Established") {}
        serves(&env, &below, &dir).await;
        let (_ctl, _) = made(&root, &["connect /srv/lab".into(), announce(&above)]).await;
        let channel = Channel::dial(&above, Waits::Adaptive, MINUTE).await.unwrap();
        let (client, driver) = Client::connect(Asking::new(channel), Options::default()).await.unwrap();
        env.spawn(Box::pin(async move { drop(driver.await) }));
        let there = client.attach("", NOUID, "").await.unwrap();
        let file = there.create("g", RDWR, 0o644, NOGID).await.unwrap();
        file.write(0, b"there").await.unwrap();
        assert_eq!(file.read(0, 10).await.unwrap(), &b"there"[..]);
        // Without its channel the post is gone; and such posts cannot be created through files.
        ctl.write(0, b"hangup").await.unwrap();
        assert!(mux.write(0, b"mount /srv/lab /n/lab").await.is_err());
        assert!(root.walk("srv/lab").await.is_err());
        let post =
            root.walk("srv").await.unwrap().create("lab", OpenFlags::WRITE, 0o644, NOGID).await.unwrap();
        let said = post.write(0, b"/shm/disk").await.unwrap_err().to_string();
        assert!(said.contains("`/shm/disk` is no address"), "{said}");
    })
    .unwrap();
    assert_eq!(server.stop().0, Some(0));
}

#[test]
fn bytes_go_through_the_mux_and_a_server_that_is_killed_is_noticed() {
    let server = served();
    nine_net::rt::block_on(async |env| {
        let root = root(&env, &server).await;
        let at = server.dir.path().join("bytes");
        let (_ctl, dir) = made(&root, &["kind bytes".into(), format!("announce {}", at.display())]).await;
        let data = dir.open("data", RDWR).await.unwrap();
        let mut guest = Channel::dial(&at, Waits::Adaptive, MINUTE).await.unwrap();
        data.write(0, b"hello").await.unwrap();
        let mut piece = vec![0; nine_net::shm::MOST];
        let taken = std::future::poll_fn(|cx| guest.poll_take(cx, &mut piece)).await.unwrap().unwrap();
        assert_eq!(piece[..taken.len], *b"hello");
        server.signal(rustix::process::Signal::KILL);
        let end = std::future::poll_fn(|cx| guest.poll_take(cx, &mut piece)).await.unwrap();
        assert!(end.is_none());
        assert!(data.read(0, 10).await.unwrap_err().is_disconnect());
    })
    .unwrap();
}

/// Returns whether a command with this setting sleeps while its server does not answer, according to the channel's
/// memory. Returns false if it first uses a third of a second of processor time.
fn sleeps(waits: &str) -> bool {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().join("s");
    nine_net::rt::block_on(async |env| {
        let mut listener = Listener::bind(&Addr::Shm { path: at.clone() }).unwrap();
        let mut command = ninefold(dir.path());
        command.args(["ls", &format!("shm:{}", at.display())]).env("NINEFOLD_WAITS", waits);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let socket = listener.accept(&env).await.unwrap();
        let layout = Layout::new(Kind::GuestAsks, 64, 1, "");
        let mut channel = Channel::give(layout, Waits::Poll, socket).unwrap();
        poll_fn(|cx| channel.poll_join(cx)).await.unwrap();
        let mut asked = vec![0; MOST];
        poll_fn(|cx| channel.poll_take(cx, &mut asked)).await.unwrap().expect("a Tversion");
        let (memory, _) = channel.place(Place::default()).unwrap();
        let says = || {
            let mut word = [0; 4];
            memory.read(GUEST_SLEEPS, &mut word);
            word != [0; 4]
        };
        let begun = ticks(child.id());
        let sleeps = loop {
            if says() {
                break true;
            }
            if ticks(child.id()) > begun + 33 {
                break false;
            }
            std::thread::yield_now();
        };
        child.kill().unwrap();
        child.wait().unwrap();
        sleeps
    })
    .unwrap()
}

/// Offset of the guest's sleep flag (docs/channels.md, "Memory").
const GUEST_SLEEPS: usize = 320;

/// Returns the processor time of a process, hundredths of a second.
fn ticks(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let behind = stat.rsplit_once(')').unwrap().1;
    behind.split_whitespace().skip(11).take(2).map(|n| n.parse::<u64>().unwrap()).sum()
}

#[test]
fn how_a_command_waits_is_said_by_the_environment() {
    assert_eq!(["poll", "interrupt", "adaptive"].map(sleeps), [false, true, true]);
    let dir = tempfile::tempdir().unwrap();
    let wrong =
        ninefold(dir.path()).args(["ls", "shm:/none"]).env("NINEFOLD_WAITS", "nicely").output().unwrap();
    let said = String::from_utf8_lossy(&wrong.stderr);
    assert!(wrong.status.code() == Some(2) && said.contains("nicely") && said.contains("adaptive"), "{said}");
}
