//! Servers that ignore O_TRUNC: clients and muxes truncate the file themselves, and trust a server that obeys it.

use std::sync::Arc;

use nine_io::client::{Client, File, Options};
use nine_io::server::{Core, Gate, Service};
use nine_mux::Flags;
use nine_net::Env;
use nine_proto::{Dialect, NOUID, OpenFlags};
use nine_sim::{Shape, World};

use crate::mux::ahead::Tape;
use crate::mux::world::{Muxed, owner};

const TRUNCATE: OpenFlags = OpenFlags(OpenFlags::WRITE.0 | OpenFlags::TRUNC.0);

/// Returns the root of a server without a mux.
async fn direct(m: &Muxed, tape: &Arc<Tape>, dialect: Dialect) -> (Client, File) {
    let service = Service::new(tape.clone(), Gate::default(), Core::default());
    let (near, far) = m.links.link(Shape::default());
    m.env.spawn(Box::pin(service.connect(Box::new(far))));
    let options = Options { dialects: vec![dialect], ..Options::default() };
    let (client, driver) = Client::connect(near, options).await.unwrap();
    m.env.spawn(Box::pin(async { drop(driver.await) }));
    let root = client.attach("u", NOUID, "").await.unwrap();
    (client, root)
}

#[test]
fn a_short_text_over_a_long_one_is_all_that_is_left() {
    for (truncates, has_mux, dialect) in [
        (true, false, Dialect::L),
        (false, false, Dialect::L),
        (false, false, Dialect::P2000),
        (true, true, Dialect::L),
        (false, true, Dialect::L),
        (false, true, Dialect::P2000),
    ] {
        let world = World::new(1);
        let m = Muxed::new(&world);
        world.run(async move {
            let tape = Tape::new(b"a long old text".to_vec());
            tape.books().truncates = truncates;
            let far = m.far("far", tape.clone(), Shape::default());
            m.space.mount(far, "", &owner(), "/far", Flags::REPLACE).await.unwrap();
            let (_client, root) = match has_mux {
                true => m.client(dialect).await,
                false => direct(&m, &tape, dialect).await,
            };
            let path = if has_mux { "far/f" } else { "f" };
            let mut asked = Vec::new();
            for text in ["new", "also long, or so", "new"] {
                let before = tape.books().getattrs;
                let file = root.open(path, TRUNCATE).await.unwrap();
                file.write_at(0, text.as_bytes()).await.unwrap();
                file.close().await.unwrap();
                assert_eq!(tape.books().data, text.as_bytes(), "{truncates} {has_mux}");
                asked.push(tape.books().getattrs - before);
            }
            // Client and mux ask for the length before and after the first open. Then they know the server's behaviour.
            assert_eq!(
                asked,
                [if has_mux { 4 } else { 2 }, 0, 0],
                "{truncates} {has_mux} {}",
                dialect.name()
            );
        });
    }
}

#[test]
fn a_text_that_another_client_writes_meanwhile_is_not_cut() {
    let world = World::new(1);
    let m = Muxed::new(&world);
    world.run(async move {
        let tape = Tape::new(b"a long old text".to_vec());
        let (_client, root) = direct(&m, &tape, Dialect::L).await;
        // The steps of an open with O_TRUNC, with a write of another client in between.
        let before = root.before_truncation(b"f", TRUNCATE).await;
        let file = root.open("f", OpenFlags::WRITE).await.unwrap();
        tape.books().data = b"from another".to_vec();
        file.truncated(before).await.unwrap();
        assert_eq!(tape.books().data, b"from another");
    });
}
