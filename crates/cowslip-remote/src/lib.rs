//! Images of Cowslip in object stores: S3 and compatible stores, Google Cloud Storage, Azure, and, only for reading,
//! any HTTP server that answers ranges.
//!
//! ```text
//!  save, push ──▶ [upload]  parts of 16 MiB, eight in flight, the header's last, then published at once
//!  restore, pull, verify ──▶ [image] two requests to open, pinned to the ETag
//!                              └─ [fetcher] what is waited for first, ranges as the link is worth ([link]),
//!                                 a second request for what is late, retries
//!              └─ [cache] a folder on the local disk, for who reads one image again and again
//!  checkpoints of processes ──▶ [bundle] files that belong together
//!  latest ──▶ [pointer] compare and swap
//!  keep, merge ──▶ [prune] what nobody needs
//! ```
//!
//! ```no_run
//! use std::ops::ControlFlow;
//!
//! let image = cowslip_remote::open("s3://bucket/stores/latest")?;
//! let restored = image.restore(0, &Default::default(), &mut |_| ControlFlow::Continue(()))?;
//! let arena = restored.arena(); // usable at once
//! # Ok::<(), cowslip::Error>(())
//! ```
//!
//! This is the only crate of the workspace with an asynchronous runtime. It runs in threads of its own; all public
//! functions here block.
//!
//! Credentials come from the environment, as `object_store` reads it: `AWS_ACCESS_KEY_ID`, `GOOGLE_…`, `AZURE_…`. A URL
//! with credentials is refused: they would be visible in lists of processes, and in messages. `docs/remote.md` describes
//! settings and guarantees.

mod attend;
mod bundle;
mod cache;
mod client;
mod credentials;
mod errors;
mod fetcher;
mod image;
mod link;
mod list;
mod location;
mod missing_credentials;
mod object;
mod pointer;
mod prune;
mod runtime;
mod transfer;
mod upload;

pub use bundle::{Bundle, check_new, push_files};
pub use cache::Cache;
pub use image::{OpenOptions, open, open_with};
pub use list::{Listed, ListedKind, list};
pub use location::Location;
pub use pointer::{Pointer, read_latest, set_latest};
pub use prune::{PruneOptions, Pruned, prune};
pub use transfer::{Pulled, Pushed, pull, push, save};

/// Compiles the page's examples.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/remote.md")]
struct Page;
