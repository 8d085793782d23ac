//! Discovery of targets.

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use nine_net::Clock;
use nine_net::ether::Mac;
use nine_net::nonet::Link;

use super::TURNS;
use crate::carrier::{Carrier, all_gone};
use crate::frame::{Address, Config, EVERYBODY, Header, Out, command};

/// Maximum number of targets in a list. Others are omitted.
const FOUND: usize = 4096;
/// Number of broadcasts.
const TIMES: u32 = 3;

/// A target that has answered. Its fields are those of the answer ([`Config`]).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Found {
    /// The target's address.
    pub address: Address,
    /// Index of the interface that received the answer.
    pub port: usize,
    /// The target's Ethernet address.
    pub mac: Mac,
    /// Length of its queue in frames.
    pub buffers: u16,
    /// Firmware version.
    pub firmware: u16,
    /// Maximum number of sectors in one frame.
    pub sectors: u8,
    /// Config string.
    pub config: Vec<u8>,
}

/// Broadcasts a config request for `whom` on these links, and collects answers during `patience`. `test` is a command
/// ([`config`] `IS` or `BEGINS`, else `READ`) and its string.
///
/// # Errors
/// Fails if all links are gone.
///
/// [`config`]: crate::frame::config
pub async fn discover<L: Link>(
    links: Vec<L>,
    whom: Address,
    test: (u8, &[u8]),
    patience: Duration,
    clock: Arc<dyn Clock>,
) -> io::Result<Vec<Found>> {
    let mut carriers: Vec<_> = links.into_iter().map(Carrier::new).collect();
    let mut chance = [0; 4];
    clock.entropy(&mut chance);
    let tag = u32::from_ne_bytes(chance) | 1 << 31;
    let head = Header::ask(whom, command::CONFIG, tag).with(&Config::ask(test.0, test.1).bytes());
    let mut found = BTreeSet::new();
    for _ in 0..TIMES {
        for (port, carrier) in carriers.iter_mut().enumerate() {
            carrier.put(Out { port, to: EVERYBODY, head: head.clone(), data: Bytes::new() });
        }
        let mut sleep = clock.sleep_until(clock.now() + patience / TIMES);
        poll_fn(|cx| {
            for _ in 0..TURNS {
                let mut more = false;
                for (port, carrier) in carriers.iter_mut().enumerate() {
                    carrier.send(cx);
                    more |= carrier.receive(cx, |mac, packet| {
                        found.extend(answer(tag, port, mac, packet).filter(|_| found.len() < FOUND));
                    });
                }
                if !more {
                    return sleep.as_mut().poll(cx);
                }
            }
            cx.waker().wake_by_ref();
            sleep.as_mut().poll(cx)
        })
        .await;
        if let Some(error) = all_gone(&mut carriers) {
            return Err(error);
        }
    }
    Ok(found.into_iter().collect())
}

fn answer(tag: u32, port: usize, mac: Mac, packet: &[u8]) -> Option<Found> {
    let (Header { response, error, address, command, tag: of, .. }, body) = Header::parse(packet)?;
    let is_answer = response && error.is_none() && command == command::CONFIG && of == tag;
    let Config { buffers, firmware, sectors, string, .. } = Config::parse(body).filter(|_| is_answer)?;
    let config = string.to_vec();
    Some(Found { address, port, mac, buffers, firmware, sectors, config })
}
