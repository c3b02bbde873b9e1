#![allow(unsafe_code)]
//! Clones of a machine's RAM.
//!
//! # Safety
//! The contract of [`GuestClone::reset`] is the caller's.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use cowslip::image::Image;
use cowslip::units::VirtRange;
use cowslip::{Error, ErrorKind, Inherit, Place, Prot, Result, Template, TemplateClone};

use crate::GuestMemory;
use crate::layout::{self, RamRange};
use crate::region::GuestRegion;

const TEMPLATE: &str = "make a template of a guest";

/// RAM of one instant, to make machines of.
#[derive(Clone, Debug)]
pub struct GuestTemplate {
    template: Template,
    regions: Vec<RamRange>,
}

impl GuestTemplate {
    /// The template of an arena in which a guest's RAM has these places: one that another process
    /// [sent](Template::send), for instance, with its regions told by other means.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if regions overlap, or are not memory that clones copy, read and write.
    pub fn new(template: Template, regions: Vec<RamRange>) -> Result<Self> {
        let regions = layout::sorted(regions, TEMPLATE)?;
        let is_ram = |region: &RamRange| {
            let parts = template
                .regions()
                .iter()
                .filter(|part| part.prot().contains(Prot::RW) && part.inherit() == Inherit::Copied);
            let lens = parts.map(|part| part.range().intersect(region.host).len);
            lens.sum::<usize>() == region.host.len
        };
        if !regions.iter().all(is_ram) {
            return Err(Error::new(ErrorKind::Usage, TEMPLATE)
                .because("a region is not all in memory that clones copy, read and write"));
        }
        Ok(Self { template, regions })
    }

    /// The template of an image, from the server of [`cowslip serve`](Image::template_via): one copy for all machines on
    /// a host.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if the image has no RAM of a guest; those of [`Image::template_via`].
    pub fn via(socket: &Path, image: &Image) -> Result<Self> {
        let (arena, regions) = layout::regions_in(image.description(), TEMPLATE)?;
        let template = image.template_via(socket, arena)?;
        let place = |region: RamRange| {
            let start = region.host.start.checked_add(template.origin());
            let start = start.ok_or_else(|| {
                Error::new(ErrorKind::Corrupt, TEMPLATE).because("a region ends beyond all memory")
            })?;
            Ok(RamRange { host: VirtRange::new(start, region.host.len), ..region })
        };
        let regions = regions.into_iter().map(place).collect::<Result<_>>()?;
        Self::new(template, regions)
    }

    /// The template of the arena.
    pub fn template(&self) -> &Template {
        &self.template
    }

    /// Places of the regions, in the arena that the template was made of.
    pub fn regions(&self) -> &[RamRange] {
        &self.regions
    }

    pub(crate) fn map(&self) -> Result<GuestClone> {
        let clone = self.template.map(Place::Anywhere)?;
        let hosts: Vec<_> = self
            .regions
            .iter()
            .map(|region| VirtRange::new(clone.address(region.host.start), region.host.len))
            .collect();
        let clone = Arc::new(Mutex::new(clone));
        let region = |(region, host): (&RamRange, VirtRange)| {
            Arc::new(GuestRegion::of_clone(region.guest, host, &clone))
        };
        let regions = self.regions.iter().zip(hosts).map(region).collect();
        Ok(GuestClone { clone, regions })
    }
}

/// RAM of a machine that was made of a template.
#[derive(Debug)]
pub struct GuestClone {
    clone: Arc<Mutex<TemplateClone>>,
    regions: Vec<Arc<GuestRegion>>,
}

impl GuestClone {
    /// All regions, for devices and KVM: the same memory in each.
    pub fn memory(&self) -> GuestMemory {
        GuestMemory::from_arc_regions(self.regions.clone()).expect("sorted, and at least one")
    }

    /// Takes the RAM back to the template's, in place.
    ///
    /// # Errors
    /// Those of [`TemplateClone::reset`].
    ///
    /// # Safety
    /// No processor runs, and no device and no thread accesses the RAM, until this returns.
    pub unsafe fn reset(&self) -> Result<()> {
        self.clone.lock().unwrap_or_else(PoisonError::into_inner).reset()
    }

    /// Random bytes that no other clone has, for a VMGenID and the guest's generators; others after each reset.
    pub fn entropy(&self) -> [u8; 32] {
        *self.clone.lock().unwrap_or_else(PoisonError::into_inner).identity().entropy()
    }
}
