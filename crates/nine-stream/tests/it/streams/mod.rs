//! Streams, stepped by hand: every future is polled by the test, and every wake-up is seen.
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
