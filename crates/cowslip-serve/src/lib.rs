//! Images in memory, once a machine: a process that restores one is handed descriptors instead of reading a file.
//!
//! ```text
//!   client ──request──▶ [server]  accepts, checks the user, hands out images in memory
//!                          └──▶ [residents]  each image loaded once; the least recently used goes first
//!   client ◀─template, or the part loaded by now── SCM_RIGHTS
//! ```
//! A client that has a template needs the server no more: the memory stays as long as anybody reads it.

mod activation;
mod clients;
mod lock;
mod metrics;
mod residents;
mod server;

pub use activation::inherited_listener;
pub use server::{Opener, Options, Server, default_socket, metrics_of};
