//! Who gets the huge pages that there are: the process that has least of its share, hottest regions first.
//!
//! The metric is Ingens': a claim is `weight / (huge · (f + penalty · (1 − f)))`, where `f` is the part of
//! the process' huge pages that are in use. The process with the greatest claim is served next.

use super::reason::Reason;
use crate::promote::{ProcessLook, REGION_PAGES, Region, Settings, System};
use crate::units::page_size_bytes;

/// A region of a process counts as in use from this much heat on.
const HOT_PERCENT: u8 = 10;

/// A process that wants promotions.
pub(super) struct Claimant {
    weight: f64,
    huge: u64,
    in_use: f64,
    /// What the budget for stalls still allows.
    allowed: u64,
    /// Indices of the regions it wants, the next one last.
    wanted: Vec<usize>,
}

impl Claimant {
    pub(super) fn new(look: &ProcessLook, mut wanted: Vec<usize>, allowed: u64) -> Self {
        let huge: Vec<&Region> = look.regions.iter().filter(|region| region.is_huge).collect();
        let is_hot = |region: &&&Region| region.heat_percent.is_none_or(|heat| heat >= HOT_PERCENT);
        let hot = huge.iter().filter(is_hot).count();
        wanted.sort_by_key(|&index| {
            let region = &look.regions[index];
            (region.heat_percent.unwrap_or(100), region.pages, std::cmp::Reverse(region.address))
        });
        Self {
            weight: f64::from(look.weight.max(1)),
            huge: huge.len() as u64,
            in_use: if huge.is_empty() { 1.0 } else { hot as f64 / huge.len() as f64 },
            allowed,
            wanted,
        }
    }

    fn claim(&self, idle_penalty: f64) -> f64 {
        let huge = (self.huge + 1) as f64;
        self.weight / (huge * (self.in_use + idle_penalty * (1.0 - self.in_use)))
    }
}

/// What is left of the system's means.
struct Means {
    available_bytes: u64,
    keep_bytes: u64,
    huge_pages: u64,
}

impl Means {
    fn take(&mut self, region: &Region) -> Result<(), Reason> {
        let page = page_size_bytes() as u64;
        let added = u64::from(REGION_PAGES.saturating_sub(region.pages)) * page;
        let rest = self.available_bytes.saturating_sub(added);
        if rest < self.keep_bytes {
            return Err(Reason::MemoryLow);
        }
        self.huge_pages = self.huge_pages.checked_sub(1).ok_or(Reason::Fragmented)?;
        self.available_bytes = rest;
        Ok(())
    }
}

/// Grants or refuses every wish: `decided(process, region, reason)` is called once for each.
/// The grants come in the order in which to act.
pub(super) fn share(
    looks: &[ProcessLook],
    mut claimants: Vec<(usize, Claimant)>,
    system: &System,
    settings: &Settings,
    mut decided: impl FnMut(usize, usize, Reason),
) {
    let keep = u64::from(settings.keep_available_percent);
    let mut means = Means {
        available_bytes: system.available_bytes,
        keep_bytes: system.total_bytes / 100 * keep,
        huge_pages: system.free_huge_pages.max(u64::from(settings.compactions)),
    };
    let mut served: Vec<usize> = Vec::new();
    loop {
        let greatest = claimants.iter_mut().filter(|(_, it)| !it.wanted.is_empty()).max_by(
            |(_, a), (_, b)| {
                a.claim(settings.idle_penalty).total_cmp(&b.claim(settings.idle_penalty))
            },
        );
        let Some((process, claimant)) = greatest else { return };
        let region = claimant.wanted.pop().expect("it wants something");
        let granted = if system.pressure_percent >= settings.pressure_percent {
            Err(Reason::Pressure)
        } else if claimant.allowed == 0 {
            Err(Reason::StallBudget)
        } else {
            means.take(&looks[*process].regions[region])
        };
        let reason = match granted {
            Ok(()) => {
                claimant.allowed -= 1;
                claimant.huge += 1;
                served.push(*process);
                Reason::Full
            }
            Err(Reason::Fragmented | Reason::MemoryLow)
                if served.iter().any(|it| it != process) =>
            {
                Reason::FairShare
            }
            Err(reason) => reason,
        };
        decided(*process, region, reason);
    }
}
