//! Failure points for tests: the n-th call of an operation fails with a chosen errno.
//!
//! Without the feature `failpoints` this does nothing. With it, each operation has one rule in an atomic, so that it
//! works from any thread, including the service thread of an arena.

use crate::Result;

/// The operations that can be made to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
#[allow(missing_docs, reason = "each is the system call or ioctl of its name")]
pub enum Op {
    Mmap,
    Mremap,
    Mprotect,
    Madvise,
    ProcessMadvise,
    UffdOpen,
    UffdRegister,
    UffdUnregister,
    UffdWriteProtect,
    UffdWake,
    UffdCopy,
    UffdRead,
    Poll,
    Nap,
    ServicePanic,
    PagemapScan,
    PagemapProbe,
    PageFlags,
    Pwrite,
    Fallocate,
    SeekHole,
    Cachestat,
    MemfileOpen,
    MountClone,
    PidfdOpen,
    ThreadStart,
    TaskStart,
    PerfOpen,
    PerfMap,
    PerfSetOutput,
    DurableCreate,
    DurableNameless,
    DurableDirect,
    DurableWrite,
    DurableShort,
    DurableSync,
    DurableRename,
}

#[cfg(not(feature = "failpoints"))]
#[inline(always)]
pub(crate) fn check(_: Op) -> Result<()> {
    Ok(())
}

/// Panics instead of failing.
#[cfg(not(feature = "failpoints"))]
#[inline(always)]
pub fn panic_if_told(_: Op) {}

#[cfg(feature = "failpoints")]
pub use active::*;

#[cfg(feature = "failpoints")]
mod active {
    use super::{Op, Result};
    use crate::Errno;
    use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

    const OPS: usize = Op::DurableRename as usize + 1;

    // Per operation: calls to let pass (bits 40..), calls to fail (bits 16..40), errno (bits 0..16).
    static RULES: [AtomicU64; OPS] = [const { AtomicU64::new(0) }; OPS];

    /// Lets the next `pass` calls of `op` through, then makes `times` calls fail with `errno`. The
    /// rule ends when the guard is dropped.
    pub fn fail(op: Op, pass: u32, times: u32, errno: Errno) -> Injection {
        let errno = u64::from(errno.raw_os_error().unsigned_abs() as u16);
        RULES[op as usize]
            .store(u64::from(pass) << 40 | u64::from(times.min(0xff_ffff)) << 16 | errno, Relaxed);
        Injection { op }
    }

    /// A rule of [`fail`] in force.
    #[must_use = "the rule ends when this is dropped"]
    #[derive(Debug)]
    pub struct Injection {
        op: Op,
    }

    impl Injection {
        /// Returns true once every requested failure has happened.
        pub fn is_spent(&self) -> bool {
            RULES[self.op as usize].load(Relaxed) == 0
        }
    }

    impl Drop for Injection {
        fn drop(&mut self) {
            RULES[self.op as usize].store(0, Relaxed);
        }
    }

    /// Panics instead of failing.
    pub fn panic_if_told(op: Op) {
        if let Err(errno) = check(op) {
            panic!("a test asked for it: {op:?}, {errno}");
        }
    }

    pub(crate) fn check(op: Op) -> Result<()> {
        let mut hit = None;
        let _ = RULES[op as usize].fetch_update(Relaxed, Relaxed, |rule| {
            hit = None;
            if rule == 0 {
                None
            } else if rule >> 40 > 0 {
                Some(rule - (1 << 40))
            } else {
                hit = Some(Errno::from_raw_os_error((rule & 0xffff) as i32));
                let left = (rule >> 16) - 1;
                Some(if left == 0 { 0 } else { left << 16 | rule & 0xffff })
            }
        });
        hit.map_or(Ok(()), Err)
    }
}

#[cfg(all(test, feature = "failpoints"))]
mod tests {
    use super::*;
    use crate::Errno;

    #[test]
    fn passes_then_fails_then_passes() {
        let rule = fail(Op::PidfdOpen, 1, 2, Errno::NOMEM);
        let seen: Vec<_> = (0..4).map(|_| check(Op::PidfdOpen).is_err()).collect();
        assert_eq!(seen, [false, true, true, false]);
        assert!(rule.is_spent());
    }
}
