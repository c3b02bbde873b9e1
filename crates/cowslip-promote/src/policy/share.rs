//! Shares out the available huge pages: the process with the least of its share comes first, and its hottest
//! regions.
//!
//! The metric is Ingens': a claim is `weight / (huge · (f + penalty · (1 − f)))`, where `f` is the fraction
//! of the huge pages that are in use. Processes of one group have one share and one claim together. The group
//! with the greatest claim is served next; in a group, the process whose own claim is the greatest.
//!
//! Where the kernel finds no huge page for a target, the group with the least claim gives up idle ones, as long as its claim to
//! have them back would be less than the claim of the group that lacks one. Split, they are memory that the kernel can compact.

use std::collections::BTreeMap;

use super::reason::Reason;
use crate::model::added_bytes;
use crate::model::{Limit, Look, ProcessLook, Region, RegionKind, Settings};

/// A region of a process counts as in use from this much heat on.
const HOT_PERCENT: u8 = 10;

/// The huge pages of a process or group, and its weight.
#[derive(Clone, Copy, Default)]
struct Holdings {
    weight: f64,
    huge: u64,
    hot: u64,
    /// Huge pages granted now, assumed to be used as much as those before.
    granted: u64,
}

impl Holdings {
    fn from_look(look: &ProcessLook) -> Self {
        let huge = look.regions.iter().filter(|region| region.is_huge);
        let is_hot = |region: &&Region| region.heat_percent.is_none_or(|heat| heat >= HOT_PERCENT);
        let hot = huge.clone().filter(is_hot).count() as u64;
        Self { weight: f64::from(look.weight.max(1)), huge: huge.count() as u64, hot, granted: 0 }
    }

    fn add(&mut self, other: Self) {
        self.weight = self.weight.max(other.weight);
        self.huge += other.huge;
        self.hot += other.hot;
    }

    /// Its claim to have an idle huge page back, once it has given one up.
    fn claim_without_one(&self, idle_penalty: f64) -> f64 {
        Self { huge: self.huge.saturating_sub(1), ..*self }.claim(idle_penalty)
    }

    fn claim(&self, idle_penalty: f64) -> f64 {
        let in_use = if self.huge == 0 { 1.0 } else { self.hot as f64 / self.huge as f64 };
        self.weight
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
    /// Indices of huge regions that it does not use, the coldest last.
    idle: Vec<usize>,
    /// True if it wants a huge page, and the kernel found none.
    lacks_huge_page: bool,
}

impl Claimant {
    pub(super) fn new(
        look: &ProcessLook,
        mut wanted: Vec<usize>,
        mut idle: Vec<usize>,
        allowed: u64,
        lacks_huge_page: bool,
    ) -> Self {
        idle.sort_by_key(|&index| std::cmp::Reverse(look.regions[index].heat_percent));
        wanted.sort_by_key(|&index| {
            let region = &look.regions[index];
            (
                region.heat_percent.unwrap_or(100),
                region.used_pages(),
                std::cmp::Reverse(region.address),
            )
        });
        let own = Holdings::from_look(look);
        Self { own, group: 0, allowed, wanted, idle, lacks_huge_page }
    }

    /// True if another target may have this huge region.
    pub(super) fn may_give(region: &Region) -> bool {
        let is_idle = region.heat_percent.is_some_and(|heat| heat < HOT_PERCENT);
        region.kind == RegionKind::Private && region.is_huge && is_idle
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

/// The resources left for promotions.
pub(super) struct Means<'a> {
    available_bytes: u64,
    keep_bytes: u64,
    huge_pages: u64,
    /// Promotions that the budget of processor time allows.
    actions: u64,
    /// Idle huge pages that targets may be asked to give up.
    take_backs: u64,
    is_pressed: bool,
    /// Limits by the name of their group.
    limits: BTreeMap<&'a str, Limit>,
    settings: &'a Settings,
}

impl<'a> Means<'a> {
    pub(super) fn new(
        look: &'a Look,
        actions: u64,
        take_backs: u64,
        settings: &'a Settings,
    ) -> Self {
        let (system, keep) = (&look.system, u64::from(settings.keep_available_percent));
        let limits = look.processes.iter().flat_map(|process| &process.limits);
        Self {
            available_bytes: system.available_bytes,
            keep_bytes: system.total_bytes / 100 * keep,
            huge_pages: system.free_huge_pages.max(u64::from(settings.compactions)),
            actions,
            take_backs,
            is_pressed: system.pressure_percent >= settings.pressure_percent,
            limits: limits.map(|limit| (limit.group.as_str(), limit.clone())).collect(),
            settings,
        }
    }

