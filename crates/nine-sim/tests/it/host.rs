//! A disk server whose host fails: full, read-only, out of descriptors, or at random. The client gets the error in its
//! dialect, the server continues, and nothing is leaked.
//!
//! These worlds use the real runtime, because the disk server's threads are real. Random numbers still come from a
//! seed.

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;

use nine_io::client::{Client, Error, File, Options, Result};
use nine_io::server::{Core, Gate, Service};
use nine_net::{Env, Peer, Proof, Socket, rt};
use nine_proto::{Dialect, Errno, GetMask, NOGID, NOUID, OpenFlags, SetAttr};
use nine_servers::{Disk, DiskOptions};
use nine_sim::{Faulty, Rng, seeds};

/// Returns a client's root on a served scratch directory, and the host below.
async fn serve(env: rt::Real, dir: &Path, dialect: Dialect, seed: u64) -> (File, Faulty) {
    let host = Faulty::new(Rng::new(seed));
    let disk = Disk::with_host(host.clone(), dir, DiskOptions::default()).expect("a directory");
    let service = Service::new(Arc::new(disk), Gate::default(), Core::default());
    let (ours, theirs) = UnixStream::pair().expect("a pair");
    let socket = |end: UnixStream| {
        end.set_nonblocking(true).expect("non-blocking");
        let peer = Peer { addr: "pair".into(), proof: Proof::Unix { uid: 0, gid: 0 } };
        Socket::from_parts(end.into(), peer).expect("registered")
    };
    env.spawn(Box::pin(service.connect(Box::new(socket(theirs)))));
    let options = Options { dialects: vec![dialect], ..Options::default() };
    let (client, driver) = Client::connect(socket(ours), options).await.expect("a server");
    env.spawn(Box::pin(async { drop(driver.await) }));
    (client.attach("", NOUID, "").await.expect("a root"), host)
}

fn world<R>(main: impl AsyncFnOnce(rt::Real, &Path) -> R) -> R {
    let dir = tempfile::tempdir().expect("a scratch directory");
    rt::block_on(async |env| main(env, dir.path()).await).expect("a runtime")
}

fn refused(result: Result<impl Sized>) -> (Errno, String) {
    match result {
        Err(Error::Remote(error) | Error::Walk { error, .. }) => (error.errno, error.ename().to_owned()),
        Err(error) => panic!("not the server's word: {error}"),
        Ok(_) => panic!("it did not fail"),
    }
}

#[test]
fn a_disk_that_fills_up_keeps_what_it_took_and_says_so_in_every_dialect() {
    for dialect in [Dialect::L, Dialect::U, Dialect::P2000] {
        world(async |env, dir| {
            let (root, host) = serve(env, dir, dialect, 0).await;
            let file = root.create("f", OpenFlags::RDWR, 0o644, NOGID).await.expect("a file");
            let data: Vec<u8> = (0..300_000u32).map(|i| i as u8).collect();
            host.plan().room = 100_000;
            // One message at a time: with several in flight, a later one may take the last space.
            for (n, piece) in data.chunks(30_000).enumerate() {
                let done = file.write_all_at(30_000 * n as u64, piece).await;
                if n == 3 {
                    let (errno, text) = refused(done);
                    assert_eq!((errno, &*text), (Errno::ENOSPC, "No space left on device"));
                    break;
                }
                done.expect("room");
            }
            let there = std::fs::read(dir.join("f")).expect("the file");
            assert!(there[..] == data[..100_000]);
            // There is space again: the same fid continues.
            host.plan().room = u64::MAX;
            file.write_all_at(0, &data).await.expect("room");
            assert_eq!(std::fs::read(dir.join("f")).expect("the file"), data);
        });
    }
}

