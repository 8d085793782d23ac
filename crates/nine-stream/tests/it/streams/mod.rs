//! Streams, stepped by hand: the test polls every future and checks every wake-up.
#![cfg(not(nine_loom))]

mod ends;
mod hands;
mod long;
mod many;
mod modules;
mod polls;
mod pools;
mod queues;
mod turns;
