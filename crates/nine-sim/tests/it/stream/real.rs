//! Streams between sockets of this machine and the disk server, whose host fails: sendfile and splice cannot be tested
//! on simulated links.
//!
//! These worlds use the real runtime. Random numbers still come from a seed.

use std::io::{self, IoSlice};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::task::{Context, Poll};

use nine_io::client::{Client, Dial, Dialing, Direction, File, HEAD, Options};
use nine_io::server::{Core, FileServer, Gate, Service, Streams};
use nine_mux::{As, Boxed, Flags, Local, Mux, Owner, Server, Spawn};
use nine_net::{Env, Peer, Proof, Socket, Transport, rt};
use nine_proto::{Dialect, Errno, NOGID, NOUID, Numeric, OpenFlags};
use nine_servers::{Disk, DiskOptions, Ram};
use nine_sim::{Faulty, Rng};

use crate::stream::talk::{Data, Talk};
use crate::stream::world::pattern;

/// An address with sockets: a dial returns one end of a pair.
#[derive(Clone)]
struct Door {
    env: rt::Real,
    service: Service,
    /// Bytes are copied through memory, as with TLS.
    plain: bool,
}

/// A socket without splice and sendfile.
struct Plain(Socket);

impl Transport for Plain {
    fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        self.0.poll_read(cx, buf)
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        self.0.poll_write(cx, bufs)
    }

    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.poll_close(cx)
    }

    fn peer(&self) -> &Peer {
        self.0.peer()
    }
}

impl Door {
    fn new(env: rt::Real, server: Arc<dyn FileServer>, plain: bool) -> Self {
        let service = Service::new(server, Gate::default(), Core::default());
        Self { env, service: service.with_streams(Streams::new("tcp!*!564", env.clock())), plain }
    }

    fn connect(&self) -> Box<dyn Transport> {
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        let socket = |end: UnixStream| {
            end.set_nonblocking(true).expect("non-blocking");
            let peer = Peer { addr: "pair".into(), proof: Proof::Unix { uid: 0, gid: 0 } };
            Socket::from_parts(end.into(), peer).expect("registered")
        };
        let (ours, theirs) = (socket(ours), socket(theirs));
        let (service, env) = (self.service.clone(), self.env);
        let theirs: Box<dyn Transport> = if self.plain { Box::new(Plain(theirs)) } else { Box::new(theirs) };
        env.spawn(Box::pin(async move { service.welcome(env, theirs).await }));
        if self.plain { Box::new(Plain(ours)) } else { Box::new(ours) }
    }

    async fn client(&self) -> (Client, File) {
        let options = Options { dialects: vec![Dialect::L], ..Options::default() };
        let options = options.with_streams(Arc::new(self.clone()));
        let (client, driver) = Client::connect(self.connect(), options).await.expect("a server");
        self.env.spawn(Box::pin(async { drop(driver.await) }));
        let root = client.attach("", NOUID, "").await.expect("a root");
        (client, root)
    }
}

impl Dial for Door {
    fn dial(&self, _: &str, _: &str) -> Dialing {
        let ours = self.connect();
        Box::pin(async { Ok(ours) })
    }
}

impl nine_mux::Dial for Door {
    fn dial(&self, _: &dyn Spawn) -> Boxed<io::Result<Box<dyn Transport>>> {
        let ours = self.connect();
        Box::pin(async { Ok(ours) })
    }
}

fn world<R>(main: impl AsyncFnOnce(rt::Real, &Path) -> R) -> R {
    let dir = tempfile::tempdir().expect("a scratch directory");
    rt::block_on(async |env| main(env, dir.path()).await).expect("a runtime")
}

fn disk(dir: &Path) -> (Arc<Disk<Faulty>>, Faulty) {
    let host = Faulty::new(Rng::new(0));
    (Arc::new(Disk::with_host(host.clone(), dir, DiskOptions::default()).expect("a directory")), host)
}

