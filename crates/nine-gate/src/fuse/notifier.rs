//! Invalidations: unsolicited messages to the kernel.
//!
//! In: numbers of files, names. Out: messages, written in order by a thread of their own. The kernel may lock a
//! directory or a page while a request for it waits for us, so the thread that answers requests must not write them.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::task::Poll;
use std::thread;

use futures_util::task::AtomicWaker;
use nine_net::lock::{Condvar, Mutex, lock};

use super::abi::{self, AnswerBuffer};

/// From this many waiting messages on [`Notifier::is_full`].
const WAITING: usize = 4096;

/// See the module. The thread ends when this is dropped.
pub(super) struct Notifier(Arc<(Mutex<NotifyQueue>, Condvar)>);

#[derive(Default)]
struct NotifyQueue {
    messages: VecDeque<(Vec<u8>, Option<Arc<MessageReceipt>>)>,
    ends: bool,
}

/// Whether a message has been written.
#[derive(Default)]
struct MessageReceipt {
    done: AtomicBool,
    waker: AtomicWaker,
}

impl Notifier {
    pub(super) fn new(device: OwnedFd) -> io::Result<Self> {
        let shared = Arc::new((Mutex::new(NotifyQueue::default()), Condvar::new()));
        let queue = shared.clone();
        thread::Builder::new().name("fuse-notify".into()).spawn(move || write(&device, &queue))?;
        Ok(Self(shared))
    }

    pub(super) fn is_full(&self) -> bool {
        lock(&self.0.0).messages.len() >= WAITING
    }

    /// Removes all messages for which no caller waits.
    pub(super) fn clear(&self) {
        lock(&self.0.0).messages.retain(|(_, written)| written.is_some());
    }

    /// Invalidates a file's attributes, and with `data` also its pages.
    pub(super) fn inode(&self, node: u64, data: bool) {
        self.send(abi::INVAL_INODE, inode(node, data), None);
    }

    /// The same, and waits until the kernel has dropped them. Dirty pages have been written to the server by then.
    ///
    /// Cancelling the call does not withdraw the message.
    pub(super) async fn inode_now(&self, node: u64) {
        let written = Arc::new(MessageReceipt::default());
        self.send(abi::INVAL_INODE, inode(node, true), Some(written.clone()));
        poll_fn(|cx| {
            written.waker.register(cx.waker());
            if written.done.load(Ordering::Acquire) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    /// Expires a name: the kernel looks it up again.
    pub(super) fn entry(&self, dir: u64, name: &[u8]) {
        let mut out = AnswerBuffer::default().u64(dir).u32(name.len() as u32).u32(abi::EXPIRE_ONLY);
        out.0.extend_from_slice(name);
        out.0.push(0);
        self.send(abi::INVAL_ENTRY, out, None);
    }

    fn send(&self, code: i32, out: AnswerBuffer, written: Option<Arc<MessageReceipt>>) {
        let head = AnswerBuffer::default().u32((abi::OUT + out.0.len()) as u32).u32(code as u32).u64(0);
        lock(&self.0.0).messages.push_back(([head.0, out.0].concat(), written));
        self.0.1.notify_one();
    }
}

/// The fields of INVAL_INODE. A negative offset excludes the pages.
pub(super) fn inode(node: u64, data: bool) -> AnswerBuffer {
    AnswerBuffer::default().u64(node).u64(if data { 0 } else { u64::MAX }).u64(0)
}

impl Drop for Notifier {
    fn drop(&mut self) {
        lock(&self.0.0).ends = true;
        self.0.1.notify_one();
    }
}

fn write(device: &OwnedFd, (queue, more): &(Mutex<NotifyQueue>, Condvar)) {
    loop {
        let mut guard = lock(queue);
        let (message, written) = loop {
            match guard.messages.pop_front() {
                _ if guard.ends => return,
                Some(message) => break message,
                None => guard = more.wait(guard).unwrap_or_else(PoisonError::into_inner),
            }
        };
        drop(guard);
        // ENOENT: the kernel does not know the file or the name, or no longer.
        let _ = rustix::io::writev(device, &[IoSlice::new(&message)]);
        if let Some(written) = written {
            written.done.store(true, Ordering::Release);
            written.waker.wake();
        }
    }
}
