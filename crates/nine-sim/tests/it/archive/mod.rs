//! The archive on disks whose power is cut: clients at work, dumps on their way, and after each cut an oracle that
//! knows every moment there was (docs/disk.md, "What is promised").
//!
//! One seed is one world: its disks, its clients, where it is cut and what the cut leaves. A failure prints the seed.

mod canary;
mod client;
mod cuts;
mod devices;
mod far;
mod faults;
mod full;
mod model;
mod oracle;
mod said;
mod world;
