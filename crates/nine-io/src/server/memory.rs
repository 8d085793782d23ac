//! The memory budget of a core: how much is borrowed, and which connections wait for memory.
//!
//! Always holds: a connection that registers as waiting and then still finds too little memory is woken at the next
//! return. Both sides swap the flag, so the second one sees the writes of the first.

use std::collections::HashMap;
use std::sync::atomic::Ordering::SeqCst;
use std::task::Waker;

use crate::sync::{AtomicBool, AtomicUsize, Mutex, lock};

pub(super) struct MemoryBudget {
    budget: usize,
    borrowed: AtomicUsize,
    /// By connection; at most one each.
    waiting: Mutex<HashMap<u64, Waker>>,
    any_waiting: AtomicBool,
}

impl MemoryBudget {
    pub(super) fn new(budget: usize) -> Self {
        let (borrowed, any_waiting) = (AtomicUsize::new(0), AtomicBool::new(false));
        Self { budget, borrowed, waiting: Mutex::new(HashMap::new()), any_waiting }
    }

    /// Borrowed bytes. Single messages may take it above the budget.
    pub(super) fn borrowed(&self) -> usize {
        self.borrowed.load(SeqCst)
    }

    /// Bytes that are not borrowed.
    pub(super) fn free(&self) -> usize {
        self.budget.saturating_sub(self.borrowed())
    }

    /// Records that a connection with `old` bytes has `new` now.
    pub(super) fn borrow(&self, old: usize, new: usize) {
        if new > old {
            self.borrowed.fetch_add(new - old, SeqCst);
        } else if old > new {
            self.borrowed.fetch_sub(old - new, SeqCst);
            if self.any_waiting.swap(false, SeqCst) {
                std::mem::take(&mut *lock(&self.waiting)).into_values().for_each(Waker::wake);
            }
        }
    }

    /// Registers to be woken when memory is returned. Check again afterwards: memory may have been returned just
    /// before.
    pub(super) fn wait(&self, id: u64, waker: &Waker) {
        lock(&self.waiting).insert(id, waker.clone());
        self.any_waiting.swap(true, SeqCst);
    }

    /// Removes a connection that is gone.
    pub(super) fn forget(&self, id: u64) {
        lock(&self.waiting).remove(&id);
    }
}

#[cfg(all(test, nine_loom))]
mod tests {
    use super::*;
    use loom::future::block_on;
    use loom::sync::Arc;
    use std::future::poll_fn;
    use std::task::Poll;

    #[test]
    fn memory_given_back_wakes_who_waits_in_any_order() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let memory = Arc::new(MemoryBudget::new(10));
            memory.borrow(0, 20);
            let givers: Vec<_> = (0..2)
                .map(|_| {
                    let memory = memory.clone();
                    loom::thread::spawn(move || memory.borrow(10, 0))
                })
                .collect();
            block_on(poll_fn(|cx| {
                memory.wait(1, cx.waker());
                if memory.free() == 10 { Poll::Ready(()) } else { Poll::Pending }
            }));
            givers.into_iter().for_each(|giver| giver.join().unwrap());
        });
    }
}
