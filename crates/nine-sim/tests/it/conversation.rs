//! Conversations that change their modules while in use: every byte of every answer must be right, and users notice
//! only the delay.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use nine_io::client::{Client, File, Options};
use nine_io::server::{Core, Gate, Service};
use nine_net::modules::{Trace, TraceLog, modules};
use nine_net::{Clock, Env, Modules, Pushed};
use nine_proto::msg::{Data, Names, OnlyIds, Tmsg};
use nine_proto::{Errno, Fid, NOFID, NOUID, OpenFlags};
use nine_servers::Ram;
use nine_sim::{End, Rng, Shape, SimEnv, World, link, seeds};
use nine_stream::DEEPEST;

use crate::common::{self, Raw, Zeros};

fn pushed(clock: Arc<dyn Clock>, modules: Modules) -> Pushed {
    Pushed { modules, clock }
}

/// Returns a link to a new connection of the server.
fn dial(world: &World, service: &Service) -> End {
    let (ours, theirs) = link(world, Shape::default());
    world.env().spawn(Box::pin(service.connect(Box::new(theirs))));
    ours
}

async fn connected(env: SimEnv, ours: End) -> Client {
    connected_with(env, ours, None).await
}

async fn connected_with(env: SimEnv, ours: End, token: Option<String>) -> Client {
    let known = modules().with("trace", Trace(TraceLog::default()));
    let pushed = Some(pushed(env.clock(), known));
    let options = Options { pushed, clock: Some(env.clock()), token, ..Options::default() };
    let (client, driver) = Client::connect(ours, options).await.expect("connected");
    env.spawn(Box::pin(async {
        drop(driver.await);
    }));
    client
}

fn ram(world: &World) -> Service {
    let gate = Gate { anonymous: nine_io::server::Anonymous::Trusted, ..Gate::default() };
    let service = Service::new(Arc::new(Ram::new(64 << 20)), gate, Core::default());
    service.with_modules(pushed(world.env().clock(), modules()))
}

/// Writes and reads back until `stop` is set.
async fn user(root: Rc<File>, name: String, mut rng: Rng, stop: Rc<Cell<bool>>) -> u64 {
    let file = root.create(&name, OpenFlags::RDWR, 0o644, nine_proto::NOGID).await.expect("created");
    let mut content = Vec::new();
    let mut rounds = 0;
    while !stop.get() {
        let data: Vec<u8> = match rng.below(3) {
            0 => vec![rng.bits() as u8; rng.below(100_000)],
            _ => (0..rng.below(20_000)).map(|_| rng.bits() as u8).collect(),
        };
        let at = rng.below(content.len() + 1);
        file.write_all_at(at as u64, &data).await.expect("written");
        content.resize(content.len().max(at + data.len()), 0);
        content[at..at + data.len()].copy_from_slice(&data);
        let from = rng.below(content.len() + 1);
        let mut seen = vec![0; rng.below(150_000)];
        let n = file.read_at(from as u64, &mut seen).await.expect("read");
        assert!(seen[..n] == content[from..(from + seen.len()).min(content.len())], "{name}");
        if content.len() > 400_000 {
            content.clear();
            file.setattr(&nine_proto::SetAttr { size: Some(0), ..Default::default() }).await.expect("cut");
        }
        rounds += 1;
    }
    rounds
}

const TEXTS: [&str; 6] =
    ["push zstd", "push trace", "push throttle 20M", "push fault delay 3", "push zstd 1", "pop"];

