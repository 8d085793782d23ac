//! One guest after the other: the channel of a program that inherits it, and hands it on.

use std::future::poll_fn;
use std::io;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use nine_net::shm::Channel;

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
        let lent = Lent { channel: Some(channel), back: back.clone() };
        service.connect(Box::new(Serving::of(lent))).await;
        channel = lock(&back).take().expect("a connection that has ended has dropped its transport");
        channel.begin_again();
    }
}

type Back = Arc<Mutex<Option<Channel>>>;

/// A channel, which goes back when whoever has it is dropped; and is closed if nobody waits for it.
pub(super) struct Lent {
    /// `None` while it is dropped.
    channel: Option<Channel>,
    back: Back,
}

impl From<Channel> for Lent {
    fn from(channel: Channel) -> Self {
        Self { channel: Some(channel), back: Back::default() }
    }
}

impl Deref for Lent {
    type Target = Channel;

    fn deref(&self) -> &Channel {
        self.channel.as_ref().expect("until it is dropped")
    }
}

impl DerefMut for Lent {
    fn deref_mut(&mut self) -> &mut Channel {
        self.channel.as_mut().expect("until it is dropped")
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        *lock(&self.back) = self.channel.take();
    }
}
