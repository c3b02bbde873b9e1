//! The example `resp_store`: what it promises, from outside.

mod client;
mod limits;
mod model;
mod protocol;
mod server;
mod soak;
mod start;
#[path = "../support/mod.rs"]
mod support;
