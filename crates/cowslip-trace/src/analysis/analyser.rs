//! The analyser: sums up a trace event by event.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

#[cfg(feature = "picture")]
use super::frames::{Frame, resolve};
use super::frames::{Site, Sites};
use super::shape::{Shape, Walks, Watch, is_arrival};
use super::{Analysis, Group, MappingIdentity, Rate, StackSums, Sums, ThreadSums};
use crate::attribute::{Attribution, Attributor, Mapping, MappingId, Place, advice};
use crate::cost::FaultCost;
use crate::model::{Event, EventKind, Fault, Header, StackId, Trace};
use crate::perf_maps::PerfMaps;

impl Analysis {
    /// Sums up a trace; `cost` is the cost of faults that were not timed.
    ///
    /// ```
    /// use cowslip_trace::Analysis;
    /// use cowslip_trace::attribute::FaultKind;
    /// use cowslip_trace::model::{Event, Fault, Trace, EventKind};
    /// let what = EventKind::Fault(Fault::at(0x20_0000, 0x40_1000));
    /// let events = vec![Event { time_ns: 5, pid: 7, tid: 7, what }];
    /// let analysis = Analysis::new(&Trace { events, ..Trace::default() }, None);
    /// assert_eq!(analysis.sums.faults_of_kind(FaultKind::Unknown), 1, "nothing was mapped there");
    /// ```
    pub fn new(trace: &Trace, cost: Option<FaultCost>) -> Self {
        let mut analyser = Analyser::new(&trace.header);
        for event in &trace.events {
            analyser.observe(event, |stack| trace.frames(stack));
        }
        analyser.finish(cost)
    }
}

/// Sums up a trace event by event, in memory that grows with its mappings, stacks and touched pages, not with
/// its faults.
#[derive(Debug)]
pub struct Analyser {
    attributor: Attributor,
    page_bytes: u64,
    header: Header,
    sites: Sites,
    groups: Vec<Work>,
    group_of: HashMap<(Place, Option<u64>, Option<Site>), u32>,
    /// By mapping: its group, and the number of pages that came in it.
    mappings: Vec<(u32, u32)>,
    walks: Walks,
    sums: Sums,
    by_site: Vec<Sums>,
    threads: HashMap<(u32, u32), Thread>,
    rate: Rate,
    first_ns: Option<u64>,
    last_ns: u64,
    lost: u64,
    forks: u64,
    has_past: bool,
}

#[derive(Debug)]
struct Work {
    group: Group,
    watch: Watch,
    /// The number of pages that came in each of its mappings.
    per_mapping: Vec<u32>,
}

#[derive(Debug)]
struct Thread {
    name: Arc<str>,
    sums: Sums,
}

impl Analyser {
    /// An analyser for the trace with this header.
    pub fn new(header: &Header) -> Self {
        Self {
            attributor: Attributor::new(header),
            page_bytes: header.machine.base_page_bytes(),
            header: header.clone(),
            sites: Sites::default(),
            groups: Vec::new(),
            group_of: HashMap::new(),
            mappings: Vec::new(),
            walks: Walks::default(),
            sums: Sums::default(),
            by_site: Vec::new(),
            threads: HashMap::new(),
            rate: Rate::default(),
            first_ns: None,
            last_ns: 0,
            lost: 0,
            forks: 0,
            has_past: false,
        }
    }

    /// Names code that programs generated themselves, by their perf maps.
    #[must_use]
    pub fn with_perf_maps(mut self, code: PerfMaps) -> Self {
        self.sites.code = code;
        self
    }

