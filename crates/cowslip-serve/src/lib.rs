//! Keeps images in memory, once a machine: a process that restores one gets descriptors instead of reading a file.
//!
//! ```text
//!   client ──request──▶ [server]  accepts, checks the user, hands out images in memory
//!                          └──▶ [residents]  each image loaded once; the least recently used goes first
//!   client ◀─template, or the part loaded by now── SCM_RIGHTS
//! ```
//! A client that has a template no longer needs the server: the memory stays while any process reads it.
//!
//! `cowslip serve` is its command; `docs/restore.md` describes it, and `SECURITY.md` its limits.

mod activation;
mod clients;
mod confinement;
mod lock;
mod metrics;
mod options;
mod residents;
mod server;

pub use activation::inherited_listener;
pub use confinement::{Needs, confine};
pub use options::{Opener, Options};
pub use server::{Server, default_socket, metrics_of};
