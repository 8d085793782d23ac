//! Hostile servers: their clients get an error, and other clients are not affected.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nine_io::client::{Client, Error, File};
use nine_mux::Flags;
use nine_net::Env;
use nine_proto::msg::{Data, Qids, Rmsg, Tmsg};
use nine_proto::{Dialect, Errno, NOGID, OpenFlags, Qid, Tag};
use nine_sim::{Shape, World};

use crate::mux::puppet::{Act, Puppet, TEXT, entry, qid, reply};
use crate::mux::world::{Muxed, cat, ls, owner, put, ram, within};

/// Mounts a bad server at /bad and a good one at /good.
pub async fn between(m: &Muxed, puppet: &Puppet) {
    let good = ram(&[("f", "good")]).await;
    m.space
        .mount(m.far("good", good, Shape::default()), "", &owner(), "/good", Flags::REPLACE)
        .await
        .unwrap();
    m.space.mount(puppet.server(m, "bad"), "", &owner(), "/bad", Flags::REPLACE).await.unwrap();
}

/// Another client's work: all of it succeeds, and soon.
pub async fn bystander(m: &Muxed) {
    let (_client, root) = m.client(Dialect::P2000).await;
    for _ in 0..20 {
        assert_eq!(within(&m.env, Duration::from_millis(50), cat(&root, "good/f")).await, Ok("good".into()));
    }
}

/// Uses many operations. The first error ends it.
pub async fn deed(root: &File) -> Result<(), Error> {
    let file = root.open("bad/f", OpenFlags::RDWR).await?;
    assert!(file.read(0, 100).await?.len() <= 100);
    assert!(file.write(0, &[7; 1000]).await? <= 1000);
    file.close().await?;
    let dir = root.walk("bad/dir").await?;
    let mut entries = dir.read_dir().await?;
    let mut names = 0;
    while let Some(entry) = entries.next().await {
        entry?;
        names += 1;
        // A client need not read an endless directory to its end.
        if names > 10_000 {
            break;
        }
    }
    drop(entries);
    dir.create("new", OpenFlags::WRITE, 0o644, NOGID).await?;
    Ok(())
}