#[test]
fn a_disk_that_fills_up_under_a_stream_is_told_with_what_it_has_taken() {
    for plain in [false, true] {
        for room in [0, 1, 4096, 500_001] {
            world(async |env, dir| {
                let (disk, host) = disk(dir);
                let door = Door::new(env, disk, plain);
                let bytes = pattern(1_500_000);
                std::fs::write(dir.join("f"), "").expect("a file");
                let mut talk = Talk::new(door.connect()).await;
                talk.open(2, "f", 1).await;
                let token = talk.stream(2, false, 0).await.unwrap();
                host.plan().room = room;
                let mut data = Data::shown(door.connect(), &token).await;
                let tag = talk.begin_close(2, bytes.len() as u64).await;
                // The server may stop accepting.
                drop(data.write(&bytes).await);
                let (count, errno, text) = talk.verdict(tag).await.unwrap();
                assert_eq!((errno, &*text), (Errno::ENOSPC.0, "No space left on device"));
                let there = std::fs::read(dir.join("f")).expect("the file");
                let stored = count as usize;
                assert!(there.len() >= stored && there[..stored] == bytes[..stored]);
                // Through a pipe data is stored in order. By offset, a later write may have taken the last space.
                assert!(count == room || plain && count < room, "{count} of {room}");
                // There is space again: continue from there.
                host.plan().room = u64::MAX;
                let token = talk.stream(2, false, count).await.unwrap();
                let mut data = Data::shown(door.connect(), &token).await;
                data.write(&bytes[stored..]).await.unwrap();
                data.close().await;
                let rest = (bytes.len() - stored) as u64;
                assert_eq!(talk.close(2, rest).await, Ok((rest, 0, String::new())));
                assert!(std::fs::read(dir.join("f")).expect("the file") == bytes);
                talk.clunk(2).await.unwrap();
                assert_eq!(door.service.core.borrowed(), 0);
            });
        }
    }
}

#[test]
fn a_file_that_becomes_shorter_while_it_is_sent_is_no_whole_file() {
    for (plain, len) in [(false, 3 << 20), (true, 3 << 20), (false, 2_500_001), (true, 2_500_001)] {
        world(async |env, dir| {
            let (disk, _host) = disk(dir);
            let door = Door::new(env, disk, plain);
            let bytes = pattern(12 << 20);
            std::fs::write(dir.join("f"), &bytes).expect("a file");
            let mut talk = Talk::new(door.connect()).await;
            talk.open(2, "f", 0).await;
            let token = talk.stream(2, true, 0).await.unwrap();
            let mut data = Data::shown(door.connect(), &token).await;
            let mut come = data.read(1000).await.unwrap();
            let file = std::fs::File::options().write(true).open(dir.join("f")).expect("the file");
            file.set_len(len).expect("cut");
            let tag = talk.begin_close(2, u64::MAX).await;
            let (rest, _) = data.rest().await;
            come.extend_from_slice(&rest);
            let (count, errno, _) = talk.verdict(tag).await.unwrap();
            assert!(bytes.starts_with(&come) && count >= come.len() as u64);
            // It was longer for a moment, or ends there, or there is an error.
            assert!(errno != 0 || count == come.len() as u64 && count >= len, "{count} of {len}, {errno}");
            // Also if the file is shorter than announced.
            let token = talk.stream(2, true, 0).await.unwrap();
            let mut data = Data::shown(door.connect(), &token).await;
            let (all, _) = data.rest().await;
            assert!(all == bytes[..len as usize]);
            assert_eq!(talk.close(2, u64::MAX).await, Ok((len, 0, String::new())));
        });
    }
}

#[test]
fn a_reader_of_a_real_file_that_stops_early_is_told_exactly_what_was_sent() {
    for (plain, stop) in
        [false, true].into_iter().flat_map(|plain| [(plain, 0), (plain, 1), (plain, 3_000_000)])
    {
        world(async |env, dir| {
            let (disk, _host) = disk(dir);
            let door = Door::new(env, disk, plain);
            let bytes = pattern(12 << 20);
            std::fs::write(dir.join("f"), &bytes).expect("a file");
            let mut talk = Talk::new(door.connect()).await;
            talk.open(2, "f", 0).await;
            let token = talk.stream(2, true, 0).await.unwrap();
            let mut data = Data::shown(door.connect(), &token).await;
            let mut come = data.read(1000).await.unwrap();
            let tag = talk.begin_close(2, stop).await;
            let (rest, ended) = data.rest().await;
            come.extend_from_slice(&rest);
            assert!(ended.is_ok() && bytes.starts_with(&come));
            assert_eq!(talk.verdict(tag).await, Ok((come.len() as u64, 0, String::new())));
        });
    }
}

