//! Futures that are polled when a test says so.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use nine_stream::{Limit, Make, Modules, Pool};

/// A task in the test's hands.
pub struct Task<'t, T> {
    future: Pin<Box<dyn Future<Output = T> + 't>>,
    woken: Arc<Woken>,
}

#[derive(Default)]
pub struct Woken(AtomicU32);

impl Woken {
    /// How often.
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

    /// Polls once; what it has come to.
    pub fn step(&mut self) -> Option<T> {
        self.woken.0.store(0, Ordering::Relaxed);
        let waker = Waker::from(self.woken.clone());
        match self.future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(done) => Some(done),
            Poll::Pending => None,
        }
    }

    /// Begins something that has to wait.
    pub fn waiting(future: impl Future<Output = T> + 't) -> Self {
        let mut task = Self::new(future);
        assert!(task.step().is_none(), "it should have had to wait");
        task
    }

    /// Whether it has been woken since it was last polled.
    pub fn is_woken(&self) -> bool {
        self.woken.0.load(Ordering::Relaxed) > 0
    }

    /// It has been woken, and ends now.
    pub fn end(mut self) -> T {
        assert!(self.is_woken(), "nobody has woken it");
        self.step().expect("it should be able to end")
    }
}

/// What a future comes to that does not have to wait.
pub fn now<T>(future: impl Future<Output = T>) -> T {
    Task::new(future).step().expect("it should not have to wait")
}

/// Streams with queues of so many bytes and blocks, and these modules.
pub fn make(bytes: usize, blocks: usize, modules: Modules) -> Make {
    Make { limit: Limit { bytes, blocks }, modules, ..Make::new(Pool::new(4 << 20)) }
}

/// Reads up to `n` bytes, which must be there.
pub fn read(stream: &nine_stream::Stream, n: usize) -> Vec<u8> {
    let mut bytes = vec![0; n];
    let n = now(stream.read(&mut bytes)).expect("read");
    bytes.truncate(n);
    bytes
}
