//! Memory mapped by a process, and memory left on the machine.

use std::time::{Duration, Instant};
use std::{fs, io, thread};

use cowslip::units::ByteCount;

use super::{Error, check};
use crate::interrupt::Interrupt;

/// The longest wait for the aftermath of a save.
const LONGEST_AFTERMATH: Duration = Duration::from_secs(5);

/// The memory of one process as the kernel maps it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mapped {
    /// Mapped by huge pages: anonymous, shared memory or file.
    pub(crate) huge_bytes: u64,
    pub(crate) resident_bytes: u64,
}

impl Mapped {
    pub(crate) fn from_pid(pid: u64) -> Result<Self, Error> {
        let path = format!("/proc/{pid}/smaps_rollup");
        fs::read_to_string(&path).map(|text| Self::parse(&text)).map_err(Error::io(path))
    }

    fn parse(smaps: &str) -> Self {
        let huge = ["AnonHugePages:", "ShmemPmdMapped:", "FilePmdMapped:"];
        Self {
            huge_bytes: huge.iter().filter_map(|field| kib_field(smaps, field)).sum(),
            resident_bytes: kib_field(smaps, "Rss:").unwrap_or(0),
        }
    }

    /// The share of the resident memory that huge pages map.
    pub(crate) fn coverage(self) -> f64 {
        self.huge_bytes as f64 / self.resident_bytes.max(1) as f64
    }

    /// Waits until a process's mappings stop changing, when all work of the last save has ended.
    pub(crate) fn when_stable(pid: u64, stop: &Interrupt) -> Result<Self, Error> {
        let begin = Instant::now();
        let (mut last, mut unchanged) = (Self::from_pid(pid)?, 0);
        while unchanged < 3 && begin.elapsed() < LONGEST_AFTERMATH {
            check(stop)?;
            thread::sleep(Duration::from_millis(100));
            let now = Self::from_pid(pid)?;
            unchanged = if now == last { unchanged + 1 } else { 0 };
            last = now;
        }
        Ok(last)
    }
}

/// Memory available to programs.
pub(crate) fn available_bytes() -> Result<u64, Error> {
    machine("MemAvailable:")
}

/// Anonymous memory of all processes on huge pages. Reading it delays no process, unlike reading [`Mapped`].
pub(crate) fn anonymous_huge_bytes() -> Result<u64, Error> {
    machine("AnonHugePages:")
}

/// Memory of all processes that is in no file, and their page tables: it shows the cost of a save, whichever process
/// copies.
pub(crate) fn used_bytes() -> Result<u64, Error> {
    let path = "/proc/meminfo";
    let text = fs::read_to_string(path).map_err(Error::io(path))?;
    let fields = ["AnonPages:", "Shmem:", "PageTables:"];
    Ok(fields.iter().filter_map(|field| kib_field(&text, field)).sum())
}

fn machine(field: &str) -> Result<u64, Error> {
    let path = "/proc/meminfo";
    let text = fs::read_to_string(path).map_err(Error::io(path))?;
    kib_field(&text, field).ok_or_else(|| {
        Error::io(path)(io::Error::new(io::ErrorKind::InvalidData, format!("no {field}")))
    })
}

/// Touches free memory: a virtual machine's host may have taken it away, and the first copy of a page must not pay for
/// that.
pub(crate) fn warm(bytes: u64, stop: &Interrupt) -> Result<(), Error> {
    let warmed = crate::host::warm(ByteCount(bytes), stop);
    check(stop)?;
    warmed.map_err(|error| Error::io("touch free memory")(io::Error::other(error)))
}

/// The value of a `Field:   123 kB` line, in bytes.
fn kib_field(text: &str, field: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(field))?;
    value.trim().strip_suffix(" kB")?.parse::<u64>().ok().map(|kib| kib << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_huge_mapping_counts() {
        let mapped = Mapped::parse(
            "00400000-7fff [rollup]\nRss:     8192 kB\nAnonHugePages:  2048 kB\n\
             ShmemPmdMapped: 4096 kB\nFilePmdMapped:  0 kB\n",
        );
        assert_eq!(mapped, Mapped { huge_bytes: 6 << 20, resident_bytes: 8 << 20 });
        assert_eq!(mapped.coverage(), 0.75);
    }
}
