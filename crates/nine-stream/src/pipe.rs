//! Pipes: two streams joined at the device end.

use alloc::sync::Arc;

use crate::port::{Joined, Port, Store, ToStore};
use crate::stream::{Make, Stream};
use crate::way::Way;

/// Creates two joined streams: data written on one is read on the other. Each has its own modules. Closing one closes
/// both.
pub fn pipe(make: &Make) -> (Stream, Stream) {
    let stores = [Store::new(make.limit), Store::new(make.limit)];
    let [up_a, up_b] = stores.each_ref().map(|store| Way::new(&make.clock, |_| ToStore(store.clone())));
    let joined =
        |to: &Arc<Way>| Way::new(&make.clock, |again| Joined { to: to.clone(), again, ticket: None });
    let (down_a, down_b) = (joined(&up_b), joined(&up_a));
    Way::pair(&up_a, &down_a);
    Way::pair(&up_b, &down_b);
    down_a.feeds(&up_b);
    down_b.feeds(&up_a);
    let [store_a, store_b] = stores;
    let a = Port::new(store_a, up_a, down_a, make.pool.clone());
    let b = Port::new(store_b, up_b, down_b, make.pool.clone());
    (Stream::of(make, a), Stream::of(make, b))
}
