//! Serves one guest after another on the channel of a program that inherits it and passes it on.

use std::future::poll_fn;
use std::io;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use nine_net::shm::Channel;

use super::Serving;
use crate::server::Service;
use crate::sync::{Mutex, lock};

/// Serves each guest that joins a channel, one after another, until the process at the other end is gone. Returns the
/// error of the last join.
pub async fn serve_all(service: &Service, mut channel: Channel) -> io::Error {
    loop {
        if let Err(error) = poll_fn(|cx| channel.poll_join(cx)).await {
            return error;
        }
        let back = ChannelReturn::default();
        let lent = LentChannel { channel: Some(channel), back: back.clone() };
        service.connect(Box::new(Serving::of(lent))).await;
        channel = lock(&back).take().expect("a connection that has ended has dropped its transport");
        channel.begin_again();
    }
}

type ChannelReturn = Arc<Mutex<Option<Channel>>>;

/// A channel that goes back to `serve_all` when it is dropped, or is closed if it came from elsewhere.
pub(super) struct LentChannel {
    /// `None` only during the drop.
    channel: Option<Channel>,
    back: ChannelReturn,
}

impl From<Channel> for LentChannel {
    fn from(channel: Channel) -> Self {
        Self { channel: Some(channel), back: ChannelReturn::default() }
    }
}

impl Deref for LentChannel {
    type Target = Channel;

    fn deref(&self) -> &Channel {
        self.channel.as_ref().expect("until it is dropped")
    }
}

impl DerefMut for LentChannel {
    fn deref_mut(&mut self) -> &mut Channel {
        self.channel.as_mut().expect("until it is dropped")
    }
}

impl Drop for LentChannel {
    fn drop(&mut self) {
        *lock(&self.back) = self.channel.take();
    }
}
