//! What is drawn: faults and bars, with the tables that they refer to.

use std::collections::HashMap;

use super::bands::{self, Band, Used};
use super::frames::Frames;
use super::groups::Groups;
use super::programs::Programs;
use super::replay::Replay;
use crate::analysis::Analysis;
use crate::attribute::{Kind, MappingId, Span};
use crate::cost::FaultCost;
use crate::model::{Fault, Trace};

/// No more address spaces are drawn at once, and none with a smaller share of the busiest one's faults.
const MOST_SPACES: usize = 6;
const LEAST_SHARE: f64 = 0.1;

pub(super) struct Scene<'a> {
    pub(super) trace: &'a Trace,
    pub(super) analysis: Analysis,
    pub(super) duration_ns: u64,
    pub(super) spaces: Vec<Space>,
    pub(super) groups: Groups,
    /// Process and thread.
    pub(super) threads: Vec<(u32, u32)>,
    pub(super) dots: Vec<Dot>,
    pub(super) bars: Vec<Bar>,
    pub(super) frames: Frames,
    /// When events were lost, in nanoseconds since the first event, and how many.
    pub(super) losses: Vec<(u64, u64)>,
}

/// An address space.
pub(super) struct Space {
    pub(super) label: String,
    /// Whether it is drawn when no other is asked for.
    pub(super) is_drawn: bool,
    pub(super) bands: Vec<Band>,
    /// What has the most faults in each band.
    pub(super) names: Vec<String>,
}

/// A fault. The numbers are places in the scene's tables.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dot {
    pub(super) time_ns: u64,
    pub(super) space: u32,
    pub(super) thread: u32,
    pub(super) mapping: Option<MappingId>,
    pub(super) kind: Kind,
    /// Whether a page came that was not there.
    pub(super) is_arrival: bool,
    /// The number of its instruction.
    pub(super) frame: u32,
    pub(super) stack: Option<u32>,
    pub(super) fault: Fault,
}

/// A mapping, or a part of it, at one place for some time; times are since the first event.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bar {
    pub(super) space: u32,
    pub(super) group: u32,
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) offset_bytes: u64,
    pub(super) from_ns: u64,
    pub(super) to_ns: u64,
}

impl<'a> Scene<'a> {
    pub(super) fn new(trace: &'a Trace, cost: Option<FaultCost>) -> Self {
        let origin_ns = trace.events.first().map_or(0, |event| event.time_ns);
        let mut replay = Replay::new(trace);
        for event in &trace.events {
            replay.observe(event, event.time_ns.saturating_sub(origin_ns));
        }
        let Replay { analyser, programs, frames, threads, dots, losses, mapped_in, .. } = replay;
        let analysis = analyser.finish(cost);
        let groups = Groups::of(&analysis);
        let bar = |span: &Span| {
            let number = span.mapping.0 as usize;
            let ended_ns = span.ended_ns.map(|ended_ns| ended_ns.saturating_sub(origin_ns));
            Bar {
                space: mapped_in[number],
                group: groups.of_mapping(Some(span.mapping)),
                start: span.range.start as u64,
                end: span.range.end() as u64,
                offset_bytes: analysis.mappings[number].file_offset_bytes,
                from_ns: span.began_ns.saturating_sub(origin_ns),
                to_ns: ended_ns.unwrap_or(analysis.duration_ns),
            }
        };
        let bars: Vec<_> = analysis.spans.iter().map(bar).collect();
        Self {
            trace,
            duration_ns: analysis.duration_ns.max(1),
            spaces: lay_out(&programs, &dots, &bars, &groups),
            analysis,
            groups,
            threads,
            dots,
            bars,
            frames,
            losses,
        }
    }
}

fn lay_out(programs: &Programs, dots: &[Dot], bars: &[Bar], groups: &Groups) -> Vec<Space> {
    let mut used: Vec<_> = programs.all.iter().map(|_| Used::default()).collect();
    let mut faults = vec![0_u64; used.len()];
    for bar in bars {
        used[bar.space as usize].map(bar.start, bar.end);
    }
    for dot in dots {
        used[dot.space as usize].touch(dot.fault.address);
        faults[dot.space as usize] += 1;
    }
    let bands = bands::bands(&used);
    let names = band_names(&bands, dots, groups);
    let mut busiest: Vec<_> = (0..faults.len()).collect();
    busiest.sort_by_key(|space| std::cmp::Reverse(faults[*space]));
    busiest.truncate(MOST_SPACES);
    let most = busiest.first().map_or(0, |space| faults[*space]);
    busiest
        .retain(|space| faults[*space] > 0 && faults[*space] as f64 >= most as f64 * LEAST_SHARE);
    let mut spaces = Vec::new();
    for ((index, program), (bands, names)) in
        programs.all.iter().enumerate().zip(bands.into_iter().zip(names))
    {
        let is_drawn = busiest.contains(&index);
        spaces.push(Space { label: program.label(), is_drawn, bands, names });
    }
    spaces
}

/// What has the most faults in each band of each space.
fn band_names(bands: &[Vec<Band>], dots: &[Dot], groups: &Groups) -> Vec<Vec<String>> {
    let mut counts: HashMap<(u32, usize, u32), u64> = HashMap::new();
    for dot in dots {
        let bands = &bands[dot.space as usize];
        let above = bands.partition_point(|band| band.end <= dot.fault.address);
        *counts.entry((dot.space, above, groups.of_mapping(dot.mapping))).or_default() += 1;
    }
    let mut most: HashMap<(u32, usize), (u64, u32)> = HashMap::new();
    for ((space, band, group), count) in counts {
        let most = most.entry((space, band)).or_default();
        *most = (*most).max((count, group));
    }
    let name = |space: usize, band: usize| {
        let most = most.get(&(space as u32, band));
        most.map(|(_, group)| groups.rows[*group as usize].name.clone()).unwrap_or_default()
    };
    let names = |(space, bands): (usize, &Vec<Band>)| {
        (0..bands.len()).map(|band| name(space, band)).collect()
    };
    bands.iter().enumerate().map(names).collect()
}
