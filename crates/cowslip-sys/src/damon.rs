//! Samples which memory of processes is accessed, with the kernel's DAMON (`/sys/kernel/mm/damon/admin`).
//!
//! DAMON tests the accessed bit of one page of each of its regions, again and again, and splits and joins regions by
//! their accesses: heat at a grain of a few MiB, at a cost that does not grow with memory. One kernel thread serves all
//! given processes; for each, a scheme without an action reports the accesses.
//!
//! The interface belongs to root and to the whole system. It is taken only if it is free, and given back as it was
//! found. It needs Linux 6.7: earlier schemes cannot be limited to one process, or cannot report.

use std::fmt::Display;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::units::VirtRange;
use crate::{Errno, Result};

const ADMIN: &str = "/sys/kernel/mm/damon/admin/kdamonds";
/// The kernel's own users of DAMON. While one is on, nothing else can watch; Debian's Linux 7.2 begins with the first.
const MODULES: [&str; 3] = ["damon_stat", "damon_reclaim", "damon_lru_sort"];
const SAMPLE_US: u32 = 25_000;
/// Accesses are counted over this many samples.
const SAMPLES: u32 = 20;
/// The mappings are looked up again after this time.
const UPDATE_US: u32 = 1_000_000;
const LEAST_REGIONS: u32 = 10;
const MOST_REGIONS: u32 = 500;

/// A part of a process and its share of accesses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Accesses {
    /// The part.
    pub range: VirtRange,
    /// Percent of the samples of the last half second in which it was accessed.
    pub percent: u8,
}

/// The interface, taken by this process.
#[derive(Debug)]
struct Claim {
    kdamonds: PathBuf,
}

/// Processes that are being watched.
#[derive(Debug)]
pub struct Damon {
    claim: Claim,
    count: usize,
}

/// Finds out by a preparation if processes can be watched: `ENOSYS` without DAMON, `EOPNOTSUPP` if it does not support
/// processes (`CONFIG_DAMON_VADDR`) or cannot report on a single one (before Linux 6.7), `EACCES` for users other than
/// root, `EBUSY` while it is in use, also by the kernel.
pub fn probe() -> Result<()> {
    Claim::take(Path::new(ADMIN))?.prepare(&[std::process::id().cast_signed()])?;
    let is_on = |module| {
        read(Path::new(&format!("/sys/module/{module}/parameters/enabled"))).as_deref() == Ok("Y")
    };
    if MODULES.into_iter().any(is_on) { Err(Errno::BUSY) } else { Ok(()) }
}

/// The number of the kernel thread that watches now, by any starter and with any target.
pub fn kernel_thread() -> Option<i32> {
    fs::read_to_string(Path::new(ADMIN).join("0/pid"))
        .ok()?
        .trim()
        .parse()
        .ok()
        .filter(|number| *number > 0)
}

/// Stops the watching that a killed process left running: only if `kernel_thread` is still the one that it started.
pub fn end(thread: i32) -> Result<()> {
    if kernel_thread() != Some(thread) {
        return Ok(());
    }
    let claim = Claim { kdamonds: ADMIN.into() };
    drop(Damon { claim, count: 0 });
    Ok(())
}

impl Damon {
    /// Watches these processes; an error is one of [`probe`]'s, or `ESRCH`.
    pub fn start(pids: &[i32]) -> Result<Self> {
        let claim = Claim::take(Path::new(ADMIN))?;
        claim.prepare(pids)?;
        claim.write("0/state", "on")?;
        Ok(Self { claim, count: pids.len() })
    }

    /// The latest accesses, for each process in the order of [`Self::start`]: by address, with gaps. Waits for the next
    /// sample; `EINVAL` once all processes have ended.
    pub fn accesses(&self) -> Result<Vec<Vec<Accesses>>> {
        self.claim.write("0/state", "update_schemes_tried_regions")?;
        let all = (0..self.count).map(|index| self.claim.tried(index)).collect();
        self.claim.write("0/state", "clear_schemes_tried_regions")?;
        all
    }
}

impl Drop for Damon {
    fn drop(&mut self) {
        // It has stopped by itself if all processes have ended.
        let _ = self.claim.write("0/state", "off");
    }
}

