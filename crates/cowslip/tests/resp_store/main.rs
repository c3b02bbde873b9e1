//! Tests the promises of the example `resp_store` from outside.

mod client;
mod limits;
mod model;
mod protocol;
mod server;
mod soak;
mod start;
#[path = "../support/mod.rs"]
mod support;
