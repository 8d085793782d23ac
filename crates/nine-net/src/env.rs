//! The interface to time, timers, entropy and tasks: real in `rt`, simulated in nine-sim.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

/// A task of an [`Env`]. It need not be `Send`: it stays on the core that spawned it.
pub type Task = Pin<Box<dyn Future<Output = ()> + 'static>>;

/// A future that completes at a given time.
pub type Timer = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The environment of a program, besides its bytes. Cheap to share; one per core.
pub trait Env: 'static {
    /// Time since an arbitrary start; never goes back (a step of the wall clock does not show here).
    fn now(&self) -> Duration;

    /// Seconds and nanoseconds since 1970 for time stamps in files.
    fn wall(&self) -> Duration;

    /// Completes when `now()` has reached `deadline`.
    fn sleep_until(&self, deadline: Duration) -> Timer;

    /// Fills `buf` with unpredictable bytes (tokens, hash seeds).
    fn entropy(&self, buf: &mut [u8]);

    /// Starts a task on this core.
    fn spawn(&self, task: Task);

    /// Returns the part of this environment that any core may use.
    fn clock(&self) -> Arc<dyn Clock>;
}

/// The part of an [`Env`] that any core may use.
pub trait Clock: Send + Sync + 'static {
    /// See [`Env::now`].
    fn now(&self) -> Duration;

    /// See [`Env::wall`].
    fn wall(&self) -> Duration;

    /// See [`Env::sleep_until`]. Must be polled on a core of the environment.
    fn sleep_until(&self, deadline: Duration) -> Timer;

    /// See [`Env::entropy`].
    fn entropy(&self, buf: &mut [u8]);
}
