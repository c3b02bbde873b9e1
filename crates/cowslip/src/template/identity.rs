//! The identities of clones.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use cowslip_sys::error::{During, Result};
use cowslip_sys::process;

use super::{Base, TemplateClone};

/// The identity of a clone since its mapping or its last reset. No two are equal: use it to seed anything that was
/// random or unique when the template was made.
pub struct Identity {
    number: u64,
    entropy: [u8; 32],
    pid: i32,
}

impl Identity {
    pub(super) fn new(base: &Base) -> Result<Self> {
        let mut entropy = [0; 32];
        process::fill_random(&mut entropy).during("get random bytes for a clone")?;
        Ok(Self { number: base.pin.next_number(), entropy, pid: process::pid() })
    }

    /// A number that belongs to this clone alone, in all processes, until its next reset.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Random bytes from `getrandom(2)`.
    pub fn entropy(&self) -> &[u8; 32] {
        &self.entropy
    }

    /// The process that the clone is in.
    pub fn pid(&self) -> i32 {
        self.pid
    }
}

impl fmt::Debug for Identity {
    /// Omits the entropy, which does not belong in logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut fields = f.debug_struct("Identity");
        fields.field("number", &self.number).field("pid", &self.pid).finish_non_exhaustive()
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
        let Identity { number, entropy, pid } = self.identity;
        run(self, &Identity { number, entropy, pid });
    }
}
