//! Effects of a virtual machine's host on measurements, and whether the measurements can be believed.
//!
//! A host that takes free memory back (free page reporting, a balloon) makes the first touch of a page that was unused
//! for two seconds many times as dear. Huge pages suffer most, because free blocks of their size are reported. A host
//! that runs others on the same processors steals time. Memory is therefore [warmed](warm) just before each
//! measurement, and a measurement is a [`Span`]: the cost of a touch after each warming, and the stolen time, go into
//! the rows that were measured.
//!
//! The bounds are from runs on such a host (AMD EPYC, Linux 6.18). In memory that was in use a moment ago, a page costs
//! 1.3 us, or 0.2 us as a part of a huge page; in other memory 1.5 us and 5.5 to 9.9 us. Both together are five times
//! as much and more, against up to 2.3 times where memory is warm but the machine is not idle. A twentieth of stolen
//! time is below the spread of a median of few rounds.

use std::fs;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use crate::report::HostState;
use cowslip::units::{ByteCount, CHUNK_BYTES, page_size_bytes, round_up};

use super::error::{Error, Result, during};
use super::interrupt::Interrupt;
use super::memory::{Anonymous, Memory};

/// Highest allowed cost of a touch, relative to memory in use.
const MOST_TOUCH_RATIO: f64 = 3.0;
/// Highest allowed share of stolen processor time.
const MOST_STOLEN: f64 = 0.05;
/// Memory touched to measure the cost of memory in use.
const FLOOR: ByteCount = ByteCount::mib(64);
const FLOOR_TRIES: usize = 4;
/// Highest number of touches to warm memory.
const WARM_TRIES: usize = 3;
/// Index of stolen time in a line of `/proc/stat`: user, nice, system, idle, iowait, irq, softirq, steal.
const STEAL: usize = 7;

/// The dearest touch after a warming since it was last taken, in picoseconds.
static WORST_WARMED: AtomicU64 = AtomicU64::new(0);

/// Cost of a first touch of `bytes` of free memory now, and the time stolen meanwhile.
///
/// # Errors
/// [`Error::Failed`] without so much memory, or without `/proc/stat`.
pub fn measure(bytes: ByteCount) -> Result<HostState> {
    let before = Ticks::now()?;
    let touch_ns = touch_ns(bytes, &Interrupt::default())?;
    state(touch_ns, before.stolen_until(&Ticks::now()?))
}

/// Touches `bytes` of free memory, on pages of both sizes, until that costs no more than memory in use: the next
/// measurement finds it warm. [`Span::end`] tells whether that worked.
///
/// # Errors
/// Like [`measure`]; [`Error::Interrupted`].
pub fn warm(bytes: ByteCount, stop: &Interrupt) -> Result<()> {
    let most = floor_ns()? * MOST_TOUCH_RATIO;
    let mut price = f64::INFINITY;
    for _ in 0..WARM_TRIES {
        price = price.min(touch_ns(bytes, stop)?);
        if price <= most {
            break;
        }
    }
    note_warmed(price);
    Ok(())
}

/// Notes the cost of a touch after a warming in another process, which measured for this one.
pub(crate) fn note_warmed(touch_ns: f64) {
    WORST_WARMED.fetch_max((touch_ns * 1e3) as u64, Relaxed);
}

/// A measurement with the host's state meanwhile. A span inside another takes its warmings to itself.
#[derive(Debug)]
pub struct Span(Ticks);

impl Span {
    /// Starts a span.
    ///
    /// # Errors
    /// Like [`measure`].
    pub fn begin() -> Result<Self> {
        floor_ns()?;
        WORST_WARMED.store(0, Relaxed);
        Ticks::now().map(Self)
    }

