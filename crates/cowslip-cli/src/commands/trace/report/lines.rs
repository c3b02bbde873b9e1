//! The lines of text of a trace's report.

use cowslip_report::text::{clip, printable, wrap};
use cowslip_report::units;
use cowslip_sys::units::ByteCount;
use cowslip_trace::analysis::{Analysis, Rate, Sums};
use cowslip_trace::attribute::FaultKind;
use cowslip_trace::format::{count, counted, duration, huge_pages, latencies, mappings, percent};
use cowslip_trace::patterns;
use cowslip_trace::symbols::FunctionSums;

use super::cost;
use crate::commands::trace::load::Loaded;
use crate::commands::trace::tables::{Extent, FRAMES, callers, table};

/// Columns of the picture of the rate.
const COLUMNS: usize = 80;
const BARS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

pub(super) fn lines(loaded: &mut Loaded, top: usize, extent: Extent) -> String {
    let mut lines = heading(loaded);
    lines.extend(rate(&loaded.analysis.rate));
    lines.extend(kinds(loaded));
    lines.extend(groups(loaded, top, extent));
    lines.extend(stacks(loaded, top));
    lines.extend(threads(loaded, top));
    lines.extend(patterns(&loaded.analysis, top));
    extent.text(&lines)
}

fn heading(loaded: &Loaded) -> Vec<String> {
    let Analysis { header, sums, .. } = &loaded.analysis;
    let analysis = &loaded.analysis;
    let machine = &header.machine;
    let seconds = analysis.duration_ns as f64 / 1e9;
    let faults = analysis.scaled(sums.faults());
    let mut facts = vec![
        format!("{} in {}", counted(faults, "fault"), duration(analysis.duration_ns as f64)),
        units::human(faults as f64 / seconds.max(1e-9), "1/s"),
        format!("{} lost", counted(analysis.lost, "event")),
    ];
    if analysis.sampling_period > 1 {
        facts.push(format!("one in {} recorded", count(analysis.sampling_period)));
    }
    let mut lines = vec![format!("{}: {}", loaded.path.display(), printable(&header.title()))];
    lines.extend(loaded.cut_short.iter().flat_map(|cut| wrap(&format!("  {cut}"), 4)));
    lines.push(format!("  {}", facts.join(", ")));
    let (release, huge) = (&machine.kernel_release, huge_pages(machine));
    lines.push(printable(&format!("  Linux {release}, transparent huge pages {huge}")));
    if let Some(cost) = analysis.cost_of(sums) {
        let bound = if analysis.cost_is_a_bound() { "at least " } else { "" };
        let (ns, measured) = (duration(cost.ns), cost.measured);
        let took = format!("  faults took {bound}{ns} of all threads' time, {measured}");
        lines.extend(wrap(&took, 4));
    }
    for (kind, times) in loaded.latencies.iter().flat_map(latencies) {
        lines.extend(wrap(&format!("  {kind}: {times}"), 4));
    }
    let unseen = header.unseen.iter().flat_map(|unseen| wrap(&format!("  not seen: {unseen}"), 4));
    lines.extend(unseen);
    lines.push(String::new());
    lines
}

fn rate(rate: &Rate) -> Vec<String> {
    let Some(most) = rate.faults.iter().max().filter(|most| **most > 0) else { return Vec::new() };
    let each = rate.faults.len().div_ceil(COLUMNS).max(1);
    let columns: Vec<u64> = rate.faults.chunks(each).map(|part| part.iter().sum()).collect();
    let highest = columns.iter().copied().max().unwrap_or(1).max(1);
    let bar = |faults: &u64| BARS[(faults * 8).div_ceil(highest) as usize];
    let (column, interval) = (rate.interval_ns * each as u64, rate.interval_ns);
    let second = 1e9 / interval as f64 * *most as f64;
    vec![
        format!("faults over time, {} a column", duration(column as f64)),
        format!("  {}", columns.iter().map(bar).collect::<String>()),
        format!("  at most {} in {}", units::human(second, "1/s"), duration(interval as f64)),
        String::new(),
    ]
}

/// The first `top` rows that have at least one in a thousand of `all` faults.
fn shown<'a, T: 'a>(
    rows: impl Iterator<Item = &'a T>,
    top: usize,
    all: u64,
    sums: impl Fn(&T) -> &Sums,
) -> impl Iterator<Item = &'a T> {
    rows.take_while(move |row| sums(row).faults() * 1000 >= all).take(top)
}