/// Through a mux: each side uses splice, or copies through memory, depending on its connections.
#[test]
fn a_mux_carries_streams_between_sockets_that_can_be_spliced_and_others() {
    const SIZE: usize = 14 << 20;
    for (front, back) in [(false, false), (false, true), (true, false), (true, true)] {
        world(async |env, dir| {
            let (disk, _host) = disk(dir);
            let far = Door::new(env, disk, back);
            let ram = Arc::new(Ram::new(1 << 20));
            let mux = Mux::new(Local::scratch("ram:", ram, Core::default()), Arc::new(Numeric));
            env.spawn(Box::pin(mux.run(env, &[])));
            let options = Options { dialects: vec![Dialect::L], ..Server::options() };
            let options = options.with_streams(Arc::new(far.clone()));
            let server = Server { options, ..Server::new("far", Arc::new(far.clone())) };
            let space = mux.space(nine_mux::MAIN, Owner::default());
            let owner = As::User { name: "".into(), uid: None };
            space.mount(server, "", &owner, "/", Flags::REPLACE).await.expect("mounted");
            let door = Door::new(env, Arc::new(mux.clone()), front);
            let (client, root) = door.client().await;
            let bytes = pattern(SIZE);
            let file = root.create("f", OpenFlags::RDWR, 0o644, NOGID).await.expect("a file");
            let mut stream = file.stream(0, Direction::Write).await.unwrap();
            for piece in bytes.chunks(300_000) {
                stream.push(piece.to_vec().into()).await.expect("taken");
            }
            assert_eq!(stream.sclose().await.expect("stored"), SIZE as u64);
            assert!(std::fs::read(dir.join("f")).expect("the file") == bytes, "front {front} back {back}");
            let mut stream = file.stream(0, Direction::Read).await.unwrap();
            let mut come = Vec::new();
            while let Some(data) = stream.next().await {
                come.extend_from_slice(&data.expect("bytes"));
            }
            assert!(come == bytes && come.len() > 2 * HEAD as usize, "front {front} back {back}");
            drop(stream);
            file.close().await.expect("closed");
            assert_eq!(client.fids(), 1);
        });
    }
}

/// From and into files of this machine.
#[test]
fn a_client_sends_and_receives_files_whatever_its_connection_can() {
    const SIZE: usize = 10 << 20;
    for plain in [false, true] {
        world(async |env, dir| {
            let (disk, host) = disk(dir);
            let door = Door::new(env, disk, plain);
            let (_client, root) = door.client().await;
            let bytes = pattern(SIZE);
            std::fs::write(dir.join("here"), &bytes).expect("a file");
            let here = std::fs::File::open(dir.join("here")).expect("the file");
            let file = root.create("there", OpenFlags::RDWR, 0o644, NOGID).await.expect("a file");
            let mut stream = file.stream(0, Direction::Write).await.unwrap();
            let mut at = 0;
            loop {
                match stream.send(std::os::fd::AsFd::as_fd(&here), at, 1 << 20).await.expect("sent") {
                    0 => break,
                    n => at += n as u64,
                }
            }
            assert_eq!(stream.sclose().await.expect("stored"), SIZE as u64);
            assert!(std::fs::read(dir.join("there")).expect("the file") == bytes);
            let back = std::fs::File::options();
            let back = back.clone().read(true).write(true).create(true).truncate(true).open(dir.join("back"));
            let back = back.expect("a file");
            let mut stream = file.stream(0, Direction::Read).await.unwrap();
            let mut at = 0;
            while let Some(n) = stream.receive(std::os::fd::AsFd::as_fd(&back), at).await.expect("bytes") {
                at += n as u64;
            }
            assert!(at == SIZE as u64 && std::fs::read(dir.join("back")).expect("the file") == bytes);
            // If a local file cannot be written, the stream ends there, without a gap.
            let mut stream = file.stream(0, Direction::Read).await.unwrap();
            let (mut at, mut failed) = (0, 0);
            for _ in 0..100 {
                let into = if at < 6 << 20 || failed > 0 { &back } else { &here };
                match stream.receive(std::os::fd::AsFd::as_fd(into), at).await {
                    Ok(Some(n)) => {
                        assert!(failed == 0, "it goes on behind what was lost");
                        at += n as u64;
                    }
                    Ok(None) => break,
                    Err(_) => failed += 1,
                }
            }
            assert!(failed > 0 && at < SIZE as u64);
            drop(stream);
            drop(host);
        });
    }
}
