#![allow(unsafe_code)]
//! The RAM of one instant.
//!
//! # Safety
//! The view shows memory that regions had from the arena at the freeze, readable. Nothing writes it while the view
//! lives.

use std::path::Path;

use cowslip::image::{self, OnProgress, SaveOptions, Saved};
use cowslip::units::VirtRange;
use cowslip::{Error, ErrorKind, Frozen, Result};
use vm_memory::GuestAddress;

use crate::layout::{self, RamRange};
use crate::template::GuestTemplate;

/// The RAM of a machine at one instant, while the machine goes on.
#[derive(Debug)]
pub struct Snapshot {
    frozen: Frozen,
    arena: VirtRange,
    regions: Vec<RamRange>,
}

impl Snapshot {
    pub(crate) fn new(frozen: Frozen, arena: VirtRange, regions: Vec<RamRange>) -> Self {
        Self { frozen, arena, regions }
    }

    /// The view of the arena.
    pub fn frozen(&self) -> &Frozen {
        &self.frozen
    }

    /// Places of the regions at the instant.
    pub fn regions(&self) -> &[RamRange] {
        &self.regions
    }

    /// Reads RAM of the instant.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if not all of it is in one region.
    pub fn read(&self, bytes: &mut [u8], at: GuestAddress) -> Result<()> {
        let len = bytes.len() as u64;
        let mut hosts = self.regions.iter().filter_map(|region| region.host_of(at, len));
        let Some(host) = hosts.next() else {
            return Err(Error::new(ErrorKind::Usage, "read a snapshot of a guest")
                .because(format!("no region had all of {len:#x} bytes at {:#x}", at.0)));
        };
        let from = self.frozen.view_address(host.start) as *const u8;
        // SAFETY: see the module; `host` lies in a region, and `bytes` is borrowed exclusively.
        unsafe { from.copy_to_nonoverlapping(bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }

    /// Writes an image, while the machine runs. Registers and devices can be words of [`SaveOptions::user`].
    ///
    /// # Errors
    /// Those of [`image::save`].
    pub fn save(
        &self,
        path: &Path,
        options: &SaveOptions,
        progress: OnProgress<'_>,
    ) -> Result<Saved> {
        image::save(&[&self.frozen], path, &self.with_roots(options), progress)
    }

    /// These options with the names by which [`GuestRam::restore`](crate::GuestRam::restore) finds the regions, for
    /// [`image::save_to`]: the view is the first of those that are saved.
    pub fn with_roots(&self, options: &SaveOptions) -> SaveOptions {
        let mut options = options.clone();
        options.roots.extend(layout::roots(&self.regions, self.arena.start));
        options
    }

    /// Makes a template of it, for clones in this process and others.
    ///
    /// # Errors
    /// Those of [`Frozen::into_template`].
    pub fn into_template(self) -> Result<GuestTemplate> {
        GuestTemplate::new(self.frozen.into_template()?, self.regions)
    }
}
