//! A clone: private copies of a template's regions, mapped in this process.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use cowslip_sys::Errno;
use cowslip_sys::error::{During, Error, ErrorKind, Result};
use cowslip_sys::memory::Sharing;
use cowslip_sys::units::{CHUNK_BYTES, GIB_BYTES, VirtRange};

use super::base::Base;
use super::file::File;
use super::identity::Identity;
use super::layout::{Inherit, Layout, Region};
use crate::mapping::{OwnSpace, OwnedRange};

/// The place of a clone.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Place {
    /// Anywhere with enough room.
    #[default]
    Anywhere,
    /// The same addresses as in the arena, so that addresses stored in it stay valid: in another process, or where the
    /// arena has ended.
    Original,
}

impl Place {
    /// Reserves `original`, or the same length anywhere.
    pub(crate) fn reserve(
        self,
        operation: &'static str,
        original: VirtRange,
        align: usize,
    ) -> Result<OwnSpace> {
        match self {
            Self::Anywhere => OwnSpace::reserve(original.len, align).during(operation),
            Self::Original => OwnSpace::reserve_at(original).map_err(|errno| match errno {
                Errno::EXIST => Error::new(ErrorKind::Busy, operation)
                    .on(original)
                    .because("something else is mapped there in this process")
                    .advise("let it go anywhere"),
                errno => Error::from_errno(operation, errno).on(original),
            }),
        }
    }
}

type Hook = Box<dyn FnMut(&mut TemplateClone, &Identity) + Send>;

/// The hooks to run whenever a clone gets a new identity. Nothing locks them: only the clone's owner has them.
#[derive(Default)]
pub(super) struct Hooks(Mutex<Vec<Hook>>);

impl Hooks {
    fn all(&mut self) -> &mut Vec<Hook> {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Hooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hooks")
    }
}

/// A private copy of a [`Template`](super::Template), in this process.
///
/// A child that the process forks has it too, with its content at that time, and may use and reset it as its own (see
/// [`Self::after_fork`]).
#[derive(Debug)]
pub struct TemplateClone {
    /// First: it is unmapped before the base is released.
    pub(super) place: OwnSpace,
    pub(super) base: Arc<Base>,
    pub(super) identity: Identity,
    pub(super) hooks: Hooks,
    /// The kernel can report written pages.
    pub(super) scans: bool,
    /// Kept for the next reset, which then need not allocate.
    pub(super) dropped: Vec<VirtRange>,
}

impl TemplateClone {
    pub(super) fn map(base: Arc<Base>, place: Place) -> Result<Self> {
        const OPERATION: &str = "map a clone";
        let identity = Identity::new(&base)?;
        let extent = base.layout.extent();
        let align = if extent.len >= GIB_BYTES { GIB_BYTES } else { CHUNK_BYTES };
        let place = place.reserve(OPERATION, extent, align)?;
        let (hooks, dropped) = (Hooks::default(), Vec::new());
        let clone = Self { place, base, identity, hooks, scans: true, dropped };
        clone.map_regions(|_| true).map_err(|errno| {
            Error::from_errno(OPERATION, errno)
                .on(clone.range())
                .because("there are too many mappings, or vm.overcommit_memory=2 leaves no room")
                .advise("raise vm.max_map_count, or set vm.overcommit_memory=0")
        })?;
        Ok(clone)
    }

    /// Maps the regions of the `wanted` kinds, for the first time or anew. No reference into them may be left.
    pub(super) fn map_regions(&self, wanted: impl Fn(Inherit) -> bool) -> Result<(), Errno> {
        let base = &*self.base;
        let shared = base.shared.as_ref().map(File::fd).transpose()?;
        for region in base.layout.regions().iter().filter(|region| wanted(region.inherit)) {
            let Region { range, prot, inherit } = *region;
            match inherit {
                Inherit::Copied => base.content.each_part(range, |part, file| {
                    let at = (part.start - base.layout.origin()) as u64;
                    self.here(part).map_file(file, at, Sharing::Private, prot)
                })?,
                Inherit::Fresh => self.here(range).map_anonymous(prot)?,
                Inherit::Shared => {
                    let shared = shared.ok_or(Errno::BADF)?;
                    let at = base.layout.offset(*region);
                    self.here(range).map_file(shared, at, Sharing::Shared, prot)?;
                }
            }
        }
        Ok(())
    }

    /// Its regions, in order, at the arena's addresses.
    pub fn regions(&self) -> &[Region] {
        self.base.layout.regions()
    }

    /// Its addresses in this process.
    pub fn range(&self) -> VirtRange {
        **self.place
    }

    /// The address in this clone that corresponds to `address` in the arena.
    ///
    /// # Panics
    /// If `address` is outside the chunks from the template's first region to its last.
    pub fn address(&self, address: usize) -> usize {
        let extent = self.base.layout.extent();
        assert!(extent.contains(address), "{address:#x} is not in the template {extent}");
        self.place.start + (address - extent.start)
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.base.layout
    }

    pub(super) fn here(&self, range: VirtRange) -> OwnedRange {
        self.place.part(VirtRange::new(self.address(range.start), range.len))
    }
}

impl TemplateClone {
    /// Its current identity.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Runs `hook` now, after every [reset](Self::reset), and in [`Self::after_fork`]: it gives the clone new
    /// randomness and a new identity, in the memory of the clone or elsewhere.
    ///
    /// ```
    /// use cowslip::{Arena, Place, units::ByteCount};
    ///
    /// let arena = Arena::new(ByteCount::mib(4))?;
    /// let seed = arena.slice::<[u8; 32]>(1)?;
    /// let template = arena.freeze()?.into_template()?;
    /// let mut clone = template.map(Place::Anywhere)?;
    /// let place = seed.range();
    /// clone.on_renewal(move |clone, identity| {
    ///     clone.values_mut::<[u8; 32]>(place)[0] = *identity.entropy();
    /// });
    /// let before = clone.slice(&seed)[0];
    /// clone.reset()?;
    /// assert_ne!(clone.slice(&seed)[0], before);
    /// # Ok::<(), cowslip::Error>(())
    /// ```
    pub fn on_renewal(&mut self, hook: impl FnMut(&mut Self, &Identity) + Send + 'static) {
        let mut hook: Hook = Box::new(hook);
        self.with_identity(|clone, identity| hook(clone, identity));
        self.hooks.all().push(hook);
    }

    /// Gives the clone in a forked child an identity other than the parent's, without resetting it, and runs the hooks.
    ///
    /// # Errors
    /// An error of the kernel, if it has no random bytes.
    pub fn after_fork(&mut self) -> Result<()> {
        self.renew_identity()
    }

    pub(super) fn renew_identity(&mut self) -> Result<()> {
        self.identity = Identity::new(&self.base)?;
        let mut hooks = std::mem::take(self.hooks.all());
        self.with_identity(|clone, identity| {
            hooks.iter_mut().for_each(|hook| hook(clone, identity));
        });
        hooks.append(self.hooks.all());
        *self.hooks.all() = hooks;
        Ok(())
    }

    fn with_identity(&mut self, run: impl FnOnce(&mut Self, &Identity)) {
        let identity = self.identity.copy();
        run(self, &identity);
    }
}
