//! Brings the memory of a process that CRIU dumped into an image, and from there to `criu lazy-pages`.
//!
//! ```text
//!  criu dump ──▶ DUMP/pagemap-PID.img, pages-N.img ──[import]──▶ image, and the rest of the dump
//!                                                                  │
//!  criu restore --lazy-pages ◀─userfaultfd─ criu lazy-pages ◀─socket─ [Server] ◀── a hybrid restore of it
//! ```
//! `docs/restore.md` describes the decisions that CRIU's protocol leaves to a page server.

mod dump;
mod import;
mod index;
mod inventory;
mod memory;
mod pages;
mod protocol;
mod server;
mod session;

pub use import::{ImportOptions, Imported, import};
pub use memory::Memory;
pub use server::Server;
pub use session::{Served, serve};
