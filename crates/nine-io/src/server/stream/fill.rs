//! Stores the bytes that a socket has spliced into a pipe, for servers that can do so without a copy in user space.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use nine_net::kernel_pipe;
use nine_proto::{Errno, Error, Result};

use super::super::Node;
use crate::sync::{Mutex, lock};

/// Bytes of a pipe to be stored in an open file. Dropping it reports a failure.
pub struct Fill {
    /// The open file.
    pub node: Node,
    /// The client's connection.
    pub conn: u64,
    /// Offset of the first byte.
    pub offset: u64,
    /// Bytes in the pipe.
    pub len: usize,
    /// `None`: it is completed.
    pipe: Option<Arc<FillPipe>>,
}

/// A pipe, and the result of the last [`Fill`] from it.
pub(super) struct FillPipe {
    out: OwnedFd,
    inlet: OwnedFd,
    done: Mutex<(Option<FillResult>, Option<Waker>)>,
}

/// Bytes stored, and the error if some were not.
type FillResult = (usize, Result<()>);

impl Fill {
    pub(super) fn new(node: Node, conn: u64, pipe: &Arc<FillPipe>, offset: u64, len: usize) -> Self {
        Self { node, conn, offset, len, pipe: Some(pipe.clone()) }
    }

    /// The end of the pipe to read from.
    pub fn pipe(&self) -> BorrowedFd<'_> {
        self.pipe.as_ref().expect("it is not done").out.as_fd()
    }

    /// Completes the fill: the first `stored` bytes are stored. Fewer than all need an error.
    pub fn done(mut self, stored: usize, result: Result<()>) {
        if let Some(pipe) = self.pipe.take() {
            pipe.finish((stored, result));
        }
    }
}

impl Drop for Fill {
    fn drop(&mut self) {
        if let Some(pipe) = self.pipe.take() {
            pipe.finish((0, Err(Error::new(Errno::EIO, "the server lost what was to be written"))));
        }
    }
}

impl FillPipe {
    pub(super) fn new() -> io::Result<Arc<Self>> {
        let (out, inlet) = kernel_pipe()?;
        Ok(Arc::new(Self { out, inlet, done: Mutex::new((None, None)) }))
    }

    /// The end of the pipe to write to.
    pub(super) fn inlet(&self) -> BorrowedFd<'_> {
        self.inlet.as_fd()
    }

    fn finish(&self, result: FillResult) {
        let mut done = lock(&self.done);
        done.0 = Some(result);
        let waker = done.1.take();
        drop(done);
        waker.into_iter().for_each(Waker::wake);
    }

    /// Waits for the result of the fill in progress.
    pub(super) fn poll_done(&self, cx: &mut Context<'_>) -> Poll<FillResult> {
        let mut done = lock(&self.done);
        match done.0.take() {
            Some(result) => Poll::Ready(result),
            None => {
                done.1 = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

#[cfg(all(test, nine_loom))]
mod tests {
    use super::*;
    use loom::future::block_on;
    use std::future::poll_fn;

    #[test]
    fn a_fill_that_ends_on_another_thread_is_never_missed_in_any_order() {
        loom::model(|| {
            let pipe = FillPipe::new().expect("a pipe");
            let fill = Fill::new(std::sync::Arc::new(()), 1, &pipe, 0, 7);
            let thread = loom::thread::spawn(move || fill.done(7, Ok(())));
            let (stored, result) = block_on(poll_fn(|cx| pipe.poll_done(cx)));
            assert!(stored == 7 && result.is_ok());
            thread.join().unwrap();
        });
    }
}
