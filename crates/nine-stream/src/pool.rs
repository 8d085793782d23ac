//! Where the memory of blocks comes from: a free list for each of a few sizes, and a bound for all together.
//!
//! Always holds: memory that is out and memory in the free lists are together at most the limit; where a size cannot be
//! had, lists of other sizes give up theirs first; whoever waits is served in order, and the first who waits does not
//! lose its turn to one who asks for less.

use alloc::boxed::Box;
use alloc::sync::{Arc, Weak};
use alloc::vec;
use alloc::vec::Vec;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll};

use crate::block::Block;
use crate::lock::{Mutex, lock};
use crate::wait::{Ticket, Waiters, wake};

/// Sizes of blocks, bytes. Who asks for more than the last one gets that, and chains several.
pub const CLASSES: [usize; 7] = [256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];

/// A bounded store of memory for blocks. Clones are the same store.
#[derive(Clone)]
pub struct Pool(Arc<Shared>);

struct Shared {
    limit: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    free: [Vec<Arc<Memory>>; CLASSES.len()],
    /// Bytes that are out or free.
    bytes: usize,
    waiters: Waiters,
}

/// One piece of memory, which knows where it belongs.
pub(crate) struct Memory {
    bytes: Box<[u8]>,
    class: usize,
    pool: Weak<Shared>,
}

impl Memory {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

/// A block leaves its memory: the last one brings it back. Where two leave at once, neither does, and the memory is
/// freed instead, which the pool is told by its drop.
pub(crate) fn give_back(mut memory: Arc<Memory>) {
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

impl Drop for Memory {
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
    /// A store of at most `limit` bytes, and of one block of every size at least.
    pub fn new(limit: usize) -> Self {
        let limit = limit.max(CLASSES.iter().sum());
        Self(Arc::new(Shared { limit, state: Mutex::new(State::default()) }))
    }

    /// A block with room for `size` bytes, or as many as the largest has, if there is memory for it now and nobody
    /// waits.
    pub fn try_alloc(&self, size: usize) -> Option<Block> {
        self.take(size, &mut None)
    }

    /// The same; waits while memory is short, in the order in which it was asked for.
    pub fn alloc(&self, size: usize) -> Alloc<'_> {
        Alloc { pool: self, size, ticket: None }
    }

    /// Bytes that are out or kept for the next block; never more than the limit.
    pub fn bytes(&self) -> usize {
        lock(&self.0.state).bytes
    }

    fn take(&self, size: usize, ticket: &mut Ticket) -> Option<Block> {
        let class = CLASSES.iter().position(|&class| class >= size).unwrap_or(CLASSES.len() - 1);
        let mut spare = Vec::new();
        let mut state = lock(&self.0.state);
        if !state.waiters.is_turn(ticket) {
            return None;
        }
        let found = state.free[class].pop();
        if found.is_none() {
            let over = |state: &State| state.bytes + CLASSES[class] > self.0.limit;
            for (other, size) in CLASSES.into_iter().enumerate() {
                while other != class && over(&state) {
                    let Some(mut memory) = state.free[other].pop().and_then(Arc::into_inner) else { break };
                    state.bytes -= size;
                    // It has been counted: its drop shall not.
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
        let new = || Memory { bytes: vec![0; CLASSES[class]].into(), class, pool: Arc::downgrade(&self.0) };
        Some(Block::new(found.unwrap_or_else(|| Arc::new(new()))))
    }
}

/// What [`Pool::alloc`] comes to.
pub struct Alloc<'p> {
    pool: &'p Pool,
    size: usize,
    ticket: Ticket,
}

impl Future for Alloc<'_> {
    type Output = Block;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Block> {
        let this = self.get_mut();
        if let Some(block) = this.pool.take(this.size, &mut this.ticket) {
            return Poll::Ready(block);
        }
        lock(&this.pool.0.state).waiters.wait(&mut this.ticket, cx.waker());
        // What was given back before that has woken nobody.
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
