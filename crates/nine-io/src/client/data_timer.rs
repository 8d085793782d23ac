//! Notices that a data connection is silent.
//!
//! In: the times at which nothing moves, and how far the stream is. Out: an error once nothing has moved for
//! [`Options::data_timeout`](super::Options::data_timeout). Always holds: without a clock it never ends a wait.

use std::io;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use nine_net::{Clock, Timer};

use super::file::File;

/// Finds that a data connection moves nothing while bytes are wanted.
pub(super) struct DataTimer {
    clock: Option<Arc<dyn Clock>>,
    limit: Duration,
    /// When the last byte moved, as far as is known, and how far that was.
    moved: (Duration, u64),
    timer: Option<Timer>,
}

impl DataTimer {
    pub(super) fn new(file: &File) -> Self {
        let options = &file.client().0.options;
        let clock = options.clock.clone();
        Self { clock, limit: options.data_timeout, moved: (Duration::ZERO, u64::MAX), timer: None }
    }

    /// Call it when nothing moves now; `at` is the current offset. Ready if that was so for the whole time limit.
    pub(super) fn poll_silent(&mut self, cx: &mut Context<'_>, at: u64) -> Poll<io::Error> {
        let Some(clock) = &self.clock else { return Poll::Pending };
        if self.moved.1 != at {
            self.moved = (clock.now(), at);
        }
        let due = self.moved.0 + self.limit;
        while clock.now() < due {
            ready!(self.timer.get_or_insert_with(|| clock.sleep_until(due)).as_mut().poll(cx));
            self.timer = None;
        }
        let text = format!("it was silent for {} s", self.limit.as_secs_f32());
        Poll::Ready(io::Error::new(io::ErrorKind::TimedOut, text))
    }

    /// Starts to measure again.
    pub(super) fn restart(&mut self) {
        self.moved.1 = u64::MAX;
    }
}
