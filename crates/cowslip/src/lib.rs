//! Snapshot and fork big-memory Linux programs in microseconds, restore them in milliseconds, and keep the huge pages.
//!
//! An [`Arena`] is memory that can be [frozen](Arena::freeze): at one instant, in constant time, with every thread
//! running. The [`Frozen`] view shows its content at that instant for as long as it is kept; the program goes on under
//! the same addresses and copies 4 KiB at its first write to a page. When the view is dropped the arena is thawed in
//! the background and is on huge pages again.
//!
//! ```
//! use cowslip::{Arena, units::ByteCount};
//!
//! let arena = Arena::new(ByteCount::mib(64))?;
//! let mut table = arena.slice::<u64>(1 << 20)?;
//! table.fill(1);
//!
//! let frozen = arena.freeze()?;
//! table.fill(2);
//! assert!(frozen.slice(&table).iter().all(|&v| v == 1)); // write it to disk at leisure
//! # Ok::<(), cowslip::Error>(())
//! ```
//!
//! * [`fork`] makes a child that has the arenas' content, without copying page tables.
//! * [`Frozen::into_template`] makes a [`Template`]: any process maps private clones of it, and resets
//!   them in place, thousands of times a second.
//! * [`freeze_all`] freezes several arenas at the same instant.
//! * [`image::save`] writes views into a file, an image, while the program goes on: whole or not at all, with checksums,
//!   also only the changes. [`image::Image::restore`] makes an arena of it that can be used at once: each page comes when
//!   it is touched.
//! * [`branch_point`] lets `cowslip branch` copy a warm program.
//! * [`host::report`] says what this kernel and these privileges allow.
//!
//! Values in an arena are [`bytemuck::Pod`], and so are structs of a program's own that derive it:
//!
//! ```
//! use cowslip::bytemuck::{self, Pod, Zeroable};
//! use cowslip::{Arena, units::ByteCount};
//!
//! #[derive(Clone, Copy, Pod, Zeroable)]
//! #[bytemuck(crate = "cowslip::bytemuck")]
//! #[repr(C)]
//! struct Slot {
//!     key: u64,
//!     price: f64,
//! }
//!
//! let mut slots = Arena::new(ByteCount::mib(64))?.slice::<Slot>(1000)?; // zeroed
//! slots[7] = Slot { key: 7, price: 0.5 };
//! # Ok::<(), cowslip::Error>(())
//! ```
//!
//! The library starts one thread per arena, at its first freeze or fork, one per [`TemplateServer`], and a few
//! more while an image is saved or restored. It handles no signals, and writes only to files that it was given.

#![cfg_attr(
    not(feature = "internal"),
    allow(
        dead_code,
        unreachable_pub,
        unused_imports,
        reason = "other crates of the workspace use the rest"
    )
)]

mod arena;
mod contracts;
mod detach;
mod footprint;
mod fork_calls;
mod freeze;
pub mod host;
pub mod image;
mod mapping;
mod memory;
mod metrics;
mod plan;
mod progress;
#[cfg(feature = "internal")]
#[doc(hidden)]
pub mod raw;
#[cfg(not(feature = "internal"))]
mod raw;
mod retry;
mod service;
mod template;
mod thaw;
mod timing;
mod values;

pub use bytemuck;
pub use cowslip_sys::error::{Error, ErrorKind, Result};
pub use cowslip_sys::memory::Prot;
pub use cowslip_sys::units;

pub use arena::{Arena, ArenaBuilder, Backing, IoGuard, Pages};
pub use footprint::Footprint;
pub use fork_calls::{BranchCopy, Fork, branch_point, fork, on_branch};
pub use freeze::{FreezeMethod, Frozen, FrozenCopy, MOST_VIEWS, freeze_all};
pub use metrics::Metrics;
pub use template::{
    Identity, Inherit, Place, Region, Template, TemplateBuilder, TemplateClone, TemplateServer,
};
pub use values::ArenaSlice;

/// Compiles and runs the Rust of README and of the guide for stores.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../../../README.md")]
    struct Readme;
    #[doc = include_str!("../../../docs/guides/store.md")]
    struct StoreGuide;
}
