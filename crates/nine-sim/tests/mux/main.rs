//! The mux in simulated worlds: clients on one side, RAM servers on the other, links between.

mod attach;
mod model;
mod oracle;
mod puppet;
mod space;
mod upstreams;
mod world;
