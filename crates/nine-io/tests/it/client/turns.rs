//! The order of calls when there is room for only a few of them.

use nine_io::client::{Cancel, Options};
use nine_proto::msg::Tmsg;
use nine_proto::{Dialect, GetMask};

use crate::client::world::{World, world_with};

/// Starts a small call of this client, which waits until there is room.
fn small(w: &mut World, client: u64) {
    let root = w.root.clone();
    let call = Box::pin(async move { root.getattr(GetMask::BASIC).await.map(drop) });
    w.exec.spawn(Cancel::of(client).scope(call));
}

#[test]
fn a_large_read_has_its_turn_among_small_calls_that_never_end() {
    const LARGE: u32 = 128 * 1024;
    let options = Options::default();
    let most = options.calls as u64;
    let mut w = world_with(Dialect::L, 1 << 20, options);
    let file = w.file();
    // One call of each client is in flight, and as many are waiting.
    (1..=2 * most).for_each(|client| small(&mut w, client));
    w.exec.run();
    let mut under_way = w.server.got();
    assert_eq!(under_way.len() as u64, most);
    let read = Box::pin(async move { file.read(0, LARGE).await.map(drop) });
    w.exec.spawn(Cancel::of(3 * most).scope(read));
    w.exec.run();
    assert!(w.server.got().is_empty(), "it waits, too");
    for answer in 1..=4 {
        small(&mut w, 4 * most + answer);
        w.server.answer(&under_way.remove(0));
        w.exec.run();
        let got = w.server.got();
        assert_eq!(got.len(), 1, "an answer makes room for one");
        if got.iter().any(|got| matches!(got.message(), Tmsg::Read { count: LARGE, .. })) {
            return;
        }
        under_way.extend(got);
    }
    panic!("it still waits");
}
