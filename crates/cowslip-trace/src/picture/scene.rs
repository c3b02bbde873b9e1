//! The content of a picture: faults and bars, with the tables that they refer to.

use super::bands::{self, Band, Used};
use super::dots::Dots;
use super::frames::Frames;
use super::groups::Groups;
use super::programs::Programs;
use super::replay::Replay;
use crate::analysis::Analysis;
use crate::attribute::Span;
use crate::cost::FaultCost;
use crate::model::Latencies;

/// The most address spaces that are drawn, and the least share of the busiest one's faults that each has.
const MOST_SPACES: usize = 6;
const LEAST_SHARE: f64 = 0.1;

pub(super) struct Scene {
    pub(super) analysis: Analysis,
    pub(super) latencies: Option<Latencies>,
    /// The end of the trace is missing.
    pub(super) is_cut_short: bool,
    pub(super) events: u64,
    pub(super) lost: u64,
    pub(super) duration_ns: u64,
    pub(super) spaces: Vec<Space>,
    pub(super) groups: Groups,
    /// Process and thread, by number.
    pub(super) threads: Vec<(u32, u32)>,
    pub(super) dots: Dots,
    pub(super) bars: Vec<Bar>,
    pub(super) frames: Frames,
    /// The times of losses of events, in nanoseconds since the first event, and the numbers lost.
    pub(super) losses: Vec<(u64, u64)>,
}

/// An address space.
pub(super) struct Space {
    pub(super) label: String,
    /// True if it is drawn unless another one is selected.
    pub(super) is_drawn: bool,
    pub(super) bands: Vec<Band>,
    /// The mapping with the most faults in each band.
    pub(super) names: Vec<String>,
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

impl Scene {
    /// Arranges the results of a replay. `lost` is the number of missing events, as far as the trace counted
    /// them.
    pub(super) fn new(
        replay: Replay,
        cost: Option<FaultCost>,
        lost: u64,
        latencies: Option<Latencies>,
        is_cut_short: bool,
    ) -> Self {
        let Replay { analyser, programs, frames, threads, dots, mut used, losses, .. } = replay;
        let Replay { mapped_in, origin_ns, events, .. } = replay;
        let analysis = analyser.finish(cost);
        let groups = Groups::from_analysis(&analysis);
        let bar = |span: &Span| {
            let number = span.mapping.0 as usize;
            let ended_ns = span.ended_ns.map(|ended_ns| ended_ns.saturating_sub(origin_ns));
            Bar {
                space: mapped_in[number],
                group: groups.of_mapping(span.mapping),
                start: span.range.start as u64,
                end: span.range.end() as u64,
                offset_bytes: analysis.mappings[number].file_offset_bytes,
                from_ns: span.began_ns.saturating_sub(origin_ns),
                to_ns: ended_ns.unwrap_or(analysis.duration_ns),
            }
        };
        let bars: Vec<_> = analysis.spans.iter().map(bar).collect();
        used.resize_with(programs.all.len(), Used::default);
        for bar in &bars {
            used[bar.space as usize].map(bar.start, bar.end);
        }
        Self {
            duration_ns: analysis.duration_ns.max(1),
            spaces: lay_out(&programs, &used, &groups),
            latencies,
            is_cut_short,
            events,
            lost: lost.max(analysis.lost),
            analysis,
            groups,
            threads,
            dots: dots.finish(),
            bars,
            frames,
            losses,
        }
    }
}

fn lay_out(programs: &Programs, used: &[Used], groups: &Groups) -> Vec<Space> {
    let faults: Vec<u64> = used.iter().map(Used::faults).collect();
    let mut busiest: Vec<_> = (0..faults.len()).collect();
    busiest.sort_by_key(|space| std::cmp::Reverse(faults[*space]));
    busiest.truncate(MOST_SPACES);
    let most = busiest.first().map_or(0, |space| faults[*space]);
    busiest
        .retain(|space| faults[*space] > 0 && faults[*space] as f64 >= most as f64 * LEAST_SHARE);
    let mut spaces = Vec::new();
    for (index, bands) in bands::bands(used).into_iter().enumerate() {
        let names = used[index].busiest_groups(&bands).into_iter();
        let name = |group: Option<u32>| {
            group.map(|group| groups.rows[group as usize].name.clone()).unwrap_or_default()
        };
        let names = names.map(name).collect();
        let is_drawn = busiest.contains(&index);
        spaces.push(Space { label: programs.all[index].label(), is_drawn, bands, names });
    }
    spaces
}
