//! Brings the memory of a process that CRIU dumped into an image, and from there to `criu lazy-pages`.
//!
//! ```text
//!  criu dump ──▶ DUMP/pagemap-PID.img, pages-N.img ──[import]──▶ image, and the rest of the dump
//!                                                                  │
//!  criu restore --lazy-pages ◀─userfaultfd─ criu lazy-pages ◀─socket─ [Server] ◀── a hybrid restore of it
//! ```
//! [`checkpoint()`] keeps a running process that is held (`cowslip-process`), and [`restore()`] brings it back.
//!
//! `docs/restore.md` describes the decisions that CRIU's protocol leaves to a page server.

mod about;
mod archive;
mod chain;
mod checkpoint;
mod command;
mod dump;
mod encrypted;
mod import;
mod index;
mod instant;
mod inventory;
mod keys;
mod memory;
mod pages;
mod partial;
mod private;
mod protocol;
mod restore;
mod server;
mod session;
mod store;
mod wire;

pub use about::About;
pub use checkpoint::{
    CheckpointOptions, Checkpointed, FolderOptions, NewCheckpoint, checkpoint, checkpoint_and,
};
pub use command::run_served;
pub use import::{ImportOptions, Imported, import};
pub use keys::Keys;
pub use memory::Memory;
pub use private::PrivateFolder;
pub use restore::{Kept, RestoredProcess, restore};
pub use server::Server;
pub use session::{Served, serve};
pub use store::StoredFiles;
