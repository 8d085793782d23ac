//! il as a module: messages above, packets below.

use std::mem;
use std::sync::Arc;
use std::time::Duration;

use nine_stream::{Block, Chain, Fault, Halves, Module, Next};

use super::machine::{Il, State};
use crate::lock::{Mutex, lock};

/// The two halves of a module for this connection. A message of the process ends with a delimiter. A packet is one
/// message of the layer below.
pub fn halves(il: Arc<Mutex<Il>>) -> Halves {
    let up = IlReceiver { il: il.clone(), ended: false };
    Halves {
        up: Box::new(up),
        down: Box::new(IlSender { il, message: Chain::default(), packet: None, ended: false }),
    }
}

/// Joins the blocks: a copy, if there are several.
fn one(mut chain: Chain) -> Block {
    match chain.blocks() {
        1 => chain.pop().unwrap_or_else(|| Block::from(Vec::new())),
        _ => Block::from(chain.iter().flat_map(Block::data).copied().collect::<Vec<u8>>()),
    }
}

struct IlReceiver {
    il: Arc<Mutex<Il>>,
    ended: bool,
}

impl Module for IlReceiver {
    fn put(&mut self, packet: Chain, next: &mut Next<'_, '_>) -> Result<(), Fault> {
        lock(&self.il).receive(next.now(), one(packet));
        self.resume(next)
    }

    fn resume(&mut self, next: &mut Next<'_, '_>) -> Result<(), Fault> {
        loop {
            let Some(mut message) = lock(&self.il).deliver() else { break };
            message.delim = true;
            if let Err(refused) = next.try_put(message) {
                // The window limits unread messages meanwhile. There will be room later.
                lock(&self.il).undeliver(one(refused));
                break;
            }
        }
        let il = lock(&self.il);
        let (fault, at_end) = (il.fault().cloned().filter(|_| il.is_at_end()), il.is_at_end());
        drop(il);
        // The state may have changed, or the window.
        next.kick();
        if let Some(fault) = fault {
            return Err(fault);
        }
        if at_end && !mem::replace(&mut self.ended, true) {
            next.finish();
        }
        Ok(())
    }

    fn holds(&self) -> bool {
        let il = lock(&self.il);
        !il.is_at_end() && il.state() == State::Closed
    }

    fn waits_for_room(&self) -> bool {
        self.holds()
    }

    /// The layer below has ended, and the connection with it. That is an error if it was not closed.
    fn close(&mut self, next: &mut Next<'_, '_>) -> Result<(), Fault> {
        if lock(&self.il).state() != State::Closed {
            return Err(Fault::new("what carries the conversation has gone"));
        }
        self.resume(next)
    }
}

struct IlSender {
    il: Arc<Mutex<Il>>,
    /// An incomplete message.
    message: Chain,
    /// A packet that the layer below did not accept.
    packet: Option<Chain>,
    ended: bool,
}

impl Module for IlSender {
    fn put(&mut self, chain: Chain, next: &mut Next<'_, '_>) -> Result<(), Fault> {
        let ends = chain.ends_message();
        self.message.extend(chain);
        let (is, may) = (self.message.len(), lock(&self.il).largest());
        if is > may {
            return Err(Fault::new(format!("a message has more than {may} bytes")));
        }
        if ends {
            let message = one(mem::take(&mut self.message));
            let mut il = lock(&self.il);
            if let Err(fault) = il.send(message) {
                if il.is_at_end() || il.state() != State::Closed {
                    return Err(fault);
                }
                // Received messages are read first, and then the error is reported.
                drop(il);
                next.finish();
                return Ok(());
            }
        }
        self.resume(next)
    }

    fn is_full(&self) -> bool {
        lock(&self.il).is_full()
    }

    fn resume(&mut self, next: &mut Next<'_, '_>) -> Result<(), Fault> {
        let now = next.now();
        loop {
            let waiting = self.packet.take();
            let Some(packet) = waiting.or_else(|| lock(&self.il).transmit(now)) else { break };
            if let Err(refused) = next.try_put(packet) {
                self.packet = Some(refused);
                break;
            }
        }
        let il = lock(&self.il);
        // Received messages are read first.
        let fault = il.fault().cloned().filter(|_| il.is_at_end());
        let over = il.state() == State::Closed && self.packet.is_none();
        drop(il);
        if let Some(fault) = fault {
            return Err(fault);
        }
        if over && !mem::replace(&mut self.ended, true) {
            next.finish();
            next.kick();
        }
        Ok(())
    }

    fn is_mid(&self) -> bool {
        !self.message.is_empty()
    }

    fn holds(&self) -> bool {
        self.packet.is_some() || lock(&self.il).holds()
    }

    fn hears(&self) -> bool {
        lock(&self.il).state() != State::Closed
    }

    fn deadline(&self) -> Option<Duration> {
        // A packet that waits for room has no deadline.
        if self.packet.is_some() { None } else { lock(&self.il).deadline() }
    }

    fn close(&mut self, next: &mut Next<'_, '_>) -> Result<(), Fault> {
        lock(&self.il).close();
        self.resume(next)
    }

    fn status(&self) -> String {
        lock(&self.il).status()
    }
}
