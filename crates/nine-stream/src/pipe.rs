//! Pipes: two streams joined at the device end.

use alloc::sync::Arc;

use crate::port::{JoinedEnd, ReadStore, StoreEnd, StreamPort};
use crate::stream::{Make, Stream};
use crate::way::StreamDirection;

/// Creates two joined streams: data written on one is read on the other. Each has its own modules. Closing one closes
/// both.
pub fn pipe(make: &Make) -> (Stream, Stream) {
    let stores = [ReadStore::new(make.limit), ReadStore::new(make.limit)];
    let [up_a, up_b] =
        stores.each_ref().map(|store| StreamDirection::new(&make.clock, |_| StoreEnd(store.clone())));
    let joined = |to: &Arc<StreamDirection>| {
        StreamDirection::new(&make.clock, |again| JoinedEnd { to: to.clone(), again, ticket: None })
    };
    let (down_a, down_b) = (joined(&up_b), joined(&up_a));
    StreamDirection::pair(&up_a, &down_a);
    StreamDirection::pair(&up_b, &down_b);
    down_a.feeds(&up_b);
    down_b.feeds(&up_a);
    let [store_a, store_b] = stores;
    let a = StreamPort::new(store_a, up_a, down_a, make.pool.clone());
    let b = StreamPort::new(store_b, up_b, down_b, make.pool.clone());
    (Stream::of(make, a), Stream::of(make, b))
}
