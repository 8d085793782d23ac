//! ATA over Ethernet (AoE revision 11): disks on the same Ethernet, without a kernel module (`docs/aoe.md`).

#![forbid(unsafe_code)]

mod carrier;
pub mod driver;
pub mod frame;
pub mod identify;
pub mod initiator;
mod path;
mod rtt;
pub mod target;
mod window;
