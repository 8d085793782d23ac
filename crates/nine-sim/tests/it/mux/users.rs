//! Visibility for users: several users at one server, several name spaces, and qids that belong to one file each.

use std::collections::HashSet;
use std::sync::Arc;

use nine_io::client::{Client, File, Options};
use nine_io::server::{Anonymous, Gate, Service};
use nine_mux::{As, Flags, Owner};
use nine_net::{Env, Proof};
use nine_proto::{Dialect, Errno, GetMask, NOUID};
use nine_sim::{Shape, World};

use crate::mux::puppet::{Act, Puppet};
use crate::mux::world::{Muxed, cat, owner, ram};

async fn as_user(m: &Muxed, user: &str, aname: &str) -> Result<(Client, File), Errno> {
    let (client, _) = m.client(Dialect::L).await;
    let root = client.attach(user, NOUID, aname).await.map_err(|error| error.errno())?;
    Ok((client, root))
}

#[test]
fn who_only_claims_to_be_the_owner_is_not_believed_by_the_next_server_either() {
    let world = World::new(0);
    let m = Muxed::new(&world);
    world.run(async move {
        let server = m.far("s", ram(&[("f", "text")]).await, Shape::default());
        m.space.mount(server, "", &As::Client, "/s", Flags::REPLACE).await.unwrap();
        let gate = Gate { anonymous: Anonymous::Trusted, ..Gate::default() };
        let service = Service::new(Arc::new(m.mux.clone()), gate, m.core.clone());
        for (uid, believed) in [(0, false), (nine_net::own_ids().0, false), (4711, true)] {
            let (near, far) = m.links.link(Shape { proof: Proof::None, ..Shape::default() });
            m.env.spawn(Box::pin(service.connect(Box::new(far))));
            let (client, driver) = Client::connect(near, Options::default()).await.unwrap();
            m.env.spawn(Box::pin(async { drop(driver.await) }));
            let root = client.attach("", uid, "").await.unwrap();
            assert_eq!(cat(&root, "s/f").await.is_ok(), believed, "uid {uid}");
        }
    });
}

#[test]
fn nothing_leads_out_of_what_was_attached_wherever_it_is_moved() {
    let world = World::new(0);
    let m = Muxed::new(&world);
    world.run(async move {
        let server = m.far("s", ram(&[("work/x/", ""), ("secret/f", "text")]).await, Shape::default());
        m.space.mount(server, "", &owner(), "/s", Flags::REPLACE).await.unwrap();
        let (_inner, work) = as_user(&m, "u", "/s/work").await.unwrap();
        let inside = work.walk("x").await.unwrap();
        let (_outer, root) = m.client(Dialect::L).await;
        let from = root.walk("s/work").await.unwrap();
        from.rename("x", &root.walk("s/secret").await.unwrap(), "x").await.unwrap();
        assert!(inside.walk("../f").await.is_err());
        assert_eq!(inside.walk("..").await.unwrap().qid().path, work.qid().path);
    });
}

#[test]
fn each_user_is_itself_at_a_server_and_takes_its_root_along() {
    let world = World::new(0);
    let m = Muxed::new(&world);
    world.run(async move {
        let puppet = Puppet::new(&m, |_, _| Act::Honest);
        m.space.mount(puppet.server(&m, "s"), "tree", &As::Client, "/s", Flags::REPLACE).await.unwrap();
        m.all_settled().await;
        let before = puppet.books().fids.len();
        let alice = as_user(&m, "alice", "").await.unwrap();
        let bob = as_user(&m, "bob", "").await.unwrap();
        let again = as_user(&m, "bob", "").await.unwrap();
        for (_, root) in [&alice, &bob, &again] {
            assert_eq!(cat(root, "s/f").await, Ok("hello".into()));
        }
        m.all_settled().await;
        let attaches = |user: &str| {
            let said = format!("uname '{user}' aname 'tree'");
            puppet
                .books()
                .log
                .iter()
                .filter(|line| line.starts_with("Tattach") && line.contains(&said))
                .count()
        };
        assert_eq!((attaches("alice"), attaches("bob"), puppet.books().dials), (1, 1, 1));
        puppet.until(&m.env, |books| books.fids.len() == before + 2).await;
        drop(alice);
        puppet.until(&m.env, |books| books.fids.len() == before + 1).await;
        drop(bob);
        assert_eq!(cat(&again.1, "s/f").await, Ok("hello".into()));
        assert_eq!(attaches("bob"), 1, "while one of a user's clients is there, so is its root");
        drop(again);
        puppet.until(&m.env, |books| books.fids.len() == before).await;
    });
}

