//! Clients that work on one RAM tree, in every dialect, over links that delay and break; checked with a tree of maps.
//!
//! Each client works in its own directory, so that the oracle knows the expected contents. Reads are cancelled at
//! random moments. When all clients are gone, nothing may be left: no fid, no request, no task, no borrowed byte.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use nine_io::client::{Client, Error, File, Options};
use nine_io::server::{Core, Gate, Service};
use nine_net::Env;
use nine_proto::{Dialect, Errno, GetMask, NOGID, NOUID, OpenFlags, SetAttr};
use nine_servers::Ram;
use nine_sim::{Rng, Shape, SimEnv, World, link, seeds};

/// Expected contents of a client's directory.
type Oracle = BTreeMap<Vec<u8>, Entry>;

#[derive(Clone, Debug, PartialEq)]
enum Entry {
    File(Vec<u8>),
    Dir,
}

const CLIENTS: usize = 3;
const STEPS: usize = 60;

#[test]
fn every_dialect_keeps_the_tree_that_the_oracle_keeps() {
    for seed in seeds(40) {
        for dialect in [Dialect::L, Dialect::U, Dialect::P2000] {
            world(seed, dialect);
        }
    }
}

/// The link breaks at some byte: every call fails with a fitting error, and nothing is left on either side.
#[test]
fn a_link_that_breaks_ends_every_call_and_leaves_nothing() {
    for seed in seeds(60) {
        let world = World::new(seed);
        let service = Service::new(Arc::new(Ram::new(64 << 20)), Gate::default(), Core::default());
        let mut rng = world.rng();
        let breaks_after = Some(rng.below(30_000) as u64);
        let (ours, theirs) = link(&world, Shape { breaks_after, piece: 2000, ..Shape::default() });
        world.env().spawn(Box::pin(service.connect(Box::new(theirs))));
        let env = world.env();
        world.run(async move {
            let options = Options { msize: 4096, ..Options::default() };
            let Ok((client, driver)) = Client::connect(ours, options).await else { return };
            env.spawn(Box::pin(async { drop(driver.await) }));
            let Ok(root) = client.attach("u", NOUID, "").await else { return };
            let mut n = 0;
            let error = loop {
                n += 1;
                let file = match root.create(format!("f{n}"), OpenFlags::RDWR, 0o644, NOGID).await {
                    Ok(file) => file,
                    Err(error) => break error,
                };
                if let Err(error) = file.write_all_at(0, &[7; 10_000]).await {
                    break error;
                }
            };
            assert!(error.is_disconnect() && client.dead().is_some(), "{error}");
            assert!(root.walk("f1").await.is_err_and(|error| error.is_disconnect()));
        });
        world.settle();
        assert_eq!(
            (world.tasks(), service.core.connected(), service.core.borrowed()),
            (0, 0, 0),
            "seed {seed}"
        );
    }
}

fn world(seed: u64, dialect: Dialect) {
    let world = World::new(seed);
    let service = Service::new(Arc::new(Ram::new(64 << 20)), Gate::default(), Core::default());
    let ended = Rc::new(Cell::new(0));
    for i in 0..CLIENTS {
        let mut rng = world.rng();
        let shape = Shape {
            delay: Duration::from_micros(rng.below(50_000) as u64),
            window: 1000 + rng.below(100_000),
            piece: 1 + rng.below(5000),
            ..Shape::default()
        };
        let (ours, theirs) = link(&world, shape);
        world.env().spawn(Box::pin(service.connect(Box::new(theirs))));
        let (env, ended) = (world.env(), ended.clone());
        world.env().spawn(Box::pin(async move {
            let options = Options { dialects: vec![dialect], msize: 4096, ..Options::default() };
            let (client, driver) = Client::connect(ours, options).await.unwrap();
            env.spawn(Box::pin(async { drop(driver.await) }));
            assert_eq!(client.dialect(), dialect);
            {
                let root = client.attach("u", NOUID, "").await.unwrap();
                work(&env, &root, format!("client{i}").as_bytes(), &mut rng).await;
            }
            // Orphans and background clunks.
            while client.fids() > 0 || client.under_way().0 > 0 {
                env.sleep_until(env.now() + Duration::from_millis(10)).await;
            }
            ended.set(ended.get() + 1);
        }));
    }
    let (env, all) = (world.env(), ended.clone());
    world.run(async move {
        while all.get() < CLIENTS {
            env.sleep_until(env.now() + Duration::from_secs(1)).await;
        }
    });
    world.settle();
    assert_eq!((world.tasks(), service.core.connected(), service.core.borrowed()), (0, 0, 0));
}

/// Returns the errno of a result, for the message of a failed assertion.
fn errno(result: Result<impl Sized, Error>) -> Option<Errno> {
    match result {
        Ok(_) => None,
        Err(error) => Some(error.errno()),
    }
}

