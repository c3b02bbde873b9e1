//! The processor time of a process, and the state of the memory that it is measured with.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use cowslip_sys::error::{During, Result};
use cowslip_sys::pagemap::Scanner;
use cowslip_sys::{self as sys, Errno, process};

use super::Target;

impl Target {
    /// Nanoseconds of processor time that it has used.
    pub(crate) fn cpu_ns(&self) -> Result<u64> {
        let used = process::cpu_ns_of(self.id.pid);
        // Another process has its number only if it has ended.
        self.check_alive().and(used).during("read the processor time of the process")
    }

    /// Nanoseconds for which each of its threads ran or waited for a processor; empty where the kernel does not tell.
    pub(crate) fn busy_ns(&self) -> Result<BTreeMap<i32, u64>> {
        let threads = fs::read_dir(format!("/proc/{}/task", self.id.pid)).into_iter().flatten();
        let busy = threads.flatten().filter_map(|thread| {
            let number = thread.file_name().to_str()?.parse().ok()?;
            let text = fs::read_to_string(thread.path().join("schedstat")).ok()?;
            let mut words = text.split_ascii_whitespace().map(str::parse::<u64>);
            Some((number, words.next()?.ok()? + words.next()?.ok()?))
        });
        let busy = busy.collect();
        self.check_alive().during("read the threads of the process")?;
        Ok(busy)
    }

    /// The addresses of those of these regions that are huge.
    pub(crate) fn huge_among(&self, addresses: impl Iterator<Item = u64>) -> Result<BTreeSet<u64>> {
        let find = || {
            let scanner = Scanner::new(self.handle.open_file("pagemap")?);
            let mut huge = BTreeSet::new();
            for address in addresses {
                if self.look_again(&scanner, address)?.is_huge {
                    huge.insert(address);
                }
            }
            Ok(huge)
        };
        find().during("look at the process")
    }

    fn check_alive(&self) -> sys::Result<()> {
        if self.handle.has_ended()? { Err(Errno::SRCH) } else { Ok(()) }
    }
}