    /// Takes the next event in the order of time; for a fault, returns its attribution. `frames` returns the
    /// frames of a call stack, the innermost first.
    pub fn observe<'a>(
        &mut self,
        event: &Event,
        frames: impl Fn(StackId) -> &'a [u64] + Copy,
    ) -> Option<Attribution> {
        let first_ns = *self.first_ns.get_or_insert(event.time_ns);
        self.last_ns = self.last_ns.max(event.time_ns);
        self.sites.code.observe(event);
        match &event.what {
            EventKind::Exec { name } | EventKind::Name { name } => {
                self.thread(event.pid, event.tid).name = name.clone();
            }
            EventKind::Lost { count } => self.lost = self.lost.saturating_add(*count),
            EventKind::Fork { child_pid, child_tid } => {
                let name = self.thread(event.pid, event.tid).name.clone();
                self.thread(*child_pid, *child_tid).name = name;
                self.forks += u64::from(*child_pid != event.pid);
            }
            EventKind::Advise { range, advice: advice::HUGEPAGE } => {
                let address = range.start as u64;
                if let Some((mapping, _)) = self.attributor.locate(event.pid, address) {
                    let group = self.group(mapping) as usize;
                    self.groups[group].group.huge_advice += 1;
                }
            }
            _ => {}
        }
        let attribution = self.attributor.observe(event);
        self.add_mappings(frames);
        if let (EventKind::Fault(fault), Some(attribution)) = (&event.what, attribution) {
            self.rate.add(event.time_ns.saturating_sub(first_ns));
            self.count(event, fault, attribution, frames);
        }
        attribution
    }

    /// The mappings after the events so far.
    pub fn attributor(&self) -> &Attributor {
        &self.attributor
    }

    /// The frame at an address of a process, by the events so far.
    #[cfg(feature = "picture")]
    pub(crate) fn frame(&mut self, pid: u32, address: u64) -> Frame {
        resolve(address, pid, &self.attributor, &mut self.sites.code)
    }

    /// The number of a mapping's group: they are numbered from 0, in the order of their first mappings.
    pub(crate) fn group(&self, mapping: MappingId) -> u32 {
        self.mappings[mapping.0 as usize].0
    }

    /// The analysis of all events. `cost` is the cost of faults that were not timed.
    pub fn finish(mut self, cost: Option<FaultCost>) -> Analysis {
        let (mappings, spans) = self.attributor.finish();
        for (mapping, (group, arrivals)) in mappings.iter().zip(&self.mappings) {
            self.groups[*group as usize].count(mapping, *arrivals);
        }
        let (groups, places) = sorted(self.groups);
        let group_of = self.mappings.iter().map(|(group, _)| places[*group as usize]).collect();
        let stacks = self.sites.into_frames().into_iter().zip(self.by_site);
        let mut stacks: Vec<_> = stacks.map(|(frames, sums)| StackSums { frames, sums }).collect();
        stacks.retain(|stack| stack.sums.faults() > 0);
        stacks.sort_by_key(|stack| Reverse(stack.sums.faults()));
        let threads = self.threads.into_iter();
        let mut threads: Vec<_> = threads
            .map(|((pid, tid), Thread { name, sums })| ThreadSums { pid, tid, name, sums })
            .filter(|thread| thread.sums.faults() > 0)
            .collect();
        threads.sort_by_key(|thread| (Reverse(thread.sums.faults()), thread.pid, thread.tid));
        Analysis {
            duration_ns: self.last_ns - self.first_ns.unwrap_or(self.last_ns),
            sampling_period: self.header.sampling_period.max(1),
            header: self.header,
            page_bytes: self.page_bytes,
            lost: self.lost,
            forks: self.forks,
            has_past: self.has_past,
            cost,
            sums: self.sums,
            mappings,
            spans,
            group_of,
            groups,
            stacks,
            threads,
            rate: self.rate,
        }
    }

    fn count<'a>(
        &mut self,
        event: &Event,
        fault: &Fault,
        attribution: Attribution,
        frames: impl Fn(StackId) -> &'a [u64],
    ) {
        let kind = attribution.kind;
        self.sums.add(fault, kind);
        self.thread(event.pid, event.tid).sums.add(fault, kind);
        let site = self.sites.of_fault(fault, event.pid, &self.attributor, frames).index();
        self.by_site.resize(self.by_site.len().max(site + 1), Sums::default());
        self.by_site[site].add(fault, kind);
        let Some(mapping) = attribution.mapping else { return };
        self.has_past |= self.attributor.mappings()[mapping.0 as usize].is_old;
        let (group, arrivals) = &mut self.mappings[mapping.0 as usize];
        let group = &mut self.groups[*group as usize];
        group.group.sums.add(fault, kind);
        if is_arrival(attribution) {
            *arrivals = arrivals.saturating_add(1);
            let page = fault.address / self.page_bytes;
            let step = self.walks.step(event.tid, mapping, page);
            group.watch.add(attribution.fit, step, fault.huge == Some(true));
        }
    }

    /// Puts new mappings into groups.
    fn add_mappings<'a>(&mut self, frames: impl Fn(StackId) -> &'a [u64] + Copy) {
        for index in self.mappings.len()..self.attributor.mappings().len() {
            let mapping = &self.attributor.mappings()[index];
            let group = match mapping.inherited_from {
                Some(parents) => self.mappings[parents.0 as usize].0,
                None => {
                    let size_bytes = size_class(mapping);
                    let site = mapping.mapped_by.map(|stack| {
                        self.sites.of_stack(stack, mapping.pid, &self.attributor, frames)
                    });
                    let key = (mapping.place.clone(), size_bytes, site);
                    let next = self.groups.len() as u32;
                    let group = *self.group_of.entry(key).or_insert(next);
                    if group == next {
                        let place = mapping.place.clone();
                        let mapped_by = site.map(|site| self.sites.frames(site));
                        let mapped_by = mapped_by.unwrap_or_default();
                        let identity = MappingIdentity { place, size_bytes, mapped_by };
                        self.groups.push(Work::new(identity));
                    }
                    group
                }
            };
            self.mappings.push((group, 0));
        }
    }

    fn thread(&mut self, pid: u32, tid: u32) -> &mut Thread {
        let make = || Thread { name: "".into(), sums: Sums::default() };
        self.threads.entry((pid, tid)).or_insert_with(make)
    }
}