#[test]
fn modules_come_and_go_under_a_conversation_that_is_used_and_no_byte_is_lost() {
    for seed in seeds(3) {
        let world = World::new(seed);
        let env = world.env();
        let service = ram(&world);
        let end = dial(&world, &service);
        world.run(async move {
            let client = connected(env.clone(), end).await;
            let root = Rc::new(client.attach("u", NOUID, "").await.expect("attached"));
            let stop = Rc::new(Cell::new(false));
            let (done, mut rng) = (Rc::new(Cell::new(0)), Rng::new(seed));
            for n in 0..4 {
                let (root, stop, done, rng) = (root.clone(), stop.clone(), done.clone(), rng.fork());
                env.spawn(Box::pin(async move {
                    assert!(user(root, format!("file{n}"), rng, stop).await > 0);
                    done.set(done.get() + 1);
                }));
            }
            let mut stack: Vec<&str> = Vec::new();
            for _ in 0..30 {
                env.sleep_until(env.now() + Duration::from_millis(rng.below(50) as u64)).await;
                let text = TEXTS[rng.below(TEXTS.len())];
                // At most one of each of these is allowed.
                let single = ["zstd", "trace"].into_iter().find(|name| text.contains(name));
                let twice = stack.iter().any(|other: &&str| single.is_some_and(|name| other.contains(name)));
                let depth = stack.len();
                match (client.change("u", NOUID, text, true).await, text) {
                    (Ok(()), "pop") => drop(stack.pop()),
                    (Ok(()), _) if !twice => stack.push(text),
                    (Err(error), _) if twice => assert_eq!(error.errno(), Errno::EINVAL),
                    (Err(error), "pop") if depth == 0 => assert_eq!(error.errno(), Errno::EINVAL),
                    (Err(error), _) if depth == DEEPEST => assert_eq!(error.errno(), Errno::EINVAL),
                    (changed, _) => panic!("seed {seed}: {text} on {stack:?}: {changed:?}"),
                }
                let desk = client.attach("u", NOUID, "#conversation").await.expect("attached");
                let mut status = vec![0; 4096];
                let file = desk.open("status", OpenFlags::READ).await.expect("open");
                let n = file.read_at(0, &mut status).await.expect("read");
                assert_eq!(
                    status[..n].iter().filter(|byte| **byte == b'\n').count(),
                    stack.len(),
                    "seed {seed}"
                );
            }
            stop.set(true);
            while done.get() < 4 {
                env.sleep_until(env.now() + Duration::from_millis(1)).await;
            }
        });
    }
}

#[test]
fn a_text_that_is_wrong_changes_nothing() {
    let world = World::new(7);
    let (env, end) = (world.env(), dial(&world, &ram(&world)));
    world.run(async move {
        let client = connected(env, end).await;
        let root = client.attach("u", NOUID, "").await.expect("attached");
        for (text, said) in [
            ("push nothing", "no module is called \"nothing\""),
            ("push zstd 99", "\"99\" is no level"),
            ("push trace 3", "trace has no arguments"),
            // The server's error: in .L it has a number and no text.
            ("pop", ""),
            ("hangup", ""),
        ] {
            let error = client.change("u", NOUID, text, true).await.expect_err(text);
            assert!(error.errno() == Errno::EINVAL && error.to_string().contains(said), "{text}: {error}");
            root.getattr(nine_proto::GetMask::BASIC).await.expect("it goes on");
        }
    });
}

#[test]
fn a_border_is_refused_while_something_else_is_under_way() {
    let world = World::new(8);
    let service = Service::new(Arc::new(Zeros::default()), Gate::default(), Core::default());
    let service = service.with_modules(pushed(world.env().clock(), modules()));
    let mut raw = Raw::dial(&world, &service, Shape::default());
    world.run(async move {
        raw.hello(8192).await;
        raw.open().await;
        let aname = b"#conversation";
        let attach = Tmsg::Attach { fid: Fid(5), afid: NOFID, uname: b"", aname, n_uname: OnlyIds(NOUID) };
        assert!(raw.call(1, attach).await.starts_with("Rattach"));
        let walk = Tmsg::Walk { fid: Fid(5), newfid: Fid(6), names: Names::Slice(&[b"ctl"]) };
        assert!(raw.call(1, walk).await.starts_with("Rwalk"));
        assert!(raw.call(1, Tmsg::Lopen { fid: Fid(6), flags: 1 }).await.starts_with("Rlopen"));
        let push = |text| Tmsg::Write { fid: Fid(6), offset: 0, data: Data::Bytes(text) };
        // A read that never ends is in flight.
        raw.send(9, Tmsg::Read { fid: Fid(2), offset: common::STUCK, count: 10 }).await.unwrap();
        assert_eq!(raw.call(1, push(b"push zstd")).await, "Rlerror tag 1 ecode 16");
        assert_eq!(raw.call(2, Tmsg::Flush { oldtag: nine_proto::Tag(9) }).await, "Rflush tag 2");
        for wrong in [&b"push zstd\npush zstd"[..], b"", b"\xff\xff", b"push"] {
            assert_eq!(raw.call(1, push(wrong)).await, "Rlerror tag 1 ecode 22");
        }
        assert_eq!(raw.call(1, push(b"push zstd")).await, "Rwrite tag 1 count 9");
        // From here on zstd is expected. Other bytes end only this connection.
        raw.send_bytes(b"no zstd at all").await.unwrap();
        assert_eq!(raw.reply().await, "UnexpectedEof");
    });
}

