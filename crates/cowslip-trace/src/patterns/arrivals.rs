//! How the pages of anonymous memory come.

use cowslip_sys::procfs::Policy;
use cowslip_sys::units::ByteCount;

use super::{Draft, Pattern, PatternName, is_many};
use crate::analysis::{Analysis, Group, Shape};
use crate::attribute::{Kind, Place};
use crate::words::{count, counted, mappings, percent};

pub(super) fn find(analysis: &Analysis, group: &Group) -> Option<Pattern> {
    let shape = &group.shape;
    let place = &group.identity.place;
    let is_purged = group.sums.of(Kind::Refault) * 2 > shape.arrivals;
    if !place.is_anonymous() || !is_many(analysis, shape.arrivals) || is_purged {
        return None;
    }
    let [_, each, _] = shape.per_mapping;
    let is_unfit = shape.huge_unfit * 2 > shape.arrivals;
    let came_huge = shape.came_huge * 10 >= shape.arrivals * 9;
    let could_be_huge = !is_unfit && !came_huge && shape.huge_further > 0;
    let name = match () {
        () if matches!(place, Place::Stack | Place::ThreadStack) => PatternName::StackGrowth,
        () if each <= 1 || came_huge => PatternName::OncePerMap,
        () if is_unfit => PatternName::Misaligned,
        () if shape.is_regular() => PatternName::Staircase,
        () if could_be_huge => PatternName::NotHuge,
        () => return None,
    };
    let may_be_huge = shape.huge_first > 0 && analysis.cost_is_a_bound();
    let mut evidence = format!("{}, {}", mappings(group), how_many(analysis, group));
    if each > 1 {
        evidence += &format!(", {}", order(analysis, shape));
    }
    let could_be_huge = could_be_huge
        && matches!(name, PatternName::Staircase | PatternName::NotHuge)
        && analysis.sampling_period == 1;
    match name {
        PatternName::OncePerMap if came_huge => evidence += ": huge pages",
        PatternName::OncePerMap if may_be_huge => {
            evidence += "; whether by huge pages, only a trace with --detail access says";
        }
        PatternName::Misaligned => evidence += &format!(": {}", why_unfit(analysis, group)),
        _ if could_be_huge => evidence += &format!(": {}", with_huge_pages(group)),
        _ => {}
    }
    let faults_with_huge_pages = could_be_huge.then(|| shape.faults_with_huge_pages());
    let draft = Draft {
        analysis,
        name,
        group: Some(group),
        faults: shape.arrivals,
        among: &group.sums,
        evidence,
        is_cost_known: name != PatternName::OncePerMap || !may_be_huge,
        advice: could_be_huge.then(|| advice(analysis, shape)),
        faults_with_huge_pages,
    };
    Some(draft.finish())
}

fn how_many(analysis: &Analysis, group: &Group) -> String {
    let shape = &group.shape;
    match shape.per_mapping {
        _ if analysis.sampling_period > 1 => {
            format!("about {}", counted(analysis.scaled(shape.arrivals), "fault"))
        }
        _ if shape.mappings == 1 => counted(shape.arrivals, "fault"),
        [least, _, most] if least == most => format!("{} each", counted(most, "fault")),
        [least, median, most] => {
            format!(
                "{} to {} faults each, half at most {}",
                count(least),
                count(most),
                count(median)
            )
        }
    }
}

/// In which order they come; of a sample, nobody knows.
fn order(analysis: &Analysis, shape: &Shape) -> String {
    let apart = ByteCount(shape.step_pages.unsigned_abs().saturating_mul(analysis.page_bytes));
    match shape.step_pages {
        _ if analysis.sampling_period > 1 => "sampled".into(),
        _ if !shape.is_regular() => "in no order".into(),
        step if step > 0 => format!("ascending, {apart} apart"),
        _ => format!("descending, {apart} apart"),
    }
}

fn why_unfit(analysis: &Analysis, group: &Group) -> String {
    let huge = analysis.page_bytes / 8 * analysis.page_bytes;
    let is_short = group.identity.size_bytes.is_some_and(|size| size < huge);
    let why = if is_short { "shorter than one" } else { "not aligned to one" };
    format!("no huge page fits around {}: {why}", percent_unfit(&group.shape))
}

fn percent_unfit(shape: &Shape) -> String {
    percent(shape.huge_unfit as f64, shape.arrivals as f64) + " of the pages"
}

fn with_huge_pages(group: &Group) -> String {
    let shape = &group.shape;
    let faults = shape.faults_with_huge_pages();
    if shape.mappings > 1 && faults.is_multiple_of(shape.mappings) {
        return format!("with huge pages {} each", counted(faults / shape.mappings, "fault"));
    }
    format!("with huge pages {}", counted(faults, "fault"))
}

/// Where huge pages fit and did not come.
fn advice(analysis: &Analysis, shape: &Shape) -> String {
    const RUN: &str =
        "madvise(MADV_HUGEPAGE), or `cowslip run` for a program that cannot be changed";
    let pages = (shape.huge_first + shape.huge_further) as f64;
    let room = (shape.huge_first * (analysis.page_bytes / 8)) as f64;
    let thp = analysis.header.machine.thp.get("enabled").map(|line| Policy::parse(line));
    let mut advice = match thp {
        Some(Policy::Never) => {
            "transparent huge pages are off (transparent_hugepage/enabled: never)".into()
        }
        Some(Policy::Madvise) => {
            format!("transparent huge pages come to whom asks (enabled: madvise): {RUN}")
        }
        Some(Policy::Always) => "huge pages are for everybody (enabled: always) and did not come: see \
                                 transparent_hugepage/defrag, free memory in one piece, PR_SET_THP_DISABLE"
            .into(),
        _ => RUN.to_owned(),
    };
    if pages < room / 2.0 {
        let used = percent(pages, room);
        advice += &format!("; of that memory {used} is used, the rest would be taken as well");
    }
    advice
}
