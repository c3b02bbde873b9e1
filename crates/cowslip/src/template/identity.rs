//! The identities of clones.

use std::fmt;

use cowslip_sys::error::{During, Result};
use cowslip_sys::process;

use super::base::Base;

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

    /// The same one, for hooks that get the clone as well.
    pub(super) fn copy(&self) -> Self {
        Self { number: self.number, entropy: self.entropy, pid: self.pid }
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