/// The columns that every table has: faults, their share, their cost.
fn common(loaded: &Loaded, sums: &Sums) -> [String; 3] {
    let share = percent(sums.faults() as f64, loaded.analysis.sums.faults() as f64);
    let faults = count(loaded.analysis.scaled(sums.faults()));
    [format!("{faults:>11}"), format!("{share:>6}"), format!("{:>7}", cost(loaded, sums))]
}

fn kinds(loaded: &Loaded) -> Vec<String> {
    let all = loaded.analysis.sums.faults();
    let row = |(kind, faults): (FaultKind, u64)| {
        let share = percent(faults as f64, all as f64);
        let faults = count(loaded.analysis.scaled(faults));
        vec![format!("{faults:>11}"), format!("{share:>6}"), kind.to_string()]
    };
    let rows = loaded.analysis.sums.kinds().into_iter().map(row).collect();
    table("what they were for", &["     faults", " share", "kind"], rows)
}

fn groups(loaded: &mut Loaded, top: usize, extent: Extent) -> Vec<String> {
    let mut names = std::mem::take(&mut loaded.names);
    let groups = loaded.analysis.groups.iter().filter(|group| group.sums.faults() > 0);
    let row = |group: &cowslip_trace::analysis::Group| {
        let kind = group.sums.kinds().first().map_or(String::new(), |(kind, _)| kind.to_string());
        let callers = match group.identity.is_arena() {
            true => String::new(),
            false => callers(" by ", &names.functions(&group.identity.mapped_by)),
        };
        let name = extent.name(&printable(&mappings(group))) + &callers;
        let size = ByteCount(group.mapped_bytes).to_string();
        let facts = [count(group.mappings), size, kind, name];
        common(loaded, &group.sums).into_iter().chain(facts).collect()
    };
    let all = loaded.analysis.sums.faults();
    let rows = shown(groups, top, all, |group| &group.sums).map(row).collect();
    loaded.names = names;
    let heads = ["     faults", " share", "   cost", "maps", "mapped", "mostly", "mappings"];
    table("where", &heads, rows)
}

fn stacks(loaded: &mut Loaded, top: usize) -> Vec<String> {
    let all = loaded.analysis.sums.faults();
    let rows = loaded.names.by_function(&loaded.analysis.stacks, FRAMES);
    let stacks = shown(rows.iter(), top, all, |stack| &stack.sums);
    let row = |stack: &FunctionSums| {
        let more = if stack.has_more { " < …" } else { "" };
        let callers = callers("", &stack.functions) + more;
        common(loaded, &stack.sums).into_iter().chain([callers]).collect()
    };
    let rows = stacks.map(row).collect();
    table("who", &["     faults", " share", "   cost", "functions, the innermost first"], rows)
}

fn threads(loaded: &Loaded, top: usize) -> Vec<String> {
    let all = loaded.analysis.sums.faults();
    let threads = shown(loaded.analysis.threads.iter(), top, all, |thread| &thread.sums);
    let row = |thread: &cowslip_trace::analysis::ThreadSums| {
        let name = clip(&thread.name);
        let kind = thread.sums.kinds().first().map_or(String::new(), |(kind, _)| kind.to_string());
        let facts = [thread.pid.to_string(), thread.tid.to_string(), kind, name];
        common(loaded, &thread.sums).into_iter().chain(facts).collect()
    };
    let heads = ["     faults", " share", "   cost", "process", "thread", "mostly", "name"];
    table("threads", &heads, threads.map(row).collect())
}

fn patterns(analysis: &Analysis, top: usize) -> Vec<String> {
    let found = patterns::find(analysis);
    if found.is_empty() {
        return vec!["no pattern has a hundred faults and one in a hundred of all".into()];
    }
    let mut lines = vec!["patterns".to_owned()];
    for pattern in found.iter().take(top) {
        lines.extend(wrap(&format!("  {}", pattern.sentence), 4));
        let advice = pattern.advice.iter().flat_map(|advice| wrap(&format!("    → {advice}"), 6));
        lines.extend(advice);
    }
    if let Some(more) = found.len().checked_sub(top).filter(|more| *more > 0) {
        lines.push(format!("  and {more} more (--top, --json)"));
    }
    lines
}
