//! Parts of a disk that are reached through an Ethernet: one AoE target and one initiator per part.
//!
//! In: random numbers, parts. Out: devices. Cables can be unplugged and plugged in again.

use std::sync::Arc;
use std::time::Duration;

use nine_aoe::driver::{disk, export};
use nine_aoe::frame::Address;
use nine_aoe::target::Setup;
use nine_block::Device;
use nine_net::Env;
use nine_sim::Rng;
use nine_sim::ether::{Ether, Faults, Plug, Wire, held, mac};

use crate::archive::world::Life;

/// Longer than an operation of a slow disk, and shorter than some cables are unplugged.
const PATIENCE: Duration = Duration::from_secs(5);

/// The Ethernet of one life.
#[derive(Clone)]
pub struct PartEthernet(Wire);

/// Returns the card number of a part's target. Its initiator's card has the number of the part.
fn target_card(part: usize) -> u8 {
    64 + part as u8
}

impl PartEthernet {
    /// Creates an Ethernet. Half of them lose, duplicate or delay frames.
    pub fn new(rng: &mut Rng) -> Self {
        let mut faults = Faults::default();
        if rng.one_in(2) {
            let mut one_in = || if rng.one_in(3) { 0 } else { 20 + rng.below(200) };
            faults = Faults { lost: one_in(), twice: one_in(), late: one_in(), ..faults };
        }
        let mtu = if rng.one_in(4) { 1500 } else { 9000 };
        Self(Ether::wire(rng.fork(), faults, mtu))
    }

    /// Returns this part as seen through its initiator, for the duration of `life`.
    pub fn reaches(&self, life: &Life, part: usize, of: Arc<dyn Device>) -> Arc<dyn Device> {
        let address = Address { shelf: 1, slot: part as u8 };
        let plug = |card| vec![Plug::new(life.world(), &self.0, card)];
        let driver = export(plug(target_card(part)), Setup::new(address, format!("part {part}")), of).1;
        life.spawn(Box::pin(async move { drop(driver.await) }));
        let (far, driver) = disk(plug(part as u8), address, PATIENCE, life.clock());
        life.spawn(Box::pin(async move { drop(driver.await) }));
        Arc::new(far)
    }

    /// Unplugs or plugs in the cable of this part's target.
    pub fn unplugs(&self, part: usize, is_out: bool) {
        let (mut wire, card) = (held(&self.0), mac(target_card(part)));
        wire.out.retain(|out| *out != card);
        wire.out.extend(is_out.then_some(card));
    }
}
