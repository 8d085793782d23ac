//! The client's end of the runtime's implementation.

use nine_io::channel::Asking;
use nine_net::rt;
use nine_ring::{MOST, Place};

use super::serving::waits;
use super::transport;

/// Runs the actions.
pub fn asking(data: &[u8]) {
    let Some((&first, moves)) = data.split_first() else { return };
    rt::block_on(async |_| {
        let most = MOST + usize::from(transport::TAGS) * size_of::<(u16, Place)>();
        transport::play(transport::asked(waits(first)).await, (Asking::held, most), true, moves);
    })
    .expect("a runtime");
}