    fn take(&mut self, process: &ProcessLook, region: &Region) -> Result<(), Reason> {
        if self.is_pressed || process.pressure_percent >= self.settings.pressure_percent {
            return Err(Reason::Pressure);
        }
        let added_bytes = added_bytes(region.used_pages());
        let rest = self.available_bytes.saturating_sub(added_bytes);
        if rest < self.keep_bytes {
            return Err(Reason::MemoryLow);
        }
        let has_room =
            |limit: &Limit| self.limits[limit.group.as_str()].has_room(added_bytes, self.settings);
        if !process.limits.iter().all(has_room) {
            return Err(Reason::LimitNear);
        }
        match (self.actions, self.huge_pages) {
            (0, _) => return Err(Reason::CpuBudget),
            (_, 0) => return Err(Reason::Fragmented),
            _ => (self.actions, self.huge_pages) = (self.actions - 1, self.huge_pages - 1),
        }
        self.available_bytes = rest;
        for limit in &process.limits {
            let left = self.limits.get_mut(limit.group.as_str());
            left.expect("all are in it").room_bytes -= added_bytes;
        }
        Ok(())
    }
}

/// Takes an idle huge page back for the group with the greatest claim of those that lack one, from the one with the least
/// claim: the claimant and its region.
fn take_back(
    groups: &mut [Holdings],
    claimants: &mut [(usize, Claimant)],
    idle_penalty: f64,
) -> Option<(usize, usize)> {
    let lacking = claimants
        .iter()
        .filter(|(_, claimant)| claimant.lacks_huge_page)
        .map(|(_, claimant)| claimant.group);
    let claim = |group: &usize| groups[*group].claim(idle_penalty);
    let group = lacking.max_by(|a, b| claim(a).total_cmp(&claim(b)))?;
    let may_give = |claimant: &Claimant| {
        claimant.group != group && claimant.allowed > 0 && !claimant.idle.is_empty()
    };
    let givers = claimants.iter_mut().filter(|(_, claimant)| may_give(claimant));
    let claim_of = |claimant: &Claimant| groups[claimant.group].claim_without_one(idle_penalty);
    let (process, giver) = givers.min_by(|(_, a), (_, b)| claim_of(a).total_cmp(&claim_of(b)))?;
    if claim_of(giver) >= claim(&group) {
        return None;
    }
    let region = giver.idle.pop()?;
    giver.allowed -= 1;
    groups[giver.group].huge -= 1;
    // It comes at a later look.
    groups[group].granted += 1;
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
    loop {
        let claims = |claimant: &Claimant| {
            let penalty = settings.idle_penalty;
            (groups[claimant.group].claim(penalty), claimant.own.claim(penalty))
        };
        let greatest = claimants
            .iter_mut()
            .filter(|(_, claimant)| !claimant.wanted.is_empty())
            .max_by(|(_, a), (_, b)| {
                let (a, b) = (claims(a), claims(b));
                a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1))
            });
        let Some((process, claimant)) = greatest else { break };
        let process = *process;
        let region = claimant.wanted.pop().expect("it wants something");
        let look = &looks[process];
        let granted = match claimant.allowed {
            0 => Err(Reason::StallBudget),
            _ => means.take(look, &look.regions[region]),
        };
        let reason = match granted {
            Ok(()) => {
                claimant.allowed -= 1;
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
            Err(reason) => reason,
        };
        decided(process, region, reason);
    }
    for _ in 0..means.take_backs.min(means.actions) {
        let taken = take_back(&mut groups, &mut claimants, settings.idle_penalty);
        let Some((giver, region)) = taken else { break };
        decided(giver, region, Reason::TakenBack);
    }
    for (process, claimant) in &claimants {
        claimant.idle.iter().for_each(|&region| decided(*process, region, Reason::Huge));
    }
}