#[test]
fn who_gives_up_before_the_border_leaves_the_conversation_as_it_was() {
    let world = World::new(9);
    let zeros = Arc::new(Zeros::default());
    let service = Service::new(zeros.clone(), Gate::default(), Core::default());
    let service = service.with_modules(pushed(world.env().clock(), modules()));
    let (env, end) = (world.env(), dial(&world, &service));
    world.run(async move {
        let client = connected(env.clone(), end).await;
        let root = client.attach("", NOUID, "").await.expect("attached");
        let file = root.open("zero", OpenFlags::READ).await.expect("open");
        let stuck = file.read(common::STUCK, 10);
        let mut stuck = Box::pin(stuck);
        let late = env.sleep_until(env.now() + Duration::from_secs(1));
        let change = client.change("", NOUID, "push zstd", true);
        let mut both = Box::pin(futures_util::future::select(late, Box::pin(change)));
        // It waits for the read, and so do all later requests.
        let waited = std::future::poll_fn(|cx| {
            assert!(stuck.as_mut().poll(cx).is_pending());
            both.as_mut().poll(cx)
        });
        assert!(matches!(waited.await, futures_util::future::Either::Left(_)));
        drop(both);
        drop(stuck);
        assert_eq!(file.read(0, 10).await.expect("it goes on").len(), 10);
        client.change("", NOUID, "push zstd", true).await.expect("now nothing is in the way");
        assert_eq!(file.read(0, 10).await.expect("it goes on").len(), 10);
    });
}

#[test]
fn what_changes_only_this_end_needs_nothing_of_the_server() {
    let world = World::new(10);
    let gate = Gate { anonymous: nine_io::server::Anonymous::Trusted, ..Gate::default() };
    // It has no conversation files.
    let service = Service::new(Arc::new(Ram::new(64 << 20)), gate, Core::default());
    let (env, end) = (world.env(), dial(&world, &service));
    world.run(async move {
        let client = connected(env.clone(), end).await;
        let root = client.attach("u", NOUID, "").await.expect("attached");
        let file = root.create("f", OpenFlags::RDWR, 0o644, nine_proto::NOGID).await.expect("created");
        assert!(client.change("u", NOUID, "push zstd", true).await.is_err());
        client.change_here("push throttle 1M").await.expect("pushed");
        let begun = env.now();
        file.write_all_at(0, &vec![7; 1 << 20]).await.expect("written");
        // The module makes up for up to 20 ms.
        assert!(env.now() - begun >= Duration::from_millis(980));
        for (text, said) in [("push throttle", "invalid size ``"), ("what", "")] {
            let error = client.change_here(text).await.expect_err(text);
            assert!(error.errno() == Errno::EINVAL && error.to_string().contains(said), "{text}: {error}");
        }
        client.change_here("pop").await.expect("popped");
        let error = client.change_here("pop").await.expect_err("nothing is there");
        assert_eq!(error.errno(), Errno::EINVAL);
        let begun = env.now();
        let mut seen = vec![0; 1 << 20];
        assert_eq!(file.read_at(0, &mut seen).await.expect("read"), seen.len());
        assert!(seen == vec![7; 1 << 20] && env.now() - begun < Duration::from_millis(500));
    });
}

#[test]
fn whoever_waits_at_a_border_learns_that_the_connection_has_gone() {
    for here in [false, true] {
        let world = World::new(11);
        let service = Service::new(Arc::new(Zeros::default()), Gate::default(), Core::default());
        let service = service.with_modules(pushed(world.env().clock(), modules()));
        let (env, end) = (world.env(), dial(&world, &service));
        world.run(async move {
            let client = connected(env.clone(), end).await;
            let root = client.attach("", NOUID, "").await.expect("attached");
            let file = root.open("zero", OpenFlags::READ).await.expect("open");
            let stuck = async { file.read(common::STUCK, 10).await.map(drop) };
            let change = async {
                match here {
                    true => client.change_here("push throttle 1M").await,
                    false => client.change("", NOUID, "push zstd", true).await,
                }
            };
            let abort = async {
                env.sleep_until(env.now() + Duration::from_secs(1)).await;
                client.abort(std::io::Error::other("cut"));
            };
            let (stuck, change, ()) = futures_util::future::join3(stuck, change, abort).await;
            assert!(stuck.is_err() && change.unwrap_err().to_string().contains("cut"));
        });
    }
}