impl Work {
    fn new(identity: MappingIdentity) -> Self {
        let group = Group {
            identity,
            mappings: 0,
            mapped_bytes: 0,
            unmapped_bytes: 0,
            huge_advice: 0,
            shape: Shape::default(),
            sums: Sums::default(),
        };
        Self { group, watch: Watch::default(), per_mapping: Vec::new() }
    }

    fn count(&mut self, mapping: &Mapping, arrivals: u32) {
        let group = &mut self.group;
        group.mappings += 1;
        group.mapped_bytes = group.mapped_bytes.saturating_add(mapping.length_bytes);
        group.unmapped_bytes = group.unmapped_bytes.saturating_add(mapping.unmapped_bytes);
        if arrivals > 0 {
            self.per_mapping.push(arrivals);
        }
    }

    fn finish(self) -> Group {
        Group { shape: self.watch.finish(self.per_mapping), ..self.group }
    }
}

/// The groups with the most faults first, and the new place of each.
fn sorted(groups: Vec<Work>) -> (Vec<Group>, Vec<u32>) {
    let mut groups: Vec<_> = groups.into_iter().map(Work::finish).enumerate().collect();
    groups.sort_by_key(|(_, group)| Reverse(group.sums.faults()));
    let mut places = vec![0; groups.len()];
    for (place, (before, _)) in groups.iter().enumerate() {
        places[*before] = place as u32;
    }
    (groups.into_iter().map(|(_, group)| group).collect(), places)
}

/// The length of mappings of its identity.
fn size_class(mapping: &Mapping) -> Option<u64> {
    let has_one = matches!(
        mapping.place,
        Place::Anonymous | Place::Named(_) | Place::Hugetlb | Place::Shared
    );
    has_one.then(|| mapping.length_bytes.checked_next_power_of_two()).flatten()
}
