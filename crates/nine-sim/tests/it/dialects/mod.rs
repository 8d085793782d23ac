//! The mux as a gateway: a client of each dialect over an upstream of each dialect.

#[path = "../../../../nine-check/tests/it/common/mod.rs"]
mod check;
mod gateway;
mod suite;
