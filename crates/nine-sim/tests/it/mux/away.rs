//! Machines that are off or silent, among others: a tree with their mounts must be as fast as without them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use nine_io::client::File;
use nine_io::server::Core;
use nine_mux::script::{self, Alone, Statement};
use nine_mux::{As, Flags, Kinds, Live, MAIN, Owner, Server, Wait};
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
            .mount(Server { wait, ..server }, "", &owner(), &format!("/m/s{n}"), Flags::REPLACE)
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

const SERVERS: usize = 10;

/// Silent or answering servers `s0` to `s9`, and `good`.
struct Words {
    puppets: Vec<Server>,
    good: Server,
}

impl Kinds for Words {
    fn server(&self, word: &str) -> Result<(Server, String), String> {
        let number = word.strip_prefix('s').and_then(|number| number.parse::<usize>().ok());
        let server = number.map_or(&self.good, |number| &self.puppets[number]);
        Ok((server.clone(), word.into()))
    }

    fn user(&self) -> As {
        owner()
    }

    fn backbone(&self, _: &str) -> Server {
        unreachable!("there is one name space")
    }
}

/// The lines of a file with servers that may be silent. Some lines depend on earlier ones that wait for them.
fn lines() -> String {
    let mut lines = String::from("mount good /good\n");
    for n in 0..SERVERS {
        lines += &format!("mount s{n} /n/s{n}\nbind /n/s{n}/d /bin{n}\nbind -a /good/dir /bin{n}\n");
    }
    // Through an earlier bind, onto the place of a waiting one, and below it.
    lines += "bind /good /same\nbind /n/s0/d2 /good/deep\nbind /same/deep/f /alias\n";
    lines += "bind /n/s1/d3 /over\nmount good /over\nbind /n/s2/d4 /below\nmount good /below/dir\n";
    lines
}

/// Executes the lines as a start does. Returns the mux's controller.
async fn start(m: &Muxed, puppets: &[Puppet], good: &Server) -> Live {
    let servers = puppets.iter().enumerate().map(|(n, puppet)| puppet.server(m, &format!("p{n}"))).collect();
    let words = Words { puppets: servers, good: good.clone() };
    let live = Live::new(m.mux.clone(), Owner::default(), words, Core::default());
    let script = script::parse("lines", &lines(), &mut Alone);
    assert!(script.wrong.is_empty(), "{:?}", script.wrong);
    let mut draft = live.draft();
    let mounts = script.lines.iter().filter_map(|line| match &line.statement {
        Statement::Mount(mount) => Some((&*line.space, mount)),
        _ => None,
    });
    draft.contact(mounts).await;
    for line in &script.lines {
        if let Err(error) = draft.apply(MAIN, &line.statement).await {
            assert!(draft.keep(MAIN, &line.statement, &error), "{}: {error}", line.text);
        }
    }
    draft.replace();
    live
}

async fn good(m: &Muxed) -> Server {
    let files = [("dir/f1", "good"), ("dir/f", "good"), ("deep/f", "good"), ("f1", "good"), ("dir/x", "x")];
    m.far("good", ram(&files).await, Shape::default())
}

/// Returns the content at some paths.
async fn seen(root: &File) -> Vec<Result<String, String>> {
    let mut seen = Vec::new();
    for n in 0..SERVERS {
        for name in ["f1", "x"] {
            seen.push(cat(root, &format!("bin{n}/{name}")).await);
        }
    }
    for path in ["alias", "over/f1", "over/dir/x", "below/f1", "below/dir/f1", "good/deep/f", "n/s3/f1"] {
        seen.push(cat(root, path).await);
    }
    seen
}

#[test]
fn ten_silent_servers_delay_a_start_by_two_seconds_and_leave_the_same_name_space() {
    let honest = World::new(0);
    let m = Muxed::new(&honest);
    let wanted = honest.run(async move {
        let puppets: Vec<_> = (0..SERVERS).map(|_| Puppet::new(&m, |_, _| Act::Honest)).collect();
        let _live = start(&m, &puppets, &good(&m).await).await;
        seen(&m.client(Dialect::L).await.1).await
    });
    assert_eq!(wanted[0].as_deref(), Ok("hello"));
    // A server that answers a Tattach, and no Twalk of it, is silent at its first contact, too.
    for (seed, &silent) in SILENT[..4].iter().enumerate() {
        let world = World::new(seed as u64);
        let (m, wanted) = (Muxed::new(&world), wanted.clone());
        world.run(async move {
            let is_off = Arc::new(AtomicBool::new(true));
            let puppets: Vec<_> = (0..SERVERS)
                .map(|_| {
                    let off = is_off.clone();
                    Puppet::new(&m, move |message, _| match off.load(Ordering::Relaxed) && silent(message) {
                        true => Act::Silent,
                        false => Act::Honest,
                    })
                })
                .collect();
            let good = good(&m).await;
            let live = within(&m.env, Duration::from_millis(2_100), start(&m, &puppets, &good)).await;
            let root = m.client(Dialect::L).await.1;
            // Other lines are in effect.
            assert_eq!(cat(&root, "same/dir/x").await.unwrap(), "x");
            let pending = |text: String| text.lines().filter(|line| line.starts_with("bind /n/s")).count();
            assert_eq!(pending(live.mounts(None)), SERVERS + 3);
            is_off.store(false, Ordering::Relaxed);
            m.env.sleep_until(m.env.now() + Duration::from_secs(60)).await;
            assert_eq!(seen(&root).await, wanted);
        });
    }
}