    /// The dearest touch after a warming, and the stolen time, since [`begin`](Self::begin). Without a warming it is
    /// the cost of a touch of memory in use.
    ///
    /// # Errors
    /// Like [`measure`].
    pub fn end(self) -> Result<HostState> {
        let stolen = self.0.stolen_until(&Ticks::now()?);
        let warmed = WORST_WARMED.swap(0, Relaxed) as f64 / 1e3;
        state(if warmed > 0.0 { warmed } else { floor_ns()? }, stolen)
    }
}

fn state(touch_ns: f64, stolen_share: f64) -> Result<HostState> {
    let host_fit = touch_ns <= floor_ns()? * MOST_TOUCH_RATIO && stolen_share <= MOST_STOLEN;
    Ok(HostState { touch_ns_per_page: touch_ns, stolen_share, host_fit })
}

/// Nanoseconds of a first touch of a page, the mean of pages of both sizes. A huge page counts as its many small pages,
/// each of which is written.
fn touch_ns(bytes: ByteCount, stop: &Interrupt) -> Result<f64> {
    let bytes = bytes.0.max(1) as usize;
    let bytes = round_up(bytes, CHUNK_BYTES).unwrap_or(bytes);
    let mut took_ns = 0.0;
    for pages in [Anonymous::Base, Anonymous::Huge] {
        let memory = Memory::anonymous(bytes, pages)?;
        let began = Instant::now();
        memory.touch(stop)?;
        took_ns += began.elapsed().as_nanos() as f64;
    }
    Ok(took_ns / (2 * bytes / page_size_bytes()) as f64)
}

/// Cost of a touch where the host took nothing back: the least of some tries on the same memory.
fn floor_ns() -> Result<f64> {
    static KNOWN: OnceLock<f64> = OnceLock::new();
    if let Some(&known) = KNOWN.get() {
        return Ok(known);
    }
    let mut least = f64::INFINITY;
    for _ in 0..FLOOR_TRIES {
        least = least.min(touch_ns(FLOOR, &Interrupt::default())?);
    }
    Ok(*KNOWN.get_or_init(|| least))
}

/// The processors' time so far, in the kernel's ticks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Ticks {
    stolen: u64,
    all: u64,
}

impl Ticks {
    fn now() -> Result<Self> {
        let stat = fs::read_to_string("/proc/stat").map_err(during("read /proc/stat"))?;
        Self::parse(&stat).ok_or_else(|| Error::Failed("/proc/stat has no line cpu".to_owned()))
    }

    fn parse(stat: &str) -> Option<Self> {
        let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
        let times = line.split_ascii_whitespace().take(STEAL + 1).map(|word| word.parse().ok());
        let times = times.collect::<Option<Vec<u64>>>()?;
        Some(Self { stolen: *times.get(STEAL)?, all: times.iter().sum() })
    }

    fn stolen_until(&self, later: &Self) -> f64 {
        let all = later.all.saturating_sub(self.all);
        let stolen = later.stolen.saturating_sub(self.stolen);
        if all == 0 { 0.0 } else { stolen as f64 / all as f64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stolen_time_is_a_share_of_all() {
        let before = Ticks::parse("cpu  10 0 10 70 5 0 5 0 0 0\ncpu0 1 2 3\n").unwrap();
        assert_eq!(before, Ticks { stolen: 0, all: 100 });
        let after = Ticks::parse("cpu  20 0 20 130 5 0 5 20 9 9\n").unwrap();
        assert_eq!(before.stolen_until(&after), 0.2);
        assert_eq!(after.stolen_until(&after), 0.0);
        assert_eq!(Ticks::parse("cpu 1 2\n"), None);
        assert_eq!(Ticks::parse("intr 1\n"), None);
    }

    #[test]
    fn both_bounds_make_a_host_unfit() {
        let floor = floor_ns().unwrap();
        let fit = |touch, stolen| state(floor * touch, stolen).unwrap().host_fit;
        assert!(fit(1.2, 0.0) && fit(1.2, 0.04));
        assert!(!fit(10.0, 0.0) && !fit(1.2, 0.2));
    }
}