#[test]
fn a_name_space_is_for_whom_it_is_for() {
    let world = World::new(0);
    let m = Muxed::new(&world);
    world.run(async move {
        let (lab, open) = (m.mux.space("lab", Owner::default()), m.mux.space("open", Owner::default()));
        for (space, text) in [(&m.space, "main"), (&lab, "lab"), (&open, "open")] {
            let server = m.far(text, ram(&[("f", text), ("d/f", "deep")]).await, Shape::default());
            space.mount(server, "", &owner(), "/n", Flags::REPLACE).await.unwrap();
        }
        lab.for_users(&["alice"]);
        m.mux.space("own", Owner::default()).for_owner();
        for (user, aname, seen) in [
            ("alice", "", Ok("lab")),
            ("alice", "lab", Ok("lab")),
            ("alice", "main", Ok("main")),
            ("alice", "open", Ok("open")),
            ("bob", "", Ok("main")),
            ("bob", "open", Ok("open")),
            ("bob", "lab", Err(Errno::EACCES)),
            ("bob", "none", Err(Errno::ENOENT)),
            // A name alone does not make a client the owner.
            ("alice", "own", Err(Errno::EACCES)),
        ] {
            let found = match as_user(&m, user, aname).await {
                Ok((_client, root)) => Ok(cat(&root, "n/f").await.unwrap()),
                Err(errno) => Err(errno),
            };
            assert_eq!(found, seen.map(String::from), "{user} asks for {aname:?}");
        }
        // No path leads out of the attached tree.
        let (_client, root) = as_user(&m, "bob", "open/n/d").await.unwrap();
        assert_eq!(cat(&root, "../../f").await, Ok("deep".into()));
    });
}

#[test]
fn files_with_fids_at_once_never_share_a_qid_path() {
    const UPPER: u64 = nine_mux::SLOTS_EACH as u64 + 300;
    for dialect in [Dialect::L, Dialect::P2000] {
        let world = World::new(0);
        let m = Muxed::new(&world);
        world.run(async move {
            for server in ["one", "two", "three"] {
                let puppet = Puppet::new(&m, |_, _| Act::Honest);
                m.space.mount(puppet.server(&m, server), "", &owner(), server, Flags::REPLACE).await.unwrap();
            }
            let (_client, root) = m.client(dialect).await;
            let (mut files, mut seen) = (Vec::new(), HashSet::new());
            for server in ["one", "two", "three"] {
                // More than the slots of an upstream.
                for upper in 0..UPPER {
                    let file = root.walk(format!("{server}/q{upper}")).await.unwrap();
                    assert!(seen.insert(file.qid().path), "{server} {upper} is another file");
                    if upper % 100 == 0 && dialect.is_l() {
                        let attr = file.getattr(GetMask::BASIC).await.unwrap();
                        assert_eq!(attr.qid.path, file.qid().path);
                    }
                    files.push(file);
                }
            }
            for (i, file) in files.iter().enumerate().step_by(97) {
                let server = ["one", "two", "three"][i / UPPER as usize];
                let again = root.walk(format!("{server}/q{}", i as u64 % UPPER)).await.unwrap();
                assert_eq!(again.qid().path, file.qid().path, "the same file is the same");
            }
        });
    }
}
