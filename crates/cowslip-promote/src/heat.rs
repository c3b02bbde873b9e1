//! How often processes access their memory, from the best source that the kernel offers.

use cowslip::host::Answer;
use cowslip_sys::damon::{self, Accesses, Damon};
use cowslip_sys::{self as sys, Errno};

use crate::crash_state::{self, Found};
use crate::model::{HeatSource, ProcessId, ProcessLook, Region};
use crate::target::Target;

/// A source of heat, and its availability here.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProbedHeatSource {
    /// The source.
    pub source: HeatSource,
    /// The result of the probe.
    pub answer: Answer,
    /// Why not, or a description; for people.
    pub detail: &'static str,
}

/// The sources of heat, the best first, each tried on this process.
///
/// ```
/// use cowslip_promote::{HeatSource, probe_heat_sources};
/// let sources = probe_heat_sources();
/// let best = sources.iter().find(|source| source.answer.is_available()).map(|source| source.source);
/// assert!(matches!(best, Some(HeatSource::Damon | HeatSource::Mappings) | None));
/// ```
pub fn probe_heat_sources() -> Vec<ProbedHeatSource> {
    vec![damon(), idle_pages(), mappings()]
}

fn damon() -> ProbedHeatSource {
    let (answer, detail) = match damon::probe() {
        Ok(()) => (Answer::Available, "samples regions of its own"),
        Err(Errno::NOSYS) => (Answer::Unsupported, "this kernel was built without it"),
        Err(Errno::OPNOTSUPP) => {
            let why = "this kernel's cannot watch processes (CONFIG_DAMON_VADDR, Linux 6.7)";
            (Answer::Unsupported, why)
        }
        Err(errno @ (Errno::ACCESS | Errno::PERM)) => (refused(errno), "its interface is root's"),
        Err(errno @ Errno::BUSY) => (
            refused(errno),
            "it is in use, maybe by the kernel: /sys/module/damon_stat/parameters/enabled",
        ),
        Err(errno) => (refused(errno), "it could not be set up"),
    };
    ProbedHeatSource { source: HeatSource::Damon, answer, detail }
}

fn idle_pages() -> ProbedHeatSource {
    let detail = match std::fs::exists("/sys/kernel/mm/page_idle/bitmap") {
        Ok(true) => "there, and not used by this version",
        _ => "this kernel was built without it (CONFIG_IDLE_PAGE_TRACKING)",
    };
    ProbedHeatSource { source: HeatSource::IdlePages, answer: Answer::Unsupported, detail }
}

fn mappings() -> ProbedHeatSource {
    let own = sys::target::Target::open(sys::process::pid());
    let (answer, detail) = match own.and_then(|target| target.clear_referenced()) {
        Ok(()) => (Answer::Available, "one sum for each mapping"),
        Err(Errno::NOENT) => (Answer::Unsupported, "this kernel has no clear_refs"),
        Err(errno) => (refused(errno), "clear_refs may not be written"),
    };
    ProbedHeatSource { source: HeatSource::Mappings, answer, detail }
}

fn refused(errno: Errno) -> Answer {
    match errno {
        Errno::ACCESS | Errno::PERM => Answer::Denied { hint: "run as root".into() },
        _ => Answer::Unknown { errno: errno.raw_os_error() },
    }
}

/// The file that keeps the kernel thread to end.
const STATE_FILE: &str = "promote-damon.json";

/// Ends the DAMON thread that a killed process left running.
pub fn end_left_watching() {
    if let Ok(Found::Left(thread)) = crash_state::find::<i32>(STATE_FILE) {
        let _ = damon::end(thread);
        let _ = crash_state::forget(STATE_FILE);
    }
}

/// DAMON, watching the current targets.
#[derive(Debug, Default)]
pub(super) struct Sampling {
    watched: Vec<ProcessId>,
    damon: Option<Damon>,
}

impl Sampling {
    /// Adds heat to a look at these targets; starts anew when the targets change.
    pub(super) fn add<'a>(
        &mut self,
        looks: &mut [ProcessLook],
        targets: impl Iterator<Item = &'a Target>,
    ) -> sys::Result<()> {
        let wanted: Vec<ProcessId> = targets.map(Target::id).collect();
        if self.watched != wanted || self.damon.is_none() {
            // There is only one interface: release it before taking it again.
            self.end();
            self.watched = wanted;
            if !self.watched.is_empty() {
                let pids: Vec<i32> = self.watched.iter().map(|process| process.pid).collect();
                self.damon = match Damon::start(&pids) {
                    // One of them has ended; the next look notices.
                    Err(Errno::INVAL | Errno::SRCH) => None,
                    started => Some(started?),
                };
                // If this fails, `kill -9`, and only that, leaves it on until the targets end.
                let _ = damon::kernel_thread().map(|thread| crash_state::keep(STATE_FILE, thread));
            }
            return Ok(());
        }
        let Some(damon) = &self.damon else { return Ok(()) };
        let all = match damon.accesses() {
            // All of them have ended; the next look notices.
            Err(Errno::INVAL) => return Ok(()),
            all => all?,
        };
        for (process, accesses) in self.watched.iter().zip(&all) {
            let Some(look) = looks.iter_mut().find(|look| look.process == *process) else {
                continue;
            };
            look.heat_source = HeatSource::Damon;
            for region in &mut look.regions {
                region.heat_percent = mean(region, accesses);
            }
        }
        Ok(())
    }
}

impl Sampling {
    fn end(&mut self) {
        if self.damon.take().is_some() {
            let _ = crash_state::forget(STATE_FILE);
        }
    }
}

impl Drop for Sampling {
    fn drop(&mut self) {
        self.end();
    }
}

/// The mean over a region, by bytes, where heat is known.
fn mean(region: &Region, accesses: &[Accesses]) -> Option<u8> {
    let range = region.range();
    let first = accesses.partition_point(|part| part.range.end() <= range.start);
    let (mut bytes, mut sum) = (0, 0);
    for part in accesses[first..].iter().take_while(|part| part.range.start < range.end()) {
        let common = part.range.intersect(range).len;
        bytes += common;
        sum += common * usize::from(part.percent);
    }
    sum.checked_div(bytes).map(|percent| percent as u8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cowslip_sys::units::{CHUNK_BYTES, VirtRange};

    #[test]
    fn the_heat_of_a_region_is_that_of_its_bytes() {
        let at = |start, len, percent| Accesses { range: VirtRange::new(start, len), percent };
        let region =
            |number: usize| Region { address: (number * CHUNK_BYTES) as u64, ..Region::default() };
        let half = CHUNK_BYTES / 2;
        let all = [at(half, half, 40), at(CHUNK_BYTES, half, 100), at(CHUNK_BYTES + half, half, 0)];
        assert_eq!(mean(&region(0), &all), Some(40), "of what is known");
        assert_eq!(mean(&region(1), &all), Some(50));
        assert_eq!(mean(&region(2), &all), None);
    }

    #[test]
    fn each_source_says_whether_it_is_there_and_why_not() {
        let sources = probe_heat_sources();
        let names: Vec<_> = sources.iter().map(|source| source.source).collect();
        assert_eq!(names, [HeatSource::Damon, HeatSource::IdlePages, HeatSource::Mappings]);
        assert!(sources.iter().all(|source| !source.detail.is_empty()));
        assert!(sources[2].answer.is_available(), "of this process it is to be had");
    }
}