async fn work(env: &SimEnv, root: &File, name: &[u8], rng: &mut Rng) {
    root.mkdir(name, 0o777, NOGID).await.unwrap();
    let dir = root.walk(name).await.unwrap();
    let mut oracle = Oracle::new();
    for _ in 0..STEPS {
        step(env, &dir, &mut oracle, rng).await;
    }
    check(&dir, &oracle).await;
}

async fn step(env: &SimEnv, dir: &File, oracle: &mut Oracle, rng: &mut Rng) {
    let name = format!("f{}", rng.below(8)).into_bytes();
    let there = oracle.get(&name).cloned();
    match rng.below(9) {
        0 => {
            let made = dir.mkdir(&name, 0o777, NOGID).await;
            assert_eq!(errno(made), there.as_ref().map(|_| Errno::EEXIST));
            oracle.entry(name).or_insert(Entry::Dir);
        }
        1 | 2 => {
            let made = dir.create(&name, OpenFlags::RDWR | OpenFlags::EXCL, 0o666, NOGID).await;
            assert_eq!(errno(made), there.as_ref().map(|_| Errno::EEXIST));
            oracle.entry(name).or_insert(Entry::File(Vec::new()));
        }
        3 | 4 => {
            let Some(Entry::File(content)) = oracle.get_mut(&name) else { return };
            let file = dir.open(&name, OpenFlags::RDWR).await.unwrap();
            let offset = rng.below(content.len() + 100);
            let bytes: Vec<u8> = (0..rng.below(20_000)).map(|_| rng.bits() as u8).collect();
            file.write_all_at(offset as u64, &bytes).await.unwrap();
            file.close().await.unwrap();
            if !bytes.is_empty() {
                content.resize(content.len().max(offset + bytes.len()), 0);
                content[offset..offset + bytes.len()].copy_from_slice(&bytes);
            }
        }
        5 => {
            let Some(Entry::File(content)) = oracle.get_mut(&name) else { return };
            let len = rng.below(content.len() + 50);
            let file = dir.walk(&name).await.unwrap();
            file.setattr(&SetAttr { size: Some(len as u64), ..SetAttr::default() }).await.unwrap();
            content.resize(len, 0);
        }
        6 => {
            let is_dir = there == Some(Entry::Dir);
            let gone = dir.unlink(&name, is_dir).await;
            assert_eq!(errno(gone), if there.is_none() { Some(Errno::ENOENT) } else { None });
            oracle.remove(&name);
        }
        7 => {
            let new = format!("f{}", rng.below(8)).into_bytes();
            if there.is_none() || oracle.contains_key(&new) {
                return;
            }
            dir.rename(&name, dir, &new).await.unwrap();
            let entry = oracle.remove(&name).expect("it is there");
            oracle.insert(new, entry);
        }
        _ => {
            // Cancelled at some moment. It must leave nothing behind.
            let patience = env.now() + Duration::from_micros(rng.below(200_000) as u64);
            let mut timer = env.sleep_until(patience);
            let mut read = pin!(async {
                let file = dir.open(&name, OpenFlags::READ).await?;
                let mut into = vec![0; 30_000];
                file.read_at(0, &mut into).await.map(|n| (n, into))
            });
            let done = poll_fn(|cx| match read.as_mut().poll(cx) {
                Poll::Ready(result) => Poll::Ready(Some(result)),
                Poll::Pending => timer.as_mut().poll(cx).map(|()| None),
            });
            if let (Some(Ok((n, into))), Some(Entry::File(content))) = (done.await, &there) {
                assert_eq!(into[..n], content[..content.len().min(30_000)]);
            }
        }
    }
}

/// Checks names, types, lengths and contents.
async fn check(dir: &File, oracle: &Oracle) {
    let mut names = Vec::new();
    let mut entries = dir.read_dir().await.unwrap();
    while let Some(entry) = entries.next().await {
        names.push(entry.unwrap().name.to_vec());
    }
    names.sort();
    assert_eq!(names, oracle.keys().cloned().collect::<Vec<_>>());
    for (name, entry) in oracle {
        let file = dir.walk(name).await.unwrap();
        let attr = file.getattr(GetMask::BASIC).await.unwrap();
        match entry {
            Entry::Dir => assert!(attr.qid.is_dir()),
            Entry::File(content) => {
                assert_eq!(attr.size, content.len() as u64);
                let file = file.open_here(OpenFlags::READ).await.unwrap();
                let mut read = vec![0; content.len() + 1];
                let n = file.read_at(0, &mut read).await.unwrap();
                assert!(read[..n] == content[..], "the content of {}", String::from_utf8_lossy(name));
            }
        }
    }
}
