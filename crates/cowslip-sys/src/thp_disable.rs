#![allow(unsafe_code)]
//! The use of transparent huge pages by this process (`PR_SET_THP_DISABLE`), which forks and programs that it executes
//! inherit.
//!
//! # Safety
//! The calls change no memory, and pass integers only.

use crate::{Result, passthrough};

const PR_SET_THP_DISABLE: i32 = 41;
const PR_GET_THP_DISABLE: i32 = 42;
/// `PR_THP_DISABLE_EXCEPT_ADVISED`
const EXCEPT_ADVISED: usize = 2;

/// The memory that gets no huge pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ThpDisable {
    /// None: the system's settings hold.
    None,
    /// All of it, whatever is asked for.
    All,
    /// Memory without advice (Linux 6.18): `MADV_HUGEPAGE` and `MADV_COLLAPSE` still work.
    ExceptAdvised,
}

impl ThpDisable {
    /// The present state.
    pub fn get() -> Result<Self> {
        // SAFETY: see the module.
        match unsafe { passthrough::prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0) } {
            0 => Ok(Self::None),
            1 => Ok(Self::All),
            -1 => Err(crate::errno::last()),
            _ => Ok(Self::ExceptAdvised),
        }
    }

    /// Makes it the state of this process; `EINVAL` where the kernel lacks it.
    pub fn set(self) -> Result<()> {
        let (disable, flags) = match self {
            Self::None => (0, 0),
            Self::All => (1, 0),
            Self::ExceptAdvised => (1, EXCEPT_ADVISED),
        };
        // SAFETY: see the module.
        match unsafe { passthrough::prctl(PR_SET_THP_DISABLE, disable, flags, 0, 0) } {
            0 => Ok(()),
            _ => Err(crate::errno::last()),
        }
    }
}
