//! Machines that are off or silent, among others: a tree with their mounts must be as fast as without them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use nine_io::client::File;
use nine_mux::{Flags, Wait};
use nine_net::Env;
use nine_proto::msg::{Names, Tmsg};
use nine_proto::{Attr, Dialect, Fid, GetMask, NOGID, OpenFlags};
use nine_sim::{Shape, World};

use crate::mux::puppet::{Act, Puppet, TEXT};
use crate::mux::world::{Muxed, cat, ls, owner, ram, within};

const MOUNTS: usize = 50;
const AWAY: usize = 5;
const WAITS: [Option<Wait>; 3] = [None, Some(Wait::Ever), Some(Wait::AtMost(Duration::from_secs(5)))];
/// The messages at which a server becomes silent.
const SILENT: [fn(&Tmsg<'_>) -> bool; 5] = [
    |_| true,
    |message| !matches!(message, Tmsg::Version { .. }),
    |message| !matches!(message, Tmsg::Version { .. } | Tmsg::Attach { .. }),
    |message| matches!(message, Tmsg::Walk { .. } | Tmsg::Flush { .. }),
    |message| matches!(message, Tmsg::Getattr { .. } | Tmsg::Flush { .. }),
];

/// `ls -l`: reads the names, and then the attributes of each.
async fn long(m: &Muxed, root: &File, limit: Duration) -> Vec<(String, Attr)> {
    within(&m.env, limit, async {
        let names = ls(root, "m").await.unwrap();
        let attrs = names.iter().map(|name| root.walk_attr(format!("m/{name}"), GetMask::BASIC));
        let attrs = join_all(attrs).await;
        names.iter().cloned().zip(attrs.into_iter().map(|attr| attr.unwrap().1)).collect()
    })
    .await
}

fn away(all: &[(String, Attr)]) -> usize {
    all.iter().filter(|(_, attr)| attr.nlink == 0).count()
}

#[test]
fn a_listing_of_fifty_servers_waits_one_second_for_those_that_are_silent_and_then_never() {
    for (seed, &silent) in SILENT.iter().enumerate() {
        for wait in WAITS {
            // From the start, or later.
            for later in [false, true] {
                let world = World::new(seed as u64);
                let m = Muxed::new(&world);
                world.run(fifty(m, silent, wait, later));
            }
        }
    }
}

async fn fifty(m: Muxed, silent: fn(&Tmsg<'_>) -> bool, wait: Option<Wait>, later: bool) {
    let is_off = Arc::new(AtomicBool::new(!later));
    let mut puppets = Vec::new();
    for n in 0..MOUNTS {
        let server = if n % (MOUNTS / AWAY) == 3 {
            let off = is_off.clone();
            let act = move |message: &Tmsg<'_>| match off.load(Ordering::Relaxed) && silent(message) {
                true => Act::Silent,
                false => Act::Honest,
            };
            let puppet = Puppet::new(&m, move |message, _| act(message));
            let server = puppet.server(&m, &format!("p{n}"));
            puppets.push((format!("m/s{n}"), puppet));
            server
        } else {
            m.far(&format!("f{n}"), ram(&[("f1", "hello")]).await, Shape::default())
        };
        m.space
            .mount(nine_mux::Server { wait, ..server }, "", &owner(), &format!("/m/s{n}"), Flags::REPLACE)
            .await
            .unwrap();
    }
    let (_client, root) = m.client(Dialect::L).await;
    if later {
        for (path, _) in &puppets {
            assert_eq!(cat(&root, &format!("{path}/f1")).await.unwrap().as_bytes(), TEXT);
        }
    }
    is_off.store(true, Ordering::Relaxed);
    let first = long(&m, &root, Duration::from_millis(1_200)).await;
    assert_eq!((first.len(), away(&first)), (MOUNTS, AWAY));
    let second = long(&m, &root, Duration::from_millis(50)).await;
    assert_eq!((second.len(), away(&second)), (MOUNTS, AWAY));
    // A client that walks there while the server is away finds it later.
    let (path, puppet) = &puppets[0];
    let dir = root.walk(path).await.unwrap();
    let below = m.soon(Duration::from_secs(60), cat(&root, &format!("{path}/f1"))).await;
    // A first contact has a time limit. A connected server may take long to answer.
    let is_contact = !later && silent(&Tmsg::Walk { fid: Fid(0), newfid: Fid(1), names: Names::Slice(&[]) });
    match below {
        Some(read) => assert!(read.is_err() || !is_contact, "{read:?}"),
        None => assert!(wait == Some(Wait::Ever) || !is_contact, "who does not wait for ever is told"),
    }
    let made = m.soon(Duration::from_secs(60), dir.mkdir("dir", 0o755, NOGID)).await;
    assert!(made.is_none_or(|made| made.is_err()) || !is_contact);
    is_off.store(false, Ordering::Relaxed);
    // The first listing starts another check of them.
    let mut listings = 0;
    while away(&long(&m, &root, Duration::from_millis(1_200)).await) > 0 {
        m.env.sleep_until(m.env.now() + Duration::from_secs(1)).await;
        listings += 1;
        assert!(listings < 40, "they are still away");
    }
    assert_eq!(cat(&root, &format!("{path}/f1")).await.unwrap().as_bytes(), TEXT);
    let before = puppet.count("Tlcreate");
    dir.create("new", OpenFlags::RDWR, 0o644, NOGID).await.unwrap();
    assert_eq!(puppet.count("Tlcreate"), before + 1, "it is made on the server");
    // After its connection has ended, the same fid is used on the next one.
    puppet.hang_up();
    m.env.sleep_until(m.env.now() + Duration::from_secs(3)).await;
    dir.create("again", OpenFlags::RDWR, 0o644, NOGID).await.unwrap();
    assert_eq!(puppet.count("Tlcreate"), before + 2);
    m.space.unmount(None, &format!("/{path}")).await.unwrap();
    assert!(ls(&root, path).await.unwrap().is_empty(), "nothing was made in the covered directory");
}
