//! The mux in simulated worlds: clients on one side, RAM servers on the other, links between.

#[path = "../common/mod.rs"]
mod common;

mod again;
mod ahead;
mod attach;
mod changes;
mod clients;
mod cuts;
mod fair;
mod flush;
mod loops;
mod model;
mod oracle;
mod puppet;
mod reconnect;
mod space;
mod upstreams;
mod users;
mod world;
