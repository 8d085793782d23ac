//! The runtime's end of a client.

use nine_net::rt;

use super::serving::waits;
use super::transport;

/// Plays the moves.
pub fn asking(data: &[u8]) {
    let Some((&first, moves)) = data.split_first() else { return };
    rt::block_on(async |_| {
        let (judged, honest, memory) = transport::asked(waits(first)).await;
        transport::play(judged, honest, memory, true, moves);
    })
    .expect("a runtime");
}