#[test]
fn a_listener_may_begin_with_modules_and_readers_may_push() {
    let world = World::new(12);
    let gate = Gate { read_only: true, ..Gate::default() };
    let service = Service::new(Arc::new(Ram::new(64 << 20)), gate, Core::default());
    let service = service.with_modules(pushed(world.env().clock(), modules()));
    let service = Service { begins: Arc::new(["fault delay 500".to_owned()]), ..service };
    let (env, end) = (world.env(), dial(&world, &service));
    world.run(async move {
        let begun = env.now();
        let client = connected(env.clone(), end).await;
        assert!(env.now() - begun >= Duration::from_secs(1), "each way it takes half a second more");
        client.change("u", NOUID, "push zstd", true).await.expect("who only reads may have it, too");
        let desk = client.attach("u", NOUID, "#conversation").await.expect("attached");
        let file = desk.open("status", OpenFlags::READ).await.expect("open");
        let mut status = vec![0; 4096];
        let n = file.read_at(0, &mut status).await.expect("read");
        let names: Vec<_> = std::str::from_utf8(&status[..n]).unwrap().lines().map(|l| &l[..5]).collect();
        assert_eq!(names, ["zstd ", "fault"]);
        let root = client.attach("u", NOUID, "").await.expect("attached");
        let made = root.create("f", OpenFlags::RDWR, 0o644, nine_proto::NOGID).await;
        assert_eq!(made.unwrap_err().errno(), Errno::EROFS);
        client.change("u", NOUID, "pop", true).await.expect("its own");
        let error = client.change("u", NOUID, "pop", true).await.expect_err("not what the listener wants");
        assert_eq!(error.errno(), Errno::EPERM);
    });
}

#[test]
fn what_is_pushed_here_stands_on_what_both_have() {
    let world = World::new(13);
    let (env, end) = (world.env(), dial(&world, &ram(&world)));
    world.run(async move {
        let client = connected(env, end).await;
        client.change("u", NOUID, "push zstd", true).await.expect("pushed");
        client.change_here("push throttle 1M").await.expect("pushed");
        let root = client.attach("u", NOUID, "").await.expect("attached");
        client.change("u", NOUID, "push fault delay 1", true).await.expect("pushed");
        let error = client.change("u", NOUID, "push zstd", true).await.expect_err("one is enough");
        assert!(error.errno() == Errno::EINVAL, "{error}");
        root.getattr(nine_proto::GetMask::BASIC).await.expect("it goes on");
    });
}

#[test]
fn what_modules_hold_is_of_the_core_s_memory_and_comes_back() {
    let world = World::new(14);
    let anonymous = nine_io::server::Anonymous::Trusted;
    let gate = Gate { anonymous, token: Some("00ff".into()), ..Gate::default() };
    let core = Core::with_budget(30 << 20);
    let service = Service::new(Arc::new(Ram::new(64 << 20)), gate, core.clone());
    let service = service.with_modules(pushed(world.env().clock(), modules()));
    let unproven = || {
        let (ours, theirs) = link(&world, Shape { proof: nine_net::Proof::None, ..Shape::default() });
        world.env().spawn(Box::pin(service.connect(Box::new(theirs))));
        ours
    };
    let (env, one, two) = (world.env(), unproven(), unproven());
    world.run(async move {
        let one = connected_with(env.clone(), one, Some("00ff".into())).await;
        let two = connected(env.clone(), two).await;
        // Only an authenticated client may request so much memory: here by the token, if it may show it.
        let error = two.change("u", NOUID, "push zstd 4", true).await.expect_err("nothing is proven");
        assert_eq!(error.errno(), Errno::EPERM);
        let error = one.change("u", NOUID, "push zstd 4", false).await.expect_err("it may not be shown");
        assert_eq!(error.errno(), Errno::EPERM);
        // Each takes 6 MiB, 2 of them for being a stream. A connection may have a quarter of the memory left by others.
        let error = one.change("u", NOUID, "push zstd 9", true).await.expect_err("so much there is not");
        assert_eq!(error.errno(), Errno::ENOMEM);
        one.change("u", NOUID, "push zstd", true).await.expect("there is enough");
        two.change("u", NOUID, "push zstd", true).await.expect("still enough");
        assert!(core.borrowed() > 11 << 20, "{}", core.borrowed());
        let error = two.change("u", NOUID, "push fault delay 1", true).await.expect_err("no more");
        assert_eq!(error.errno(), Errno::ENOMEM);
        one.change("u", NOUID, "pop", true).await.expect("popped");
        two.change("u", NOUID, "pop", true).await.expect("popped");
        two.change("u", NOUID, "push zstd", true).await.expect("what was given back");
        drop((one, two));
        env.sleep_until(env.now() + Duration::from_secs(1)).await;
        assert_eq!(core.borrowed(), 0);
    });
}
