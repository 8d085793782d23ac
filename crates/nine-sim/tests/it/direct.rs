//! Files of servers in this process, accessed by direct calls: they behave as by messages, through any number of muxes.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;

use nine_io::client::{self, Client, Dialled, File, Net};
use nine_io::server::{Anonymous, Core, FileServer, Gate, Service};
use nine_io::{Payload, client::Result};
use nine_mux::{As, Flags, Local, MAIN, Mux, Owner};
use nine_net::{Env, Peer, Proof, rt};
use nine_proto::{Errno, NOUID, OpenFlags};
use nine_servers::net::{Policy, Tcp};
use nine_servers::{Disk, DiskOptions, Ram};

/// Returns a client of a server in this process.
async fn client(env: rt::Real, server: Arc<dyn FileServer>) -> Client {
    let gate = Gate { anonymous: Anonymous::Trusted, ..Gate::default() };
    let service = Service { own: true, ..Service::new(server, gate, Core::default()) };
    let peer = Peer { addr: "pipe".into(), proof: Proof::None };
    Client::within(&env, &service, peer, client::Options::default()).await.expect("connected")
}

/// Returns the root of a server behind this many muxes.
async fn behind(env: rt::Real, muxes: usize, server: Arc<dyn FileServer>) -> File {
    let mut server = server;
    for _ in 0..muxes {
        let root = Local::scratch("root", Arc::new(Ram::new(1 << 20)), Core::default());
        let mux = Mux::new(root, nine_servers::disk::names());
        env.spawn(Box::pin(mux.run(env, &[])));
        let user = As::User { name: "u".into(), uid: None };
        let local = Local::server("s", server, Core::default());
        mux.space(MAIN, Owner::default())
            .mount(local, "", &user, "/", Flags::REPLACE)
            .await
            .expect("mounted");
        server = Arc::new(mux);
    }
    client(env, server).await.attach("u", NOUID, "").await.expect("attached")
}

fn network(env: rt::Real) -> Arc<dyn FileServer> {
    let modules = nine_net::modules::modules();
    let (net, driver) =
        nine_servers::Net::new(vec![Arc::new(Tcp)], Policy::loopback(), modules, env.clock(), 100);
    env.spawn(Box::pin(driver));
    Arc::new(net)
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|n| (n * 31 + n / 253) as u8).collect()
}

#[test]
fn a_file_of_a_disk_is_read_without_a_message_and_without_a_copy() {
    let dir = tempfile::tempdir().unwrap();
    let content = bytes(300_000);
    std::fs::write(dir.path().join("f"), &content).unwrap();
    rt::block_on(async |env| {
        for muxes in 0..3 {
            let disk = Disk::open(dir.path(), DiskOptions::default()).unwrap();
            let root = behind(env, muxes, Arc::new(disk)).await;
            let file = root.open("f", OpenFlags::READ).await.unwrap();
            let read = file.read_now(1000, 200_000).expect("a call").unwrap();
            assert!(matches!(&read, Payload::File { .. }), "{muxes} muxes: {read:?}");
            assert!(read.read(200_000).unwrap() == content[1000..201_000]);
            let small = file.read_now(299_990, 4096).expect("a call").unwrap();
            assert!(matches!(&small, Payload::Bytes(bytes) if *bytes == content[299_990..]), "{small:?}");
            assert!(file.read_now(300_000, 10).expect("a call").unwrap().is_empty());
            // By message it is the same file.
            assert!(file.read(1000, 50_000).await.unwrap() == content[1000..51_000]);
            // A file that is not open for reading is not read. A directory is read by message.
            let write = root.open("f", OpenFlags::WRITE).await.unwrap();
            assert!(write.read_now(0, 10).is_none());
            assert_eq!(write.read(0, 10).await.unwrap_err().errno(), Errno::EBADF);
        }
    })
    .unwrap();
}

/// Returns a call through the network files behind this many muxes, and its other end.
async fn call(env: rt::Real, muxes: usize) -> (Dialled, TcpStream, File) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let root = behind(env, muxes, network(env)).await;
    let net = Net::new(root.walk("").await.unwrap());
    let to = format!("tcp!127.0.0.1!{}", listener.local_addr().unwrap().port());
    let dialled = net.dial(&to).await.unwrap();
    assert!(dialled.data.is_called() && !dialled.ctl.is_called());
    (dialled, listener.accept().unwrap().0, root)
}

#[test]
fn what_is_written_in_parts_arrives_in_their_order_though_the_reader_is_slow() {
    let dir = tempfile::tempdir().unwrap();
    let content = bytes(4_000_000);
    std::fs::write(dir.path().join("f"), &content).unwrap();
    rt::block_on(async |env| {
        for muxes in [0, 1, 2] {
            let disk = Disk::open(dir.path(), DiskOptions::default()).unwrap();
            let file = behind(env, muxes, Arc::new(disk)).await.open("f", OpenFlags::READ).await.unwrap();
            let (call, mut other, _root) = call(env, muxes).await;
            let mut parts = vec![
                Payload::from(b"head".to_vec()),
                Payload::EMPTY,
                file.read_now(5, 900_000).expect("a call").unwrap(),
                file.read_now(900_005, 900_000).expect("a call").unwrap(),
                Payload::from(b"mid".to_vec()),
                file.read_now(0, 20_000).expect("a call").unwrap(),
                Payload::from(b"tail".to_vec()),
            ];
            let expected =
                [&b"head"[..], &content[5..1_800_005], b"mid", &content[..20_000], b"tail"].concat();
            let reader = thread::spawn(move || {
                let mut came = vec![0; expected.len()];
                for piece in came.chunks_mut(100_000) {
                    thread::yield_now();
                    other.read_exact(piece).unwrap();
                }
                assert!(came == expected, "{muxes} muxes");
                other
            });
            call.data.write_payloads(0, &mut parts).await.unwrap();
            assert!(parts.is_empty());
            drop(reader.join().unwrap());
        }
    })
    .unwrap();
}

