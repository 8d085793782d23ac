//! Hostile clients, and honest ones behind the same mux.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use futures_util::future::{join, join_all};
use nine_io::server::FLOOR;
use nine_mux::Flags;
use nine_net::Env;
use nine_proto::msg::{Names, Tmsg};
use nine_proto::{Dialect, Errno, Fid, OpenFlags};
use nine_sim::{Shape, World};

use crate::mux::puppet::{Act, Puppet};
use crate::mux::upstreams::{between, bystander};
use crate::mux::world::{Muxed, cat, owner, ram};

fn read(offset: u64, count: u32) -> Tmsg<'static> {
    Tmsg::Read { fid: Fid(2), offset, count }
}

#[test]
fn a_tag_in_use_is_refused_and_its_first_request_goes_on() {
    let world = World::new(0);
    let m = Muxed::new(&world);
    world.run(async move {
        let puppet = Puppet::new(
            &m,
            |message, _| if let Tmsg::Read { .. } = message { Act::Hold } else { Act::Honest },
        );
        between(&m, &puppet).await;
        let mut raw = m.raw().await;
        let names = Names::Slice(&[b"bad", b"f"]);
        assert!(raw.call(1, Tmsg::Walk { fid: Fid(1), newfid: Fid(2), names }).await.starts_with("Rwalk"));
        assert!(raw.call(1, Tmsg::Lopen { fid: Fid(2), flags: 0 }).await.starts_with("Rlopen"));
        raw.send(5, read(0, 10)).await.unwrap();
        puppet.until(&m.env, |books| books.held.len() == 1).await;
        assert!(raw.call(5, read(0, 10)).await.starts_with("Rlerror tag 5"));
        puppet.answer();
        assert!(raw.reply().await.starts_with("Rread tag 5"));
        assert_eq!(puppet.count("Tread"), 1);
    });
}

/// A client never reads an answer, and requests as much as it can, of a server that answers at once and of one that
/// never does.
#[test]
fn who_asks_and_never_reads_is_held_up_alone() {
    for silent in [false, true] {
        let world = World::new(0);
        let m = Muxed::new(&world);
        world.run(async move {
            let puppet = Puppet::new(&m, |_, _| Act::Honest);
            between(&m, &puppet).await;
            puppet.does(move |message, _| match message {
                Tmsg::Read { .. } if silent => Act::Silent,
                _ => Act::Honest,
            });
            for _ in 0..5 {
                let mux = m.clone();
                m.env.spawn(Box::pin(async move {
                    let mut raw = mux.raw().await;
                    let names = Names::Slice(&[b"bad", b"f"]);
                    raw.call(1, Tmsg::Walk { fid: Fid(1), newfid: Fid(2), names }).await;
                    raw.call(1, Tmsg::Lopen { fid: Fid(2), flags: 0 }).await;
                    for tag in 0..5000 {
                        if raw.send(tag, read(0, 60_000)).await.is_err() {
                            return;
                        }
                    }
                    std::future::pending::<()>().await;
                }));
            }
            m.env.sleep_until(m.env.now() + Duration::from_secs(1)).await;
            bystander(&m).await;
            // The same server still has room for others.
            puppet.does(|_, _| Act::Honest);
            let (_client, root) = m.client(Dialect::L).await;
            assert_eq!(cat(&root, "bad/f").await, Ok("hello".into()));
            assert!(m.core.borrowed() < 5 * 32 * FLOOR + (64 << 20), "{}", m.core.borrowed());
            let calls: usize = m
                .mux
                .status()
                .upstreams
                .iter()
                .flat_map(|upstream| &upstream.connections)
                .map(|c| c.calls)
                .sum();
            assert!(calls <= 1024, "{calls}");
        });
    }
}

/// Two thousand walks, opens and listings are in flight while mounts change. Each is answered, with data that was there
/// or with an error that it is not there.
#[test]
fn requests_in_flight_survive_a_name_space_that_changes() {
    for seed in 0..3 {
        let world = World::new(seed);
        let m = Muxed::new(&world);
        let core = m.core.clone();
        world.run(async move {
            let servers = [
                m.far("one", ram(&[("f", "one"), ("d/g", "g")]).await, Shape::default()),
                m.far("two", ram(&[("f", "two"), ("d/g", "g")]).await, Shape::default()),
            ];
            m.space.mount(servers[0].clone(), "", &owner(), "/n", Flags::REPLACE).await.unwrap();
            let over = Rc::new(Cell::new(false));
            let mut rng = world_rng(seed);
            let changes = async {
                let mut n = 0;
                while !over.get() {
                    let server = servers[rng.below(2)].clone();
                    match rng.below(4) {
                        0 => drop(m.space.unmount(None, "/n").await),
                        1 => drop(m.space.mount(server, "", &owner(), "/n", Flags::REPLACE).await.unwrap()),
                        2 => drop(m.space.mount(server, "", &owner(), "/n", Flags::BEFORE).await.unwrap()),
                        _ => drop(m.space.bind("/n", "/m", Flags::REPLACE).await.unwrap()),
                    }
                    n += 1;
                }
                n
            };
            let m = &m;
            let work = async {
                let mut clients = Vec::new();
                for dialect in [Dialect::L, Dialect::U, Dialect::P2000, Dialect::L] {
                    clients.push(m.client(dialect).await);
                }
                let all = clients.iter().flat_map(|(_, root)| {
                    (0..500usize).map(move |i| async move {
                        // Some at once, some later.
                        m.env.sleep_until(m.env.now() + Duration::from_millis(i as u64 / 20)).await;
                        let path = ["n/f", "m/f", "n/d/g"][i % 3];
                        let file = root.open(path, OpenFlags::READ).await?;
                        file.read(0, 10).await
                    })
                });
                let mut found = 0;
                for read in join_all(all).await {
                    match read {
                        Ok(text) => {
                            assert!([&b"one"[..], b"two", b"g"].contains(&&*text), "{text:?}");
                            found += 1;
                        }
                        Err(error) => assert_eq!(error.errno(), Errno::ENOENT, "{error}"),
                    }
                }
                over.set(true);
                found
            };
            let (changed, found) = join(changes, work).await;
            assert!(changed > 10 && found > 100, "{changed} changes, {found} files");
            m.all_settled().await;
            m.clear().await;
        });
        world.settle();
        assert_eq!((core.connected(), world.tasks()), (1, 3), "the backbone");
    }
}

fn world_rng(seed: u64) -> nine_sim::Rng {
    nine_sim::Rng::new(seed ^ 0xc0ffee)
}
