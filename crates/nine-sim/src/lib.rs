//! nine-sim