/// Reads text from the data file.
async fn text(data: &File) -> Result<String> {
    let read = data.read_payload(0, 100).await?;
    Ok(String::from_utf8(read.read(100).unwrap().to_vec()).unwrap())
}

#[test]
fn who_waits_to_read_is_woken_by_bytes_and_by_the_end() {
    rt::block_on(async |env| {
        for muxes in [0, 1] {
            let (call, mut other, _root) = call(env, muxes).await;
            // Alternately by a direct call and by a message. Neither disturbs the other.
            for turn in 0..4 {
                let sender = thread::spawn(move || {
                    other.write_all(b"come").unwrap();
                    other
                });
                match turn % 2 {
                    0 => assert_eq!(text(&call.data).await.unwrap(), "come"),
                    _ => assert_eq!(call.data.read(0, 100).await.unwrap(), "come"),
                }
                other = sender.join().unwrap();
            }
            let closer = thread::spawn(move || drop(other));
            assert_eq!(text(&call.data).await.unwrap(), "");
            closer.join().unwrap();
        }
        // Hung up by the other file of the same conversation, while a call waits.
        let (call, other, _root) = call(env, 1).await;
        let waits = text(&call.data);
        let hangs = call.hangup();
        let (read, hung) = futures_util::future::join(waits, hangs).await;
        hung.unwrap();
        assert_eq!(read.unwrap(), "");
        let mut late = vec![Payload::from(b"x".to_vec())];
        assert!(call.data.write_payloads(0, &mut late).await.is_err() && late.len() == 1);
        drop(other);
    })
    .unwrap();
}

#[test]
fn a_file_that_becomes_shorter_is_an_error_and_nothing_stands_for_the_rest() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f");
    std::fs::write(&path, bytes(100_000)).unwrap();
    rt::block_on(async |env| {
        let disk = Disk::open(dir.path(), DiskOptions::default()).unwrap();
        let file = behind(env, 1, Arc::new(disk)).await.open("f", OpenFlags::READ).await.unwrap();
        let (call, mut other, _root) = call(env, 1).await;
        let mut parts = vec![file.read_now(0, 100_000).expect("a call").unwrap()];
        std::fs::File::options().write(true).open(&path).unwrap().set_len(40_000).unwrap();
        let error = call.data.write_payloads(0, &mut parts).await.unwrap_err();
        assert!(error.to_string().contains("shorter"), "{error}");
        drop(call);
        let (ended, ends) = futures_util::future::abortable(std::future::pending::<()>());
        let reader = thread::spawn(move || {
            let mut came = Vec::new();
            let read = other.read_to_end(&mut came);
            ends.abort();
            read.map(|_| came)
        });
        // Dropped objects are destroyed when other tasks run.
        let _ = ended.await;
        let came = reader.join().unwrap().unwrap();
        assert!(came.len() <= 40_000 && came == bytes(100_000)[..came.len()]);
    })
    .unwrap();
}

#[test]
fn where_a_module_is_pushed_ranges_of_files_go_through_it() {
    let dir = tempfile::tempdir().unwrap();
    let content = bytes(700_000);
    std::fs::write(dir.path().join("f"), &content).unwrap();
    rt::block_on(async |env| {
        let disk = Disk::open(dir.path(), DiskOptions::default()).unwrap();
        let file = behind(env, 1, Arc::new(disk)).await.open("f", OpenFlags::READ).await.unwrap();
        // Two conversations of one network, connected to each other.
        let net = Net::new(behind(env, 1, network(env)).await);
        let announced = net.announce("tcp!127.0.0.1!0").await.unwrap();
        let to = format!("tcp!{}", announced.local().await.unwrap());
        let dials = net.dial(&to);
        let accepts = async { announced.listen().await.unwrap().accept().await.unwrap() };
        let (dialled, accepted) = futures_util::future::join(dials, accepts).await;
        let dialled = dialled.unwrap();
        for ctl in [&dialled.ctl, &accepted.ctl] {
            ctl.write(0, b"push zstd").await.unwrap();
        }
        let mut parts =
            vec![Payload::from(b"head".to_vec()), file.read_now(0, 700_000).expect("a call").unwrap()];
        let writes = dialled.data.write_payloads(0, &mut parts);
        let reads = async {
            let mut came = Vec::new();
            while came.len() < 4 + content.len() {
                came.extend_from_slice(
                    &accepted.data.read_payload(0, 1 << 20).await.unwrap().read(1 << 20).unwrap(),
                );
            }
            came
        };
        let (written, came) = futures_util::future::join(writes, reads).await;
        written.unwrap();
        assert!(came[..4] == *b"head" && came[4..] == content);
    })
    .unwrap();
}
