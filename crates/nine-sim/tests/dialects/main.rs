//! The mux as a gateway: a client of each dialect over an upstream of each.

#[path = "../../../nine-check/tests/it/common/mod.rs"]
mod check;
#[path = "../common/mod.rs"]
mod common;
mod gateway;
#[allow(dead_code, reason = "another world uses all of it")]
#[path = "../mux/puppet.rs"]
mod puppet;
mod suite;
#[allow(dead_code, reason = "another world uses all of it")]
#[path = "../mux/world.rs"]
mod world;