impl Claim {
    fn take(kdamonds: &Path) -> Result<Self> {
        let count = kdamonds.join("nr_kdamonds");
        let taken = match read(&count) {
            Err(Errno::NOENT) => return Err(Errno::NOSYS),
            taken => taken?,
        };
        if taken != "0" {
            return Err(knows_processes(&kdamonds.join("0/contexts/0"))
                .err()
                .unwrap_or(Errno::BUSY));
        }
        write(&count, "1")?;
        Ok(Self { kdamonds: kdamonds.to_owned() })
    }

    /// Sets up one thread to watch these processes, with a scheme for each.
    fn prepare(&self, pids: &[i32]) -> Result<()> {
        self.write("0/contexts/nr_contexts", "1")?;
        knows_processes(&self.kdamonds.join("0/contexts/0"))?;
        let set = |name: &str, value: &dyn Display| {
            self.write(&format!("0/contexts/0/{name}"), &value.to_string())
        };
        set("operations", &"vaddr")?;
        set("monitoring_attrs/intervals/sample_us", &SAMPLE_US)?;
        set("monitoring_attrs/intervals/aggr_us", &(SAMPLE_US * SAMPLES))?;
        set("monitoring_attrs/intervals/update_us", &UPDATE_US)?;
        set("monitoring_attrs/nr_regions/min", &LEAST_REGIONS)?;
        set("monitoring_attrs/nr_regions/max", &MOST_REGIONS)?;
        set("targets/nr_targets", &pids.len())?;
        set("schemes/nr_schemes", &pids.len())?;
        for (index, pid) in pids.iter().enumerate() {
            set(&format!("targets/{index}/pid_target"), pid)?;
            let scheme = |name: &str, value: &dyn Display| {
                // A kernel that lacks one of these files cannot report on a single process.
                set(&format!("schemes/{index}/{name}"), value).map_err(or_unsupported)
            };
            scheme("action", &"stat")?;
            for pattern in ["sz", "nr_accesses", "age"] {
                scheme(&format!("access_pattern/{pattern}/max"), &u32::MAX)?;
            }
            scheme("access_pattern/sz/max", &u64::MAX)?;
            scheme("apply_interval_us", &SAMPLE_US)?;
            scheme("filters/nr_filters", &1)?;
            scheme("filters/0/type", &"target")?;
            scheme("filters/0/damon_target_idx", &index)?;
            // Filters out regions of other targets.
            scheme("filters/0/matching", &"N")?;
        }
        Ok(())
    }

    fn tried(&self, scheme: usize) -> Result<Vec<Accesses>> {
        let directory = self.kdamonds.join(format!("0/contexts/0/schemes/{scheme}/tried_regions"));
        let mut all = Vec::new();
        for entry in fs::read_dir(&directory).map_err(|error| errno_of(&error))?.flatten() {
            let number = |name: &str| -> Result<u64> {
                read(&entry.path().join(name))?.parse().map_err(|_| Errno::IO)
            };
            // A file with their sum lies beside the regions.
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                let range = VirtRange::between(number("start")? as usize, number("end")? as usize);
                let percent = number("nr_accesses")? * 100 / u64::from(SAMPLES);
                all.push(Accesses { range, percent: percent.min(100) as u8 });
            }
        }
        all.sort_unstable_by_key(|accesses| accesses.range.start);
        Ok(all)
    }

    fn write(&self, name: &str, value: &str) -> Result<()> {
        write(&self.kdamonds.join(name), value)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        // If another process has taken it meanwhile, there is nothing left to do.
        let _ = self.write("nr_kdamonds", "0");
    }
}

/// Fails with `EOPNOTSUPP` if a context cannot watch processes.
fn knows_processes(context: &Path) -> Result<()> {
    let known = read(&context.join("avail_operations"))?;
    known.lines().any(|line| line == "vaddr").then_some(()).ok_or(Errno::OPNOTSUPP)
}

fn or_unsupported(errno: Errno) -> Errno {
    if matches!(errno, Errno::NOENT | Errno::INVAL) { Errno::OPNOTSUPP } else { errno }
}

fn read(path: &Path) -> Result<String> {
    let text = fs::read_to_string(path).map_err(|error| errno_of(&error))?;
    Ok(text.trim().to_owned())
}

fn write(path: &Path, value: &str) -> Result<()> {
    let file = fs::OpenOptions::new().write(true).open(path);
    file.and_then(|mut file| file.write_all(value.as_bytes())).map_err(|error| errno_of(&error))
}

fn errno_of(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}
