//! The archive on disks with power cuts: clients work, dumps are copied, and after each cut an oracle checks the
//! contents. It knows every past state (docs/disk.md, "What is promised").
//!
//! One seed is one world: its disks, its clients, the time and the effect of each cut. A failure prints the seed.

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
