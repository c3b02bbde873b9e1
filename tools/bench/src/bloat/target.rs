//! A process that obeys commands, and the kernel's view of processes.

use std::fs;
use std::process;
use std::thread;
use std::time::{Duration, Instant};

use crate::report::Row;
use cowslip::units::CHUNK_BYTES;
use cowslip_sys::pagemap::{Method, PageKinds, Scanner};
use cowslip_sys::procfs;

use super::line_protocol::LineProtocol;
use super::process::{Command, Said};
use super::settings::{Settings, System};
use super::{BYTES_CHANGED, Bench};
use crate::demo::redis::memory::Mapped;
use crate::error::{Error, Result, during};
use crate::interrupt::Interrupt;
use crate::program;

const LOOK: Duration = Duration::from_millis(50);
/// Memory of a process at its start, on huge pages, which makes khugepaged know it.
pub(super) const KNOWN_BYTES: u64 = 2 * CHUNK_BYTES as u64;

/// A process of this program that holds memory. It ends with this value, or with this process.
#[derive(Debug)]
pub(super) struct Target(LineProtocol);

impl Target {
    pub(super) fn start() -> Result<Self> {
        let mut command = process::Command::new(program::this()?);
        command.arg("bloat-process");
        LineProtocol::start(&mut command).map(Self)
    }

    /// Starts one that khugepaged knows: it scans only processes that were once eligible for huge pages.
    pub(super) fn known(system: &System, stop: &Interrupt) -> Result<Self> {
        system.set(&Settings::ASLEEP)?;
        let mut target = Self::start()?;
        target.tell(Command::Fill { bytes: KNOWN_BYTES, base: false }, stop)?;
        system.set(&Settings::NEVER)?;
        Ok(target)
    }

    /// Starts one that has written all of its memory, on base pages.
    pub(super) fn filled(bytes: u64, system: &System, stop: &Interrupt) -> Result<Self> {
        let mut target = Self::known(system, stop)?;
        target.fill(bytes, system, stop)?;
        Ok(target)
    }

    pub(super) fn fill(&mut self, bytes: u64, system: &System, stop: &Interrupt) -> Result<()> {
        system.set(&Settings::NEVER)?;
        self.tell(Command::Fill { bytes, base: false }, stop).map(drop)
    }

    pub(super) fn pid(&self) -> i32 {
        self.0.pid()
    }

    /// Sends a command, and waits until it is done.
    pub(super) fn tell(&mut self, command: Command, stop: &Interrupt) -> Result<Said> {
        self.ask(command)?;
        self.answer(stop)
    }

    /// Sends a command.
    pub(super) fn ask(&mut self, command: Command) -> Result<()> {
        let text = serde_json::to_string(&command).map_err(during("write a command"))?;
        self.0.ask(&text)
    }

    /// Waits for the answer to a command.
    pub(super) fn answer(&mut self, stop: &Interrupt) -> Result<Said> {
        let line = self.0.answer(stop)?;
        match serde_json::from_str(&line).map_err(during("read an answer"))? {
            Said::Failed(why) => Err(Error::Failed(why)),
            said => Ok(said),
        }
    }

    /// Adds the number of its bytes that differ from its writes.
    pub(super) fn push_changed(&mut self, bench: &mut Bench<'_>, like: &Row) -> Result<()> {
        match self.tell(Command::Check, bench.stop)? {
            Said::Wrong(words) => {
                let bytes = (words * 8) as f64;
                let row = Row::new(&like.system, BYTES_CHANGED, "value", bytes, "bytes");
                let variant = like.variant.as_deref();
                bench.report.row(row.size_bytes(like.size_bytes).variant(variant));
                Ok(())
            }
            other => Err(Error::Failed(format!("it said {other:?} of its content"))),
        }
    }
}

/// Time that a process's first thread has spent on a processor so far, in ns.
pub(super) fn cpu_ns(pid: i32) -> Result<u64> {
    let path = format!("/proc/{pid}/schedstat");
    let text = fs::read_to_string(&path).map_err(during(&path))?;
    let ns = text.split_whitespace().next().and_then(|word| word.parse().ok());
    ns.ok_or_else(|| Error::Failed(format!("{path} holds {text:?}")))
}

/// Processor time of all descendants of this process that have ended.
pub(super) fn children_ns() -> Result<u64> {
    const STAT: &str = "/proc/self/stat";
    const NS_A_TICK: u64 = 10_000_000;
    let text = fs::read_to_string(STAT).map_err(during(STAT))?;
    let ticks = text.rsplit_once(") ").and_then(|(_, fields)| {
        // Fields 16 and 17, counted from the third.
        let ticks = fields.split(' ').skip(13).take(2).map(|word| word.parse::<u64>().ok());
        ticks.sum::<Option<u64>>()
    });
    let ticks = ticks.ok_or_else(|| Error::Failed(format!("{STAT} holds {text:?}")))?;
    Ok(ticks * NS_A_TICK)
}

pub(super) fn mapped(pid: i32) -> Result<Mapped> {
    Mapped::from_pid(pid as u64).map_err(during("read the memory of a process"))
}

/// Anonymous memory of a process that huge pages map. Unlike [`mapped`] it looks at no page: a promotion waits for any
/// holder of the process's memory map, 10 to 30 ms a GiB for a sum over fragmented pages.
pub(super) fn huge_bytes(pid: i32) -> Result<u64> {
    let huge = scan_huge(pid).map_err(|errno| Error::Failed(format!("look at {pid}: {errno}")))?;
    huge.map_or_else(|| mapped(pid).map(|memory| memory.huge_bytes), Ok)
}

/// `None` before Linux 6.7.
fn scan_huge(pid: i32) -> cowslip_sys::Result<Option<u64>> {
    let process = cowslip_sys::target::Target::open(pid)?;
    let scanner = Scanner::new(process.open_file("pagemap")?);
    if scanner.method() == Method::Entries {
        return Ok(None);
    }
    let maps = process.read_file("maps")?;
    let mut bytes = 0;
    for mapping in procfs::mappings(&maps).filter(procfs::Mapping::is_anonymous) {
        scanner.kinds(mapping.range, |run, kinds| {
            if kinds.contains(PageKinds::HUGE) {
                bytes += run.len as u64;
            }
        })?;
    }
    Ok(Some(bytes))
}

/// This part of a process's resident memory.
pub(super) fn part_of_resident(pid: i32, part: f64) -> Result<u64> {
    Ok((mapped(pid)?.resident_bytes as f64 * part) as u64)
}

/// Waits until a process has enough huge memory, or the longest time has passed. Returns the time, and the huge memory
/// in the end.
pub(super) fn until_huge(
    pid: i32,
    enough_bytes: u64,
    longest: Duration,
    stop: &Interrupt,
) -> Result<(Duration, u64)> {
    let began = Instant::now();
    loop {
        stop.check()?;
        let now_bytes = huge_bytes(pid)?;
        let passed = began.elapsed();
        if now_bytes >= enough_bytes || passed >= longest {
            return Ok((passed, now_bytes));
        }
        thread::sleep(LOOK);
    }
}

/// Sleeps, unless the user wants to stop.
pub(super) fn sleep(time: Duration, stop: &Interrupt) -> Result<()> {
    let began = Instant::now();
    while began.elapsed() < time {
        stop.check()?;
        thread::sleep(LOOK.min(time - began.elapsed().min(time)));
    }
    Ok(())
}
