//! The memory of blocks: a free list for each of several sizes, and a common limit.
//!
//! In: requests for memory, and memory that is returned. Out: blocks. Always holds: allocated memory and the free lists
//! together are within the limit. If a size is not available, lists of other sizes release memory first. Waiters are
//! served in order: the first waiter does not lose its turn to a smaller request.

use alloc::boxed::Box;
use alloc::sync::{Arc, Weak};
use alloc::vec;
use alloc::vec::Vec;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll};

use crate::block::Block;
use crate::lock::{Mutex, lock};
use crate::wait::{QueueTicket, WaiterQueue, wake};

/// Sizes of blocks, in bytes. A larger request gets the last size; chain several blocks then.
pub const CLASSES: [usize; 7] = [256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];

/// A bounded pool of memory for blocks. Clones share it.
#[derive(Clone)]
pub struct Pool(Arc<PoolShared>);

struct PoolShared {
    limit: usize,
    state: Mutex<PoolState>,
}

#[derive(Default)]
struct PoolState {
    free: [Vec<Arc<PoolMemory>>; CLASSES.len()],
    /// Bytes that are allocated or in the free lists.
    bytes: usize,
    waiters: WaiterQueue,
}

/// A piece of memory, with its size class and pool.
pub(crate) struct PoolMemory {
    bytes: Box<[u8]>,
    class: usize,
    pool: Weak<PoolShared>,
}

impl PoolMemory {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

/// Returns the memory of a dropped block to the pool, if it was the last block there. If the last two are dropped at
/// once, neither sees itself as the last. The memory is then freed, and its drop adjusts the pool.
pub(crate) fn give_back(mut memory: Arc<PoolMemory>) {
    if Arc::get_mut(&mut memory).is_none() {
        return;
    }
    let Some(pool) = memory.pool.upgrade() else { return };
    let mut state = lock(&pool.state);
    let first = state.waiters.first();
    let class = memory.class;
    state.free[class].push(memory);
    drop(state);
    wake(first);
}

impl Drop for PoolMemory {
    fn drop(&mut self) {
        let Some(pool) = self.pool.upgrade() else { return };
        let mut state = lock(&pool.state);
        state.bytes -= CLASSES[self.class];
        let first = state.waiters.first();
        drop(state);
        wake(first);
    }
}

impl Pool {
    /// Creates a pool of at most `limit` bytes. The limit is at least one block of each size.
    pub fn new(limit: usize) -> Self {
        let limit = limit.max(CLASSES.iter().sum());
        Self(Arc::new(PoolShared { limit, state: Mutex::new(PoolState::default()) }))
    }

    /// Returns a block with room for `size` bytes, but at most the largest size. `None` if there is no memory now or
    /// another caller waits.
    pub fn try_alloc(&self, size: usize) -> Option<Block> {
        self.take(size, &mut None)
    }

    /// Like [`Pool::try_alloc`], but waits for memory, in the order of the calls.
    pub fn alloc(&self, size: usize) -> Alloc<'_> {
        Alloc { pool: self, size, ticket: None }
    }

    /// Returns the number of bytes that are allocated or in the free lists. Never more than the limit.
    pub fn bytes(&self) -> usize {
        lock(&self.0.state).bytes
    }

    fn take(&self, size: usize, ticket: &mut QueueTicket) -> Option<Block> {
        let class = CLASSES.iter().position(|&class| class >= size).unwrap_or(CLASSES.len() - 1);
        let mut spare = Vec::new();
        let mut state = lock(&self.0.state);
        if !state.waiters.is_turn(ticket) {
            return None;
        }
        let found = state.free[class].pop();
        if found.is_none() {
            let over = |state: &PoolState| state.bytes + CLASSES[class] > self.0.limit;
            for (other, size) in CLASSES.into_iter().enumerate() {
                while other != class && over(&state) {
                    let Some(mut memory) = state.free[other].pop().and_then(Arc::into_inner) else { break };
                    state.bytes -= size;
                    // It is already subtracted: its drop must not do that again.
                    memory.pool = Weak::new();
                    spare.push(memory);
                }
            }
            if over(&state) {
                drop(state);
                return None;
            }
            state.bytes += CLASSES[class];
        }
        let next = if state.waiters.leave(ticket) { state.waiters.first() } else { None };
        drop(state);
        wake(next);
        let new =
            || PoolMemory { bytes: vec![0; CLASSES[class]].into(), class, pool: Arc::downgrade(&self.0) };
        Some(Block::new(found.unwrap_or_else(|| Arc::new(new()))))
    }
}

/// The future of [`Pool::alloc`].
pub struct Alloc<'p> {
    pool: &'p Pool,
    size: usize,
    ticket: QueueTicket,
}

impl Future for Alloc<'_> {
    type Output = Block;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Block> {
        let this = self.get_mut();
        if let Some(block) = this.pool.take(this.size, &mut this.ticket) {
            return Poll::Ready(block);
        }
        lock(&this.pool.0.state).waiters.wait(&mut this.ticket, cx.waker());
        // Memory that was returned before `wait` has woken no waiter, so try again.
        match this.pool.take(this.size, &mut this.ticket) {
            Some(block) => Poll::Ready(block),
            None => Poll::Pending,
        }
    }
}

impl Drop for Alloc<'_> {
    fn drop(&mut self) {
        if self.ticket.is_none() {
            return;
        }
        let mut state = lock(&self.pool.0.state);
        let next = if state.waiters.leave(&mut self.ticket) { state.waiters.first() } else { None };
        drop(state);
        wake(next);
    }
}
