//! The mux in simulated worlds: clients on one side, RAM servers on the other, links between.

mod attach;
mod model;
mod oracle;
mod space;
mod world;
