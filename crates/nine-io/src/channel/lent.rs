//! One guest after the other: the channel of a program that inherits it, and hands it on.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::task::{Context, Poll};

use nine_net::shm::Channel;
use nine_net::{Peer, Placed, Transport};

use super::Serving;
use crate::server::Service;
use crate::sync::{Mutex, lock};

/// Serves whoever joins a channel, and then the next one, until the process that has its other end has gone: the
/// error says how.
pub async fn serve_all(service: &Service, mut channel: Channel) -> io::Error {
    loop {
        if let Err(error) = poll_fn(|cx| channel.poll_join(cx)).await {
            return error;
        }
        let back = Back::default();
        service.connect(Box::new(Lent { serving: Some(Serving::new(channel)), back: back.clone() })).await;
        channel = lock(&back).take().expect("a connection that has ended has dropped its transport");
        channel.begin_again();
    }
}

type Back = Arc<Mutex<Option<Channel>>>;

/// A server's end that gives its channel back.
struct Lent {
    /// `None` while it is dropped.
    serving: Option<Serving>,
    back: Back,
}

impl Lent {
    fn end(&mut self) -> &mut Serving {
        self.serving.as_mut().expect("until it is dropped")
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        *lock(&self.back) = self.serving.take().map(Serving::into_channel);
    }
}

impl Transport for Lent {
    fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        self.end().poll_read(cx, buf)
    }

    fn take_placed(&mut self, len: usize) -> Option<Placed> {
        self.end().take_placed(len)
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        self.end().poll_write(cx, bufs)
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.end().poll_flush(cx)
    }

    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.end().poll_close(cx)
    }

    fn poll_hangup(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.end().poll_hangup(cx)
    }

    fn can_sendfile(&self) -> bool {
        true
    }

    fn poll_sendfile(
        &mut self,
        cx: &mut Context<'_>,
        file: BorrowedFd<'_>,
        offset: u64,
        len: usize,
    ) -> Poll<io::Result<usize>> {
        self.end().poll_sendfile(cx, file, offset, len)
    }

    fn peer(&self) -> &Peer {
        self.serving.as_ref().expect("until it is dropped").peer()
    }
}
