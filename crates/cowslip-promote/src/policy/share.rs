//! Shares out the available huge pages: the process with the least of its share comes first, and its hottest
//! regions.
//!
//! The metric is Ingens', times what a huge page saves: a claim is `weight · value / (huge · (f + penalty · (1 − f)))`.
//! `f` is the fraction of the huge pages that are in use, `value` the processor time that each of them saves, over the mean
//! of all targets where that was measured; 1 elsewhere. That is the division with the greatest sum of `weight · value ·
//! ln(huge)`. Processes of one group have one share and one claim together. The group with the greatest claim is served
//! next; in a group, the process whose own claim is the greatest.
//!
//! While huge pages are scarce, the group with the least claim gives up some, idle ones first, as long as its claim to have
//! them back would be less than the claim of the group that lacks one; by a tenth, if they are in use. Hot regions of a
//! group may have its idle ones. Split, they are memory that the kernel can compact.

use std::collections::BTreeMap;

use super::reason::Reason;
use crate::model::added_bytes;
use crate::model::{GainState, Limit, Look, ProcessLook, Region, RegionKind, Settings};

/// The greater claim to a huge page in use, over that of the target which has it: moving it costs both of them.
const MARGIN: f64 = 1.1;

/// The huge pages of a process or group, and its weight.
#[derive(Clone, Copy, Default)]
struct Holdings {
    weight: f64,
    /// The sum over the processes, and their number.
    value: f64,
    processes: u64,
    huge: u64,
    hot: u64,
    /// Huge pages granted now, assumed to be used as much as those before.
    granted: u64,
}

impl Holdings {
    fn from_look(look: &ProcessLook, mean_saved_ns: f64) -> Self {
        let huge = look.regions.iter().filter(|region| region.is_huge);
        let hot = huge.clone().filter(|region| !is_idle(look, region)).count() as u64;
        let value = look.saved_ns.map_or(1.0, |saved_ns| saved_ns / mean_saved_ns);
        let weight = f64::from(look.weight.max(1));
        Self { weight, value, processes: 1, huge: huge.count() as u64, hot, granted: 0 }
    }

    fn add(&mut self, other: Self) {
        self.weight = self.weight.max(other.weight);
        self.value += other.value;
        self.processes += other.processes;
        self.huge += other.huge;
        self.hot += other.hot;
    }

    /// Its claim to have an idle huge page back, once it has given one up.
    fn claim_without_one(&self, idle_penalty: f64) -> f64 {
        Self { huge: self.huge.saturating_sub(1), ..*self }.claim(idle_penalty)
    }

    fn claim(&self, idle_penalty: f64) -> f64 {
        let hot = self.hot.min(self.huge);
        let in_use = if self.huge == 0 { 1.0 } else { hot as f64 / self.huge as f64 };
        self.weight * self.value
            / self.processes as f64
            / ((self.huge + self.granted + 1) as f64 * (in_use + idle_penalty * (1.0 - in_use)))
    }
}

/// A process that wants promotions.
pub(super) struct Claimant {
    own: Holdings,
    /// Index of its group, or of a group of its own.
    group: usize,
    /// Promotions and splits that the budget for stalls still allows.
    allowed: u64,
    /// Indices of the regions it wants, the next one last.
    wanted: Vec<usize>,
    /// Indices of huge regions that it may have to give up, the coldest last.
    given: Vec<usize>,
    /// No other target has to give it a huge page any more.
    is_denied: bool,
}

fn is_idle(look: &ProcessLook, region: &Region) -> bool {
    look.gain == GainState::NotShown || region.is_cold()
}

/// The mean of what a huge page saves, over the processes where that was measured.
pub(super) fn mean_saved_ns(looks: &[ProcessLook]) -> f64 {
    let measured = looks.iter().filter_map(|look| look.saved_ns);
    let (sum, count) = measured.fold((0.0, 0.0), |(sum, count), ns| (sum + ns, count + 1.0));
    f64::max(sum / f64::max(count, 1.0), f64::MIN_POSITIVE)
}

