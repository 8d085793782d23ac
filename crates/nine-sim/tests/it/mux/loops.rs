//! Muxes that are mounted on each other and on themselves.

use std::time::Duration;

use futures_util::future::join_all;
use nine_mux::Flags;
use nine_net::Env;
use nine_proto::{Dialect, Errno, OpenFlags};
use nine_sim::{Shape, World};

use crate::mux::world::{Muxed, cat, ls, owner, put, ram, within};

/// Whether this error ends a walk in a loop. 9P2000 has only its text.
fn is_loop(error: &nine_io::client::Error) -> bool {
    error.errno() == Errno::ELOOP || error.to_string().contains("loop")
}

/// Mounts each of two muxes on the other, with these flags, at this path.
async fn pair(world_a: &Muxed, world_b: &Muxed, at: &str, flags: Flags) {
    let (a, b) = (world_a.as_server("a"), world_b.as_server("b"));
    world_a.space.mount(b, "", &owner(), at, flags).await.unwrap();
    world_b.space.mount(a, "", &owner(), at, flags).await.unwrap();
}

#[test]
fn a_walk_round_and_round_two_muxes_ends_with_an_error() {
    for dialect in [Dialect::L, Dialect::P2000] {
        let world = World::new(0);
        let (a, b) = (Muxed::new(&world), Muxed::new(&world));
        world.run(async move {
            pair(&a, &b, "/other", Flags::REPLACE).await;
            let (_client, root) = a.client(dialect).await;
            put(&root, "here", "a").await;
            put(&root, "other/there", "b").await;
            assert_eq!(cat(&root, "other/other/here").await, Ok("a".into()));
            assert_eq!(cat(&root, "other/other/other/there").await, Ok("b".into()));
            let error = root.walk("other/".repeat(14)).await.unwrap_err();
            assert!(is_loop(&error), "{error}");
            // And back out of the loop.
            assert_eq!(cat(&root, "other/other/other/../../there").await, Ok("b".into()));
            assert_eq!(cat(&root, "here").await, Ok("a".into()));
        });
    }
}

/// In unions at their roots, each mux is a part of the other. A search for a missing name ends at the end of the loop.
#[test]
fn muxes_in_each_others_roots_find_what_there_is_and_end() {
    for flags in [Flags::AFTER, Flags::BEFORE] {
        let world = World::new(1);
        let (a, b) = (Muxed::new(&world), Muxed::new(&world));
        world.run(async move {
            for (m, name) in [(&a, "in-a"), (&b, "in-b")] {
                let server = m.far(name, ram(&[(name, name)]).await, Shape::default());
                m.space.mount(server, "", &owner(), "/", Flags::AFTER).await.unwrap();
            }
            pair(&a, &b, "/", flags).await;
            let (client, root) = a.client(Dialect::L).await;
            assert_eq!(cat(&root, "in-a").await, Ok("in-a".into()));
            assert_eq!(cat(&root, "in-b").await, Ok("in-b".into()));
            assert!(root.walk("nowhere").await.is_err());
            let mut names = ls(&root, "").await.unwrap();
            names.sort();
            assert_eq!(names, ["in-a", "in-b"]);
            a.quiet(&client).await;
        });
    }
}

#[test]
fn a_mux_in_its_own_root_finds_what_there_is_and_ends() {
    let world = World::new(2);
    let m = Muxed::new(&world);
    world.run(async move {
        let (_first, plain) = m.client(Dialect::L).await;
        put(&plain, "here", "h").await;
        m.space.mount(m.as_server("self"), "", &owner(), "/", Flags::BEFORE).await.unwrap();
        let (client, root) = m.client(Dialect::L).await;
        assert_eq!(cat(&root, "here").await, Ok("h".into()));
        assert!(root.walk("nowhere").await.is_err());
        assert_eq!(ls(&root, "").await, Ok(vec!["here".into()]));
        m.quiet(&client).await;
    });
}

/// Hundreds of reads in both directions through muxes with room for four at a time: every one is answered.
#[test]
fn muxes_full_of_each_others_requests_deliver_all_answers() {
    for seed in 0..4 {
        let world = World::new(seed);
        let (a, b) = (Muxed::new(&world), Muxed::new(&world));
        world.run(async move {
            for (m, other) in [(&a, &b), (&b, &a)] {
                let mut server = other.as_server("other");
                server.options.calls = 4;
                server.options.budget = 40_000;
                m.space.mount(server, "", &owner(), "/other", Flags::REPLACE).await.unwrap();
            }
            let mut work = Vec::new();
            for m in [&a, &b] {
                let (client, root) = m.client(Dialect::L).await;
                put(&root, "here", &"x".repeat(8000)).await;
                work.push((m.env.clone(), client, root));
            }
            let done = join_all(work.iter().flat_map(|(env, _, root)| {
                (0..300).map(move |i| {
                    let path = format!("{}here", "other/".repeat(1 + i % 5));
                    within(env, Duration::from_secs(600), async move {
                        let file = root.open(path, OpenFlags::READ).await?;
                        file.read(0, 8000).await
                    })
                })
            }));
            for read in done.await {
                assert_eq!(read.unwrap().len(), 8000);
            }
            a.env.sleep_until(a.env.now() + Duration::from_secs(1)).await;
        });
    }
}

#[test]
fn a_server_to_which_every_name_is_a_file_is_not_taken_for_a_mux() {
    let world = World::new(0);
    let m = Muxed::new(&world);
    world.run(async move {
        let zeros = std::sync::Arc::new(crate::common::Zeros::default());
        m.space
            .mount(m.far("zeros", zeros, Shape::default()), "", &owner(), "/z", Flags::REPLACE)
            .await
            .unwrap();
        let (_client, root) = m.client(Dialect::L).await;
        assert!(root.walk("z").await.unwrap().qid().is_dir());
        assert!(!root.walk("z/any").await.unwrap().qid().is_dir());
    });
}
