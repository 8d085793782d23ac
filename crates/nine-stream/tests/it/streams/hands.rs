//! Futures that the test polls.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use nine_stream::{Limit, Make, Modules, Pool};

/// A task that the test controls.
pub struct Task<'t, T> {
    future: Pin<Box<dyn Future<Output = T> + 't>>,
    woken: Arc<Woken>,
}

#[derive(Default)]
pub struct Woken(AtomicU32);

impl Woken {
    /// Returns the number of wake-ups.
    pub fn wakes(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl<'t, T> Task<'t, T> {
    pub fn new(future: impl Future<Output = T> + 't) -> Self {
        Self { future: Box::pin(future), woken: Arc::default() }
    }

    /// Polls once. Returns the result, if it is ready.
    pub fn step(&mut self) -> Option<T> {
        self.woken.0.store(0, Ordering::Relaxed);
        let waker = Waker::from(self.woken.clone());
        match self.future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(done) => Some(done),
            Poll::Pending => None,
        }
    }

    /// Starts a future that must wait.
    pub fn waiting(future: impl Future<Output = T> + 't) -> Self {
        let mut task = Self::new(future);
        assert!(task.step().is_none(), "it should have had to wait");
        task
    }

    /// Whether it has been woken since its last poll.
    pub fn is_woken(&self) -> bool {
        self.woken.0.load(Ordering::Relaxed) > 0
    }

    /// Polls a task that must have been woken and must end now.
    pub fn end(mut self) -> T {
        assert!(self.is_woken(), "nobody has woken it");
        self.step().expect("it should be able to end")
    }
}

/// Returns the result of a future that need not wait.
pub fn now<T>(future: impl Future<Output = T>) -> T {
    Task::new(future).step().expect("it should not have to wait")
}

/// Returns parameters of streams with queues of this size, and these modules.
pub fn make(bytes: usize, blocks: usize, modules: Modules) -> Make {
    Make { limit: Limit { bytes, blocks }, modules, ..Make::new(Pool::new(4 << 20)) }
}

/// Reads up to `n` bytes, which must be available.
pub fn read(stream: &nine_stream::Stream, n: usize) -> Vec<u8> {
    let mut bytes = vec![0; n];
    let n = now(stream.read(&mut bytes)).expect("read");
    bytes.truncate(n);
    bytes
}