impl Claimant {
    pub(super) fn new(
        look: &ProcessLook,
        mut wanted: Vec<usize>,
        mut given: Vec<usize>,
        allowed: u64,
        mean_saved_ns: f64,
    ) -> Self {
        given.sort_by_key(|&index| {
            let region = &look.regions[index];
            let key = (region.heat_percent.unwrap_or(100), region.nonzero_pages);
            std::cmp::Reverse((!is_idle(look, region), key))
        });
        wanted.sort_by_key(|&index| {
            let region = &look.regions[index];
            (
                region.heat_percent.unwrap_or(100),
                region.used_pages(),
                std::cmp::Reverse(region.address),
            )
        });
        let own = Holdings::from_look(look, mean_saved_ns);
        Self { own, group: 0, allowed, wanted, given, is_denied: false }
    }

    /// True if another target may have this huge region: it can be split.
    pub(super) fn may_give(region: &Region) -> bool {
        region.kind == RegionKind::Private && region.is_huge
    }
}

/// The holdings of the groups; tells each claimant its group.
fn groups(looks: &[ProcessLook], claimants: &mut [(usize, Claimant)]) -> Vec<Holdings> {
    let mut named: BTreeMap<&str, usize> = BTreeMap::new();
    let mut groups: Vec<Holdings> = Vec::new();
    for (process, claimant) in claimants {
        let fresh = groups.len();
        claimant.group = match &looks[*process].group {
            Some(name) => *named.entry(name).or_insert(fresh),
            None => fresh,
        };
        if claimant.group == fresh {
            groups.push(Holdings::default());
        }
        groups[claimant.group].add(claimant.own);
    }
    groups
}

/// Huge pages that there may be.
#[derive(Clone, Copy)]
pub(super) struct Supply {
    /// Those that the kernel may be asked for.
    pub(super) huge_pages: u64,
    /// Those that targets may have to give up.
    pub(super) take_backs: u64,
    /// Those that the kernel may be asked for besides, if no target gives one.
    pub(super) probes: u64,
    /// True if the kernel has found none, and is not asked for others at the moment.
    pub(super) is_waiting: bool,
}

/// The resources left for promotions.
pub(super) struct Means<'a> {
    available_bytes: u64,
    keep_bytes: u64,
    supply: Supply,
    /// Promotions that the budget of processor time allows.
    actions: u64,
    is_pressed: bool,
    /// Limits by the name of their group.
    limits: BTreeMap<&'a str, Limit>,
    settings: &'a Settings,
}

impl<'a> Means<'a> {
    pub(super) fn new(
        look: &'a Look,
        actions: u64,
        supply: Supply,
        settings: &'a Settings,
    ) -> Self {
        let (system, keep) = (&look.system, u64::from(settings.keep_available_percent));
        let limits = look.processes.iter().flat_map(|process| &process.limits);
        Self {
            available_bytes: system.available_bytes,
            keep_bytes: system.total_bytes / 100 * keep,
            supply,
            actions,
            is_pressed: system.pressure_percent >= settings.pressure_percent,
            limits: limits.map(|limit| (limit.group.as_str(), limit.clone())).collect(),
            settings,
        }
    }

    fn take(&mut self, process: &ProcessLook, region: &Region) -> Result<(), Reason> {
        if self.is_pressed || process.pressure_percent >= self.settings.pressure_percent {
            return Err(Reason::Pressure);
        }
        let added_bytes = added_bytes(region.own_pages());
        let rest = self.available_bytes.saturating_sub(added_bytes);
        if rest < self.keep_bytes {
            return Err(Reason::MemoryLow);
        }
        let has_room =
            |limit: &Limit| self.limits[limit.group.as_str()].has_room(added_bytes, self.settings);
        if !process.limits.iter().all(has_room) {
            return Err(Reason::LimitNear);
        }
        match (self.actions, self.supply.huge_pages) {
            (0, _) => return Err(Reason::CpuBudget),
            (_, 0) => return Err(Reason::Fragmented),
            _ => (),
        }
        self.actions -= 1;
        self.supply.huge_pages -= 1;
        self.available_bytes = rest;
        for limit in &process.limits {
            let left = self.limits.get_mut(limit.group.as_str());
            left.expect("all are in it").room_bytes -= added_bytes;
        }
        Ok(())
    }
}

