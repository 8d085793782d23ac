//! Runs work that waits for the disk on threads beside the cores. The disk may even be a mount of this very server.
//!
//! In: a job. Out: a future of its result. At most [`ASIDE_THREADS_MAX`] jobs run at once, including jobs with a
//! dropped future. A further one is refused.

use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Poll, Waker};
use std::thread::Builder;

use nine_net::lock::{Mutex, lock};

/// The maximum number of threads: a disk that does not answer blocks no more.
const ASIDE_THREADS_MAX: usize = 32;

static RUNNING: AtomicUsize = AtomicUsize::new(0);

/// A running job.
struct RunningJobGuard;

impl Drop for RunningJobGuard {
    fn drop(&mut self) {
        RUNNING.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Runs a job on a thread of its own.
///
/// # Errors
/// Those of the job. `ResourceBusy` if too many jobs run. The kernel's error if no thread can be started.
pub(super) async fn aside<T: Send + 'static>(
    job: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let before = RUNNING.fetch_add(1, Ordering::Relaxed);
    let turn = RunningJobGuard;
    if before >= ASIDE_THREADS_MAX {
        let text = "too many paths are being looked at: try again";
        return Err(io::Error::new(io::ErrorKind::ResourceBusy, text));
    }
    let place = Arc::new(Mutex::new((None, None::<Waker>)));
    let done = place.clone();
    let run = move || {
        let came = job();
        drop(turn);
        let mut done = lock(&done);
        done.0 = Some(came);
        let waker = done.1.take();
        drop(done);
        waker.into_iter().for_each(Waker::wake);
    };
    Builder::new().name("net-path".into()).spawn(run)?;
    poll_fn(|cx| {
        let mut place = lock(&place);
        place.1 = Some(cx.waker().clone());
        place.0.take().map_or(Poll::Pending, Poll::Ready)
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn what_waits_is_done_beside_and_no_more_than_so_much_of_it() {
        nine_net::rt::block_on(async |_| {
            assert_eq!(aside(|| Ok(7)).await.unwrap(), 7);
            let mut gates = Vec::new();
            let mut waiting: Vec<_> = (0..ASIDE_THREADS_MAX)
                .map(|n| {
                    let (open, gate) = mpsc::channel();
                    gates.push(open);
                    Box::pin(aside(move || gate.recv().map(|()| n).map_err(io::Error::other)))
                })
                .collect();
            poll_fn(|cx| {
                assert!(waiting.iter_mut().all(|one| one.as_mut().poll(cx).is_pending()));
                Poll::Ready(())
            })
            .await;
            assert_eq!(pin!(aside(|| Ok(()))).await.unwrap_err().kind(), io::ErrorKind::ResourceBusy);
            // The first one is no longer awaited, but counts until it has ended.
            drop(waiting.remove(0));
            assert!(aside(|| Ok(())).await.is_err());
            for (n, (one, open)) in waiting.into_iter().zip(gates.drain(1..)).enumerate() {
                open.send(()).unwrap();
                assert_eq!(one.await.unwrap(), n + 1);
            }
            assert_eq!(aside(|| Ok(8)).await.unwrap(), 8);
        })
        .unwrap();
    }
}