#[test]
fn a_read_only_host_and_one_without_descriptors_say_what_they_are() {
    for dialect in [Dialect::L, Dialect::U, Dialect::P2000] {
        world(async |env, dir| {
            std::fs::write(dir.join("f"), "content").expect("a file");
            let (root, host) = serve(env, dir, dialect, 0).await;
            host.plan().read_only = true;
            let made = root.create("g", OpenFlags::RDWR, 0o644, NOGID).await;
            assert_eq!(refused(made).0, Errno::EROFS);
            assert_eq!(refused(root.mkdir("d", 0o755, NOGID).await).0, Errno::EROFS);
            assert_eq!(refused(root.unlink("f", false).await).0, Errno::EROFS);
            host.plan().read_only = false;
            host.plan().errnos = &[rustix::io::Errno::MFILE];
            host.plan().one_in = 1;
            assert_eq!(refused(root.open("f", OpenFlags::READ).await).0, Errno::EMFILE);
            host.plan().one_in = 0;
            let mut into = [0; 7];
            let file = root.open("f", OpenFlags::READ).await.expect("descriptors again");
            assert_eq!((file.read_at(0, &mut into).await.expect("bytes"), &into), (7, b"content"));
        });
    }
}

#[test]
fn a_file_that_vanishes_under_a_fid_is_gone_for_the_path_and_there_for_the_open() {
    world(async |env, dir| {
        std::fs::write(dir.join("f"), "content").expect("a file");
        let (root, _) = serve(env, dir, Dialect::L, 0).await;
        let open = root.open("f", OpenFlags::READ).await.expect("a file");
        std::fs::remove_file(dir.join("f")).expect("removed");
        let attr = open.getattr(GetMask::BASIC).await.expect("the open file");
        assert_eq!((attr.size, attr.nlink), (7, 0));
        let mut into = [0; 7];
        assert_eq!(open.read_at(0, &mut into).await.expect("bytes"), 7);
        assert_eq!(refused(root.walk("f").await).0, Errno::ENOENT);
    });
}

/// After any failure the client gets one of the host's errnos, the connection survives, and no descriptor is leaked.
#[test]
fn a_host_that_fails_at_random_is_survived() {
    use rustix::io::Errno as Host;
    const GIVEN: &[Host] = &[Host::IO, Host::NOSPC, Host::MFILE, Host::NOMEM, Host::ACCESS, Host::DQUOT];
    for seed in seeds(12) {
        let dialect = [Dialect::L, Dialect::U, Dialect::P2000][seed as usize % 3];
        world(async |env, dir| {
            let (root, host) = serve(env, dir, dialect, seed).await;
            host.plan().errnos = GIVEN;
            host.plan().one_in = 4;
            let mut rng = Rng::new(seed);
            for _ in 0..300 {
                let name = format!("f{}", rng.below(6));
                if let Err(error) = one(&root, &name, &mut rng).await {
                    assert!(!error.is_disconnect(), "{error}");
                }
            }
            assert!(host.plan().failed > 50, "the faults were there");
            host.plan().one_in = 0;
            let file = root.open_or_create("after", OpenFlags::RDWR | OpenFlags::TRUNC, 0o644).await;
            let file = file.expect("it works again");
            file.write_all_at(0, b"fine").await.expect("room");
            file.close().await.expect("closed");
            assert_eq!(std::fs::read(dir.join("after")).expect("the file"), b"fine");
        });
    }
}

/// Runs one random operation of a user.
async fn one(root: &File, name: &str, rng: &mut Rng) -> Result<()> {
    match rng.below(8) {
        0 => root.mkdir(name, 0o755, NOGID).await.map(drop),
        1 => root.unlink(name, rng.one_in(2)).await,
        2 => root.rename(name, root, format!("g{}", rng.below(6))).await,
        3 => {
            let mut entries = root.read_dir().await?;
            while let Some(entry) = entries.next().await {
                entry?;
            }
            Ok(())
        }
        4 => root.walk(name).await?.getattr(GetMask::BASIC).await.map(drop),
        5 => {
            let set = SetAttr { size: Some(10), mode: Some(0o600), ..SetAttr::default() };
            root.walk(name).await?.setattr(&set).await
        }
        _ => {
            let flags = OpenFlags::RDWR;
            let file = root.open_or_create(name, flags, 0o644).await?;
            file.write_all_at(0, &[7; 5000]).await?;
            file.fsync(false).await?;
            let mut into = [0; 5000];
            file.read_at(0, &mut into).await?;
            file.close().await
        }
    }
}
