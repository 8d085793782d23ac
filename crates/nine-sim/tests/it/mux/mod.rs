//! The mux in simulated worlds: clients on one side, RAM servers on the other, links between them.

mod again;
mod ahead;
mod attach;
mod away;
mod changes;
mod clients;
mod cuts;
mod durable;
mod fair;
mod flush;
mod lines;
mod loops;
mod model;
mod oracle;
pub mod puppet;
mod reconnect;
mod space;
mod truncate;
mod upstreams;
mod users;
pub mod world;