/// Takes a huge page back for one of the claimants: the giver, and its region. The group with the least claim gives, or an
/// idle one of its own group goes to a hot region.
fn take_back(
    looks: &[ProcessLook],
    groups: &mut [Holdings],
    claimants: &mut [(usize, Claimant)],
    (group, is_for_hot): (usize, bool),
    idle_penalty: f64,
) -> Option<(usize, usize)> {
    let least = |claimant: &Claimant| groups[claimant.group].claim_without_one(idle_penalty);
    let claim = groups[group].claim(idle_penalty);
    let givers = claimants.iter().enumerate().filter_map(|(at, (process, giver))| {
        let region = &looks[*process].regions[*giver.given.last()?];
        let is_idle = is_idle(&looks[*process], region);
        let margin = if is_idle { 1.0 } else { MARGIN };
        let has_to = match giver.group == group {
            true => is_for_hot && is_idle,
            false => least(giver) * margin < claim,
        };
        (has_to && giver.allowed > 0).then_some((giver.group == group, !is_idle, least(giver), at))
    });
    let first = givers.min_by(|a, b| {
        a.0.cmp(&b.0).then(a.2.total_cmp(&b.2)).then(a.1.cmp(&b.1)).then(a.3.cmp(&b.3))
    });
    let (_, is_in_use, _, at) = first?;
    let (process, giver) = &mut claimants[at];
    giver.allowed -= 1;
    let holdings = &mut groups[giver.group];
    holdings.huge -= 1;
    holdings.hot -= u64::from(is_in_use);
    let region = giver.given.pop()?;
    Some((*process, region))
}

/// Decides about every region that is wanted or idle: `decided(process, region, reason)` is called once for each.
/// The grants come in the order in which to act.
pub(super) fn share(
    looks: &[ProcessLook],
    mut claimants: Vec<(usize, Claimant)>,
    mut means: Means<'_>,
    settings: &Settings,
    mut decided: impl FnMut(usize, usize, Reason),
) {
    let mut groups = groups(looks, &mut claimants);
    let mut served: Vec<usize> = Vec::new();
    let penalty = settings.idle_penalty;
    loop {
        let claims = |claimant: &Claimant| {
            (groups[claimant.group].claim(penalty), claimant.own.claim(penalty))
        };
        let greatest = claimants
            .iter()
            .enumerate()
            .filter(|(_, (_, claimant))| !claimant.wanted.is_empty())
            .max_by(|(_, (_, a)), (_, (_, b))| {
                let (a, b) = (claims(a), claims(b));
                a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1))
            });
        let Some((at, &(process, _))) = greatest else { break };
        let look = &looks[process];
        let region = claimants[at].1.wanted.pop().expect("it wants something");
        let mut granted = match claimants[at].1.allowed {
            0 => Err(Reason::StallBudget),
            _ => means.take(look, &look.regions[region]),
        };
        let may_take =
            means.supply.take_backs > 0 && means.actions > 1 && !claimants[at].1.is_denied;
        if granted == Err(Reason::Fragmented) && may_take {
            let for_whom = (claimants[at].1.group, look.regions[region].is_hot());
            match take_back(looks, &mut groups, &mut claimants, for_whom, penalty) {
                Some((giver, given)) => {
                    decided(giver, given, Reason::TakenBack);
                    means.supply.take_backs -= 1;
                    means.supply.huge_pages += 1;
                    means.actions -= 1;
                    granted = means.take(look, &look.regions[region]);
                }
                None => claimants[at].1.is_denied = true,
            }
        }
        if granted == Err(Reason::Fragmented) && means.supply.probes > 0 {
            means.supply.probes -= 1;
            means.supply.huge_pages += 1;
            granted = means.take(look, &look.regions[region]);
        }
        let claimant = &mut claimants[at].1;
        let reason = match granted {
            Ok(()) => {
                // It may have given the page itself.
                claimant.allowed = claimant.allowed.saturating_sub(1);
                claimant.own.granted += 1;
                groups[claimant.group].granted += 1;
                served.push(process);
                Reason::Full
            }
            Err(Reason::Fragmented | Reason::MemoryLow)
                if served.iter().any(|other| *other != process) =>
            {
                Reason::FairShare
            }
            Err(Reason::Fragmented) if means.supply.is_waiting => Reason::BackingOff,
            Err(reason) => reason,
        };
        decided(process, region, reason);
    }
    for (process, claimant) in &claimants {
        claimant.given.iter().for_each(|&region| decided(*process, region, Reason::Huge));
    }
}
