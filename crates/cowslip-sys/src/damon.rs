//! Which memory of processes is accessed, as the kernel samples it (DAMON, `/sys/kernel/mm/damon/admin`).
//!
//! DAMON tests the accessed bit of one page of each of its regions, again and again, and splits and joins
//! regions as their accesses differ: heat of a few MiB, at a cost that does not grow with memory. One
//! kernel thread does it for all processes given; of each, a scheme that changes nothing says what it saw.
//!
//! The interface is root's and the whole system's. It is taken only if nobody else has it, and given back
//! as it was found. Linux 6.7 and later: before, a scheme cannot be of one process alone, or cannot say.

use std::fmt::Display;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::units::VirtRange;
use crate::{Errno, Result};

const ADMIN: &str = "/sys/kernel/mm/damon/admin/kdamonds";
const SAMPLE_US: u32 = 25_000;
/// Accesses are counted over this many samples.
const SAMPLES: u32 = 20;
/// What is mapped is found out again after this time.
const UPDATE_US: u32 = 1_000_000;
const LEAST_REGIONS: u32 = 10;
const MOST_REGIONS: u32 = 500;

/// Part of a process, and how much it is accessed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Accesses {
    /// Which part.
    pub range: VirtRange,
    /// In how many samples of the last half second, percent.
    pub percent: u8,
}

/// The interface, taken.
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

/// Whether processes can be watched, found out by preparing it: `ENOSYS` without DAMON, `EOPNOTSUPP` if it
/// knows no processes (`CONFIG_DAMON_VADDR`) or cannot say what it saw of one (before Linux 6.7), `EACCES`
/// for others than root, `EBUSY` while somebody else uses it.
pub fn probe() -> Result<()> {
    Claim::take(Path::new(ADMIN))?.prepare(&[std::process::id().cast_signed()])
}

/// The kernel thread that watches now, whoever started it, and whether it watches anything.
pub fn kernel_thread() -> Option<i32> {
    fs::read_to_string(Path::new(ADMIN).join("0/pid"))
        .ok()?
        .trim()
        .parse()
        .ok()
        .filter(|it| *it > 0)
}

/// Ends the watching of a process that was killed before it could: only if `kernel_thread` is the one that
/// it had started.
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

    /// What was accessed lately, for each process in the order of [`Self::start`]: by address, with gaps. It
    /// waits for the next sample; `EINVAL` once all processes have ended.
    pub fn accesses(&self) -> Result<Vec<Vec<Accesses>>> {
        self.claim.write("0/state", "update_schemes_tried_regions")?;
        let all = (0..self.count).map(|index| self.claim.tried(index)).collect();
        self.claim.write("0/state", "clear_schemes_tried_regions")?;
        all
    }
}

impl Drop for Damon {
    fn drop(&mut self) {
        // It has ended by itself if all processes have.
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

    /// Sets one thread up to watch these processes, with a scheme for each.
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
                // A kernel that lacks one of these files cannot say what it saw of one process.
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
            // What is of no such target is filtered out.
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
            // Beside the regions there is a file of their sum.
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                let range = VirtRange::between(number("start")? as usize, number("end")? as usize);
                let percent = number("nr_accesses")? * 100 / u64::from(SAMPLES);
                all.push(Accesses { range, percent: percent.min(100) as u8 });
            }
        }
        all.sort_unstable_by_key(|it| it.range.start);
        Ok(all)
    }

    fn write(&self, name: &str, value: &str) -> Result<()> {
        write(&self.kdamonds.join(name), value)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        // Nothing else is to be done if somebody else has meanwhile made it theirs.
        let _ = self.write("nr_kdamonds", "0");
    }
}

/// Whether a context can watch processes at all.
fn knows_processes(context: &Path) -> Result<()> {
    let known = read(&context.join("avail_operations"))?;
    known.lines().any(|it| it == "vaddr").then_some(()).ok_or(Errno::OPNOTSUPP)
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
