//! nonet as a module: messages of the process in, packets for the device out, and back.
//!
//! Always holds: packets are always accepted, even if the process does not read, because they contain acknowledgements.
//! Data written before the close is sent, or the call fails. The state machine is not locked while a message is passed
//! on.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use nine_stream::{Block, Chain, Fault, Halves, Module, Next};

use super::machine::Nonet;
use super::packet::MESSAGE_MAX;
use crate::lock::{Mutex, lock};

/// The two halves of a call. A message longer than [`MESSAGE_MAX`] is split into several of almost equal length.
pub fn halves(call: Arc<Mutex<Nonet>>) -> Halves {
    let down = NonetSender {
        call: call.clone(),
        part: Vec::new(),
        cut: false,
        waiting: VecDeque::new(),
        closed: false,
    };
    Halves { up: Box::new(NonetReceiver(call)), down: Box::new(down) }
}

struct NonetReceiver(Arc<Mutex<Nonet>>);

impl Module for NonetReceiver {
    fn put(&mut self, chain: Chain, next: &mut Next<'_, '_>) -> Result<(), Fault> {
        let now = next.now();
        let mut call = lock(&self.0);
        chain.for_each(|packet| call.handle(now, packet.data()));
        drop(call);
        self.resume(next)
    }

    fn resume(&mut self, next: &mut Next<'_, '_>) -> Result<(), Fault> {
        // There may be something to acknowledge, or to send.
        next.kick();
        self.pass_on(next);
        if next.is_full() {
            return Ok(());
        }
        let call = lock(&self.0);
        match call.result() {
            Some(how) if call.is_drained() => how.clone().map(|()| next.finish()),
            _ => Ok(()),
        }
    }

    /// The device has ended.
    fn close(&mut self, next: &mut Next<'_, '_>) -> Result<(), Fault> {
        lock(&self.0).abort(Fault::new("the link has gone"));
        self.pass_on(next);
        lock(&self.0).result().cloned().unwrap_or(Ok(()))
    }
}

impl NonetReceiver {
    /// Passes on messages while they are accepted. After the call has ended no more acknowledgements are needed, so the
    /// rest waits in the stream.
    fn pass_on(&mut self, next: &mut Next<'_, '_>) {
        loop {
            let mut call = lock(&self.0);
            let is_over = call.result().is_some();
            let Some(message) = call.poll_message() else { return };
            drop(call);
            if is_over {
                next.put(message);
            } else if let Err(refused) = next.try_put(message) {
                let mut call = lock(&self.0);
                return refused.into_iter().for_each(|message| call.put_back(message));
            }
        }
    }
}

struct NonetSender {
    call: Arc<Mutex<Nonet>>,
    /// The start of an incomplete message.
    part: Vec<u8>,
    /// An earlier part of it was sent already.
    cut: bool,
    /// Messages of one put that do not fit in the window.
    waiting: VecDeque<Block>,
    /// No more will be put.
    closed: bool,
}

impl NonetSender {
    fn take(&mut self, block: Block) {
        let ends = block.delim;
        if ends && self.part.is_empty() && !self.cut {
            return self.cut(block);
        }
        self.part.extend_from_slice(block.data());
        if ends || self.part.len() >= MESSAGE_MAX {
            let part = std::mem::take(&mut self.part);
            if !part.is_empty() || !self.cut {
                self.cut(part.into());
            }
            self.cut = !ends;
        }
    }

    fn cut(&mut self, mut message: Block) {
        let pieces = message.len().div_ceil(MESSAGE_MAX).max(1);
        let len = message.len().div_ceil(pieces);
        self.waiting.extend((0..pieces).map(|_| message.split_to(len)));
    }
}

impl Module for NonetSender {
    fn put(&mut self, chain: Chain, next: &mut Next<'_, '_>) -> Result<(), Fault> {
        chain.for_each(|block| self.take(block));
        self.resume(next)
    }

    fn is_full(&self) -> bool {
        !self.waiting.is_empty() || !lock(&self.call).can_send()
    }

    fn is_mid(&self) -> bool {
        self.cut || !self.part.is_empty()
    }

    fn resume(&mut self, next: &mut Next<'_, '_>) -> Result<(), Fault> {
        let now = next.now();
        loop {
            let mut call = lock(&self.call);
            while call.can_send()
                && let Some(message) = self.waiting.pop_front()
            {
                call.send(message);
            }
            if self.closed && self.waiting.is_empty() {
                call.close();
            }
            if next.is_full() {
                return Ok(());
            }
            let Some(packet) = call.poll_packet(now) else { break };
            drop(call);
            let mut packet = Block::from(packet);
            packet.delim = true;
            next.put(packet);
        }
        let call = lock(&self.call);
        if call.result().is_some() {
            // The reader gets the error after the received messages.
            self.waiting.clear();
            next.finish();
            next.kick();
        }
        Ok(())
    }

    fn deadline(&self) -> Option<Duration> {
        lock(&self.call).deadline()
    }

    fn holds(&self) -> bool {
        let call = lock(&self.call);
        call.result().is_none() && (self.closed || !self.waiting.is_empty() || !call.is_settled())
    }

    fn hears(&self) -> bool {
        lock(&self.call).result().is_none()
    }

    fn close(&mut self, next: &mut Next<'_, '_>) -> Result<(), Fault> {
        let part = std::mem::take(&mut self.part);
        if !part.is_empty() {
            self.cut(part.into());
        }
        self.closed = true;
        self.resume(next)
    }

    fn status(&self) -> String {
        lock(&self.call).status()
    }
}