type Trick = fn(&Tmsg<'_>, Tag) -> Act;

fn walk(tag: Tag, qids: &[Qid]) -> Vec<u8> {
    reply(tag, &Rmsg::Walk { qids: Qids::Slice(qids) })
}

/// Name, whether the client must get an error, and the server's behaviour.
const TRICKS: &[(&str, bool, Trick)] = &[
    ("answers with another tag", true, |message, tag| match message {
        Tmsg::Walk { .. } => Act::Say(walk(Tag(tag.0 + 1000), &[qid(b"f")])),
        _ => Act::Honest,
    }),
    ("answers with another type", true, |message, tag| match message {
        Tmsg::Lopen { .. } => Act::Say(reply(tag, &Rmsg::Clunk {})),
        _ => Act::Honest,
    }),
    ("answers with what is too large", true, |message, _| match message {
        Tmsg::Read { .. } => Act::Say(vec![255; 20]),
        _ => Act::Honest,
    }),
    ("answers with what is too small", true, |message, _| match message {
        Tmsg::Read { .. } => Act::Say(vec![0; 20]),
        _ => Act::Honest,
    }),
    ("walks further than asked", true, |message, tag| match message {
        Tmsg::Walk { .. } => Act::Say(walk(tag, &[qid(b"d"); 5])),
        _ => Act::Honest,
    }),
    ("walks nowhere and says it has", true, |message, tag| match message {
        Tmsg::Walk { names, .. } if !names.is_empty() => Act::Say(walk(tag, &[])),
        _ => Act::Honest,
    }),
    ("answers what nobody asked", true, |message, _| match message {
        Tmsg::Lopen { .. } => Act::Also(reply(Tag(777), &Rmsg::Clunk {})),
        _ => Act::Honest,
    }),
    ("answers twice", true, |message, tag| match message {
        Tmsg::Write { .. } => Act::Also(reply(tag, &Rmsg::Write { count: 1000 })),
        _ => Act::Honest,
    }),
    ("dies in the middle of an answer", true, |message, tag| match message {
        Tmsg::Read { .. } => Act::LastWords(reply(tag, &Rmsg::Read { data: Data::Bytes(TEXT) })[..9].into()),
        _ => Act::Honest,
    }),
    ("dies instead of an answer", true, |message, _| match message {
        Tmsg::Lcreate { .. } => Act::LastWords(Vec::new()),
        _ => Act::Honest,
    }),
    ("reads more than asked", true, |message, tag| match message {
        Tmsg::Read { count, .. } => {
            let data = vec![0; *count as usize + 1];
            Act::Say(reply(tag, &Rmsg::Read { data: Data::Bytes(&data) }))
        }
        _ => Act::Honest,
    }),
    ("writes more than it got", true, |message, tag| match message {
        Tmsg::Write { .. } => Act::Say(reply(tag, &Rmsg::Write { count: u32::MAX })),
        _ => Act::Honest,
    }),
    ("sends an Rversion in between", true, |message, tag| match message {
        Tmsg::Read { .. } => Act::Say(reply(tag, &Rmsg::Version { msize: 8192, version: b"9P2000" })),
        _ => Act::Honest,
    }),
    ("floods", true, |message, tag| match message {
        Tmsg::Read { .. } => Act::Say(reply(tag, &Rmsg::Read { data: Data::Bytes(TEXT) }).repeat(50_000)),
        _ => Act::Honest,
    }),
    ("lists what is no directory", true, |message, tag| lists(message, tag, &[3; 100])),
    ("lists half an entry", true, |message, tag| match message {
        Tmsg::Readdir { .. } => {
            let data = entry(b"name", 1);
            Act::Say(reply(tag, &Rmsg::Readdir { data: Data::Bytes(&data[..data.len() - 2]) }))
        }
        _ => Act::Honest,
    }),
    ("lists names with a slash", true, |message, tag| lists(message, tag, &entry(b"a/b", 1))),
    ("lists an empty name", true, |message, tag| lists(message, tag, &entry(b"", 1))),
    ("lists with cookie 0", true, |message, tag| lists(message, tag, &entry(b"f", 0))),
    ("lists the same place again and again", true, |message, tag| lists(message, tag, &entry(b"f", 9))),
    ("lists without end", false, |message, tag| match message {
        Tmsg::Readdir { offset, .. } => {
            let names: Vec<u8> = (1..50).flat_map(|i| entry(b"f", offset + i)).collect();
            Act::Say(reply(tag, &Rmsg::Readdir { data: Data::Bytes(&names) }))
        }
        _ => Act::Honest,
    }),
    ("lists itself and its parent", false, |message, tag| match message {
        Tmsg::Readdir { offset: 0, .. } => {
            let data = [entry(b".", 1), entry(b"..", 2), entry(b"f", 3)].concat();
            Act::Say(reply(tag, &Rmsg::Readdir { data: Data::Bytes(&data) }))
        }
        _ => Act::Honest,
    }),
    ("has the largest iounit there is", false, |message, tag| match message {
        Tmsg::Lopen { .. } => Act::Say(reply(tag, &Rmsg::Lopen { qid: qid(b"f"), iounit: u32::MAX })),
        _ => Act::Honest,
    }),
    ("opens another file than was walked to", false, |message, tag| match message {
        Tmsg::Lopen { .. } => {
            let qid = Qid { ty: 0, vers: 3, path: u64::MAX };
            Act::Say(reply(tag, &Rmsg::Lopen { qid, iounit: 0 }))
        }
        _ => Act::Honest,
    }),
    ("opens a directory as a file and a file as a directory", false, |message, tag| match message {
        Tmsg::Lopen { .. } => {
            let qid = Qid { ty: Qid::DIR, vers: 3, path: 5 };
            Act::Say(reply(tag, &Rmsg::Lopen { qid, iounit: 0 }))
        }
        _ => Act::Honest,
    }),
    ("refuses without a reason", true, |message, tag| match message {
        Tmsg::Lopen { .. } => Act::Say(reply(tag, &Rmsg::Lerror { ecode: 0 })),
        _ => Act::Honest,
    }),
];

/// Answers with this directory data.
fn lists(message: &Tmsg<'_>, tag: Tag, data: &[u8]) -> Act {
    match message {
        Tmsg::Readdir { .. } => Act::Say(reply(tag, &Rmsg::Readdir { data: Data::Bytes(data) })),
        _ => Act::Honest,
    }
}

#[test]
fn a_bad_server_hurts_who_asked_it_and_nobody_else() {
    for (seed, &(trick, fails, hook)) in TRICKS.iter().enumerate() {
        for dialect in [Dialect::L, Dialect::P2000] {
            eprintln!("it {trick} ({})", dialect.name());
            let world = World::new(seed as u64);
            let m = Muxed::new(&world);
            let puppet = Puppet::new(&m, |_, _| Act::Honest);
            let books = puppet.clone();
            world.run(async move {
                between(&m, &puppet).await;
                let (client, root) = m.client(dialect).await;
                puppet.does(hook);
                let minute = Duration::from_secs(60);
                let (done, ()) =
                    futures_util::future::join(within(&m.env, minute, deed(&root)), bystander(&m)).await;
                assert!(done.is_err() || !fails, "no error");
                // The server behaves correctly again, and is reached again.
                puppet.does(|_, _| Act::Honest);
                m.env.sleep_until(m.env.now() + nine_mux::RETRY * 2).await;
                assert_eq!(cat(&root, "bad/f").await, Ok("hello".into()));
                bystander(&m).await;
                leave(&m, client, root).await;
            });
            world.settle();
            assert_eq!(books.books().fids.len(), 1, "only the root is left");
            assert_eq!(books.books().held.len(), 0);
        }
    }
}

/// Disconnects the last client: the mux has no request in flight, and of each server only the root's fid.
pub async fn leave(m: &Muxed, client: Client, root: File) {
    drop(root);
    m.quiet(&client).await;
    drop(client);
    m.env.sleep_until(m.env.now() + Duration::from_millis(100)).await;
    m.all_settled().await;
    for upstream in m.mux.status().upstreams {
        for connection in upstream.connections.iter().filter(|connection| connection.dialect.is_some()) {
            assert_eq!((connection.calls, connection.orphans), (0, 0), "{upstream:?}");
            // The root, if some client has needed it.
            assert!(connection.fids <= 1, "{upstream:?}");
        }
    }
}

/// The answer to Tversion, and the error that a walk gets.
#[test]
fn a_server_that_cannot_greet_is_a_clear_error_and_tried_again() {
    let greetings: [Trick; 6] = [
        |_, tag| Act::Say(reply(tag, &Rmsg::Version { msize: 100, version: b"9P2000.L" })),
        |_, tag| Act::Say(reply(tag, &Rmsg::Version { msize: u32::MAX, version: b"9P2000.L" })),
        |_, tag| Act::Say(reply(tag, &Rmsg::Version { msize: 8192, version: b"unknown" })),
        |_, _| Act::Say(b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec()),
        |_, _| Act::LastWords(Vec::new()),
        |message, tag| match message {
            Tmsg::Attach { .. } => Act::Say(reply(tag, &Rmsg::Lerror { ecode: 13 })),
            _ => Act::Honest,
        },
    ];
    for (seed, greeting) in greetings.into_iter().enumerate() {
        let world = World::new(seed as u64);
        let m = Muxed::new(&world);
        world.run(async move {
            let puppet = Puppet::new(&m, |_, _| Act::Honest);
            between(&m, &puppet).await;
            let (client, root) = m.client(Dialect::L).await;
            puppet.does(greeting);
            puppet.hang_up();
            m.env.sleep_until(m.env.now() + Duration::from_secs(2)).await;
            let walked = within(&m.env, Duration::from_secs(60), root.walk("bad/f")).await;
            let error = walked.expect_err("it cannot have greeted");
            assert!(!matches!(error.errno(), Errno::ENOENT | Errno::EINTR), "{error}");
            bystander(&m).await;
            puppet.does(|_, _| Act::Honest);
            m.env.sleep_until(m.env.now() + nine_mux::RETRY * 2).await;
            assert_eq!(cat(&root, "bad/f").await, Ok("hello".into()));
            leave(&m, client, root).await;
        });
    }
}

/// The server never answers Tversion, Tattach, a request or a Tflush. Waiting clients can cancel.
#[test]
fn a_silent_server_keeps_nobody_who_does_not_want_to_wait() {
    let silences: [Trick; 5] = [
        |_, _| Act::Silent,
        |message, _| if let Tmsg::Attach { .. } = message { Act::Silent } else { Act::Honest },
        |message, _| if let Tmsg::Walk { .. } = message { Act::Silent } else { Act::Honest },
        |message, _| if let Tmsg::Read { .. } = message { Act::Silent } else { Act::Honest },
        |message, _| match message {
            Tmsg::Read { .. } | Tmsg::Flush { .. } => Act::Silent,
            _ => Act::Honest,
        },
    ];
    for (seed, silence) in silences.into_iter().enumerate() {
        let world = World::new(seed as u64);
        let m = Muxed::new(&world);
        world.run(async move {
            let puppet = Puppet::new(&m, |_, _| Act::Honest);
            between(&m, &puppet).await;
            let (client, root) = m.client(Dialect::L).await;
            puppet.does(silence);
            if seed < 2 {
                // An existing connection and root need no greeting.
                puppet.hang_up();
            }
            m.env.sleep_until(m.env.now() + Duration::from_secs(2)).await;
            for _ in 0..3 {
                let waited = m.soon(Duration::from_secs(1), async {
                    let file = root.open("bad/f", OpenFlags::READ).await?;
                    file.read(0, 10).await
                });
                let waited = waited.await;
                assert!(waited.is_none(), "it answered: {waited:?}");
                bystander(&m).await;
            }
            // The client gets its Rflush, at once or after the timeout.
            within(&m.env, Duration::from_secs(20), m.quiet(&client)).await;
            bystander(&m).await;
        });
    }
}

#[test]
fn a_server_that_is_silent_from_the_start_is_mounted_and_holds_up_no_listing() {
    let silences: [Trick; 2] = [
        |_, _| Act::Silent,
        |message, _| if let Tmsg::Attach { .. } = message { Act::Silent } else { Act::Honest },
    ];
    for (seed, silence) in silences.into_iter().enumerate() {
        for dialect in [Dialect::L, Dialect::P2000] {
            let world = World::new(seed as u64);
            let m = Muxed::new(&world);
            world.run(async move {
                let puppet = Puppet::new(&m, silence);
                let begun = m.env.now();
                let server = puppet.server(&m, "silent");
                m.space.mount(server, "", &owner(), "/dir/silent", Flags::REPLACE).await.unwrap();
                assert!(m.env.now() - begun <= Duration::from_secs(21));
                let (_client, root) = m.client(dialect).await;
                let begun = m.env.now();
                assert_eq!(ls(&root, "dir").await.unwrap(), ["silent"]);
                assert!(m.env.now() - begun < Duration::from_millis(1100), "{:?}", m.env.now() - begun);
                bystander_of_nothing(&m, &root).await;
            });
        }
    }
}

/// Work that does not need the server continues.
async fn bystander_of_nothing(m: &Muxed, root: &File) {
    let begun = m.env.now();
    put(root, "note", "text").await;
    assert_eq!(cat(root, "note").await, Ok("text".into()));
    assert!(m.env.now() - begun < Duration::from_millis(500));
}

/// The number of tags and fids that an upstream never returns is limited. Beyond it the connection is given up, and all
/// waiting clients get an error.
#[test]
fn a_server_that_answers_no_flush_is_given_up_in_the_end() {
    let world = World::new(0);
    let m = Muxed::new(&world);
    world.run(async move {
        let puppet = Puppet::new(&m, |_, _| Act::Honest);
        between(&m, &puppet).await;
        let (client, root) = m.client(Dialect::L).await;
        puppet.does(|message, _| match message {
            Tmsg::Read { .. } | Tmsg::Flush { .. } => Act::Silent,
            _ => Act::Honest,
        });
        let file = Arc::new(root.open("bad/f", OpenFlags::READ).await.unwrap());
        let (other, learned) = (file.clone(), Arc::new(AtomicBool::new(false)));
        let heard = learned.clone();
        m.env.spawn(Box::pin(async move {
            // This client waits for ever, if necessary.
            let error = other.read(0, 10).await.expect_err("no answer comes");
            assert_eq!(error.errno(), Errno::ETIMEDOUT, "{error}");
            heard.store(true, Ordering::Relaxed);
        }));
        let mut rounds = 0;
        while !learned.load(Ordering::Relaxed) {
            rounds += 1;
            assert!(rounds < 100, "it is never given up");
            assert!(
                m.soon(Duration::from_millis(20), file.read(0, 10)).await.is_none_or(|read| read.is_err())
            );
            m.env.sleep_until(m.env.now() + Duration::from_millis(500)).await;
        }
        assert!(m.mux.status().forsaken >= 64, "{:?}", m.mux.status());
        assert!(file.read(0, 10).await.is_err());
        drop(file);
        puppet.does(|_, _| Act::Honest);
        m.env.sleep_until(m.env.now() + nine_mux::RETRY * 2).await;
        assert_eq!(cat(&root, "bad/f").await, Ok("hello".into()));
        bystander(&m).await;
        leave(&m, client, root).await;
    });
}

/// The same for attaches, which are the mux's own calls.
#[test]
fn a_server_that_answers_no_attach_and_no_flush_is_given_up_in_the_end() {
    let world = World::new(0);
    let m = Muxed::new(&world);
    world.run(async move {
        let puppet = Puppet::new(&m, |message, _| match message {
            Tmsg::Attach { .. } | Tmsg::Flush { .. } => Act::Silent,
            _ => Act::Honest,
        });
        let anybody = owner();
        let mounting = m.space.mount(puppet.server(&m, "bad"), "", &anybody, "/bad", Flags::REPLACE);
        assert!(m.soon(Duration::from_secs(1), mounting).await.is_none());
        puppet.does(|_, _| Act::Honest);
        puppet.hang_up();
        m.env.sleep_until(m.env.now() + Duration::from_secs(2)).await;
        between(&m, &puppet).await;
        let (client, root) = m.client(Dialect::L).await;
        puppet.does(|message, _| match message {
            Tmsg::Attach { .. } | Tmsg::Flush { .. } => Act::Silent,
            _ => Act::Honest,
        });
        puppet.hang_up();
        m.env.sleep_until(m.env.now() + Duration::from_secs(2)).await;
        let dials = puppet.books().dials;
        for _ in 0..100 {
            assert!(
                m.soon(Duration::from_millis(20), root.walk("bad/f")).await.is_none_or(|walk| walk.is_err())
            );
            m.env.sleep_until(m.env.now() + Duration::from_millis(500)).await;
        }
        assert!(puppet.books().dials > dials + 1, "it was given up and dialled anew");
        puppet.does(|_, _| Act::Honest);
        puppet.hang_up();
        m.env.sleep_until(m.env.now() + nine_mux::RETRY * 2).await;
        assert_eq!(cat(&root, "bad/f").await, Ok("hello".into()));
        leave(&m, client, root).await;
    });
}

/// Messages of 512 bytes: each transfer is shortened, and the result is complete.
#[test]
fn a_server_of_small_messages_is_served_in_small_messages() {
    for dialect in [Dialect::L, Dialect::U, Dialect::P2000] {
        let world = World::new(0);
        let m = Muxed::new(&world);
        world.run(async move {
            let puppet = Puppet::new(&m, |_, _| Act::Honest);
            puppet.books().msize = 512;
            between(&m, &puppet).await;
            let (client, root) = m.client(dialect).await;
            let file = root.open("bad/f", OpenFlags::RDWR).await.unwrap();
            file.write_all_at(0, &[7; 20_000]).await.unwrap();
            assert_eq!(file.read(0, 10_000).await.unwrap(), TEXT);
            deed(&root).await.unwrap();
            drop(file);
            leave(&m, client, root).await;
        });
    }
}

/// A server that knows whole names of dialects only refuses the first proposal. Later connections do not repeat it.
#[test]
fn a_connection_begins_with_the_version_that_the_server_accepted_before() {
    let world = World::new(0);
    let m = Muxed::new(&world);
    world.run(async move {
        let puppet = Puppet::new(&m, |message, tag| match message {
            Tmsg::Version { version, .. } if *version != b"9P2000.L" => {
                Act::Say(reply(tag, &Rmsg::Version { msize: 8192, version: b"unknown" }))
            }
            _ => Act::Honest,
        });
        let mut server = puppet.server(&m, "p");
        server.options.dialects = vec![Dialect::LS, Dialect::L, Dialect::U, Dialect::P2000];
        m.space.mount(server, "", &owner(), "/p", Flags::REPLACE).await.unwrap();
        let (_client, root) = m.client(Dialect::L).await;
        for versions in 2..5 {
            assert_eq!(cat(&root, "p/f1").await.unwrap().as_bytes(), TEXT);
            assert_eq!(puppet.count("Tversion"), versions);
            puppet.hang_up();
            m.env.sleep_until(m.env.now() + Duration::from_secs(3)).await;
        }
    });
}
