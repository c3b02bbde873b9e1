//! Patterns in which the pages of anonymous and shared memory come.

use cowslip_sys::procfs::Policy;
use cowslip_sys::units::ByteCount;

use super::{Draft, Pattern, PatternName, is_many, shared};
use crate::analysis::{Analysis, Group, Shape};
use crate::attribute::{FaultKind, Place};
use crate::format::{count, counted, mappings, percent};
use crate::thp;

/// A size of smaller huge pages that processors of all kinds have.
const SMALLER_BYTES: u64 = 64 << 10;
/// Fewer threads' stacks are no waste.
const MANY_STACKS: u64 = 16;

pub(super) fn find(analysis: &Analysis, group: &Group) -> Option<Pattern> {
    let shape = &group.shape;
    let is_purged = group.sums.faults_of_kind(FaultKind::Refault) * 2 > shape.arrivals;
    // The pages of a private mapping of a memory file belong to the file.
    let is_of_file = shape.fitted() * 2 < shape.arrivals;
    let begins_empty = group.identity.place.begins_empty() && !is_of_file;
    if !begins_empty || is_purged || !is_many(analysis, shape.arrivals) {
        return None;
    }
    let name = name(group)?;
    let [_, each, _] = shape.per_mapping;
    let order = if each > 1 { order(analysis, shape) } else { String::new() };
    let is_untold = name == PatternName::OncePerMap && may_be_huge(analysis, group);
    let could_be_huge = could_be_huge(shape)
        && matches!(name, PatternName::Staircase | PatternName::NotHuge)
        && analysis.sampling_period == 1;
    let ending = match name {
        PatternName::OncePerMap if came_huge(shape) => ": huge pages".into(),
        PatternName::OncePerMap if is_untold => {
            "; whether by huge pages, only a trace with --detail access says".into()
        }
        PatternName::Misaligned => why_unfit(analysis, group),
        _ if shape.huge_refused * 2 > shape.arrivals => {
            ": the program refused huge pages (MADV_NOHUGEPAGE)".into()
        }
        _ if could_be_huge => with_huge_pages(group),
        _ => String::new(),
    };
    let draft = Draft {
        analysis,
        name,
        group: Some(group),
        faults: shape.arrivals,
        among: &group.sums,
        evidence: format!("{}, {}{order}{ending}", mappings(group), how_many(analysis, group)),
        is_cost_known: !is_untold,
        advice: match name {
            _ if could_be_huge => Some(advice(analysis, group)),
            PatternName::Misaligned => smaller_pages(analysis, group),
            PatternName::StackGrowth if group.mappings >= MANY_STACKS => {
                Some("keep threads for later work (a pool): each new one fills a stack anew".into())
            }
            _ => None,
        },
        faults_with_huge_pages: could_be_huge.then(|| shape.faults_with_huge_pages()),
    };
    Some(draft.finish())
}

fn name(group: &Group) -> Option<PatternName> {
    let shape = &group.shape;
    let [_, each, _] = shape.per_mapping;
    match group.identity.place {
        Place::Stack | Place::ThreadStack => Some(PatternName::StackGrowth),
        _ if each <= 1 || came_huge(shape) => Some(PatternName::OncePerMap),
        _ if shape.huge_unfit * 2 > shape.arrivals => Some(PatternName::Misaligned),
        _ if shape.is_regular() => Some(PatternName::Staircase),
        _ if could_be_huge(shape) => Some(PatternName::NotHuge),
        _ => None,
    }
}

fn came_huge(shape: &Shape) -> bool {
    shape.came_huge * 10 >= shape.arrivals * 9
}

/// True if base pages came where huge ones fit.
fn could_be_huge(shape: &Shape) -> bool {
    !came_huge(shape) && shape.huge_further * 2 > shape.arrivals
}

/// True if huge pages fit, and the events do not tell if they came.
fn may_be_huge(analysis: &Analysis, group: &Group) -> bool {
    let is_shared = group.identity.place.is_shared_memory();
    let may_come = !is_shared || thp::shared_may_be_huge(&analysis.header.machine);
    group.shape.huge_first > 0 && may_come && analysis.cost_is_a_bound()
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

/// The order in which they come; unknown for a sample.
fn order(analysis: &Analysis, shape: &Shape) -> String {
    let apart = ByteCount(shape.step_pages.unsigned_abs().saturating_mul(analysis.page_bytes));
    match shape.step_pages {
        _ if analysis.sampling_period > 1 => ", sampled".into(),
        _ if !shape.is_regular() => ", in no order".into(),
        step if step > 0 => format!(", ascending, {apart} apart"),
        // Pages that begin empty come one by one either way.
        _ => format!(", descending, {apart} apart, which costs no more than ascending"),
    }
}

fn why_unfit(analysis: &Analysis, group: &Group) -> String {
    let huge = analysis.page_bytes / 8 * analysis.page_bytes;
    let is_short = group.identity.size_bytes.is_some_and(|size| size < huge);
    let why = if is_short { "shorter than one" } else { "not aligned to one" };
    format!(": no huge page fits around {}: {why}", percent_unfit(&group.shape))
}

fn percent_unfit(shape: &Shape) -> String {
    percent(shape.huge_unfit as f64, shape.arrivals as f64) + " of the pages"
}

fn with_huge_pages(group: &Group) -> String {
    let shape = &group.shape;
    let faults = shape.faults_with_huge_pages();
    if shape.mappings > 1 && faults.is_multiple_of(shape.mappings) {
        return format!(": with huge pages {} each", counted(faults / shape.mappings, "fault"));
    }
    format!(": with huge pages {}", counted(faults, "fault"))
}

/// Advice for places where no huge page fits, and pages of 64 KiB would but are off.
fn smaller_pages(analysis: &Analysis, group: &Group) -> Option<String> {
    let machine = &analysis.header.machine;
    let fits = group.identity.size_bytes.is_none_or(|size| size >= SMALLER_BYTES);
    let is_private = !group.identity.place.is_shared_memory();
    let is_known = machine.thp.contains_key("hugepages-64kB/enabled");
    let is_off = is_known && thp::smaller_sizes(machine, thp::Kind::Anonymous).is_empty();
    (fits && is_private && is_off).then(|| {
        "pages of 64 KiB fit, and are off: echo always > \
         /sys/kernel/mm/transparent_hugepage/hugepages-64kB/enabled"
            .into()
    })
}

/// Advice for places where huge pages fit and did not come.
fn advice(analysis: &Analysis, group: &Group) -> String {
    let shape = &group.shape;
    let pages = (shape.huge_first + shape.huge_further) as f64;
    let room = (shape.huge_first * (analysis.page_bytes / 8)) as f64;
    let mut advice = match group.identity.place.is_shared_memory() {
        true => shared::advice(analysis, &group.identity.place),
        false => private_advice(analysis),
    };
    if pages < room / 2.0 {
        let used = percent(pages, room);
        advice += &format!("; of that memory {used} is used, the rest would be taken as well");
    }
    advice
}

fn private_advice(analysis: &Analysis) -> String {
    const SETTING: &str = "/sys/kernel/mm/transparent_hugepage/enabled";
    const RUN: &str =
        "madvise(MADV_HUGEPAGE), or `cowslip run` for a program that cannot be changed";
    match thp::policy(&analysis.header.machine) {
        Some(Policy::Never) => format!(
            "transparent huge pages are off (transparent_hugepage/enabled: never): echo madvise > {SETTING}, and \
             madvise(MADV_HUGEPAGE)"
        ),
        Some(Policy::Madvise) => format!(
            "transparent huge pages come to whom asks (enabled: madvise): {RUN}; for all programs, as it may have \
             been before: echo always > {SETTING}"
        ),
        Some(Policy::Always) => "huge pages are for everybody (enabled: always) and did not come: see \
                                 transparent_hugepage/defrag, free memory in one piece, PR_SET_THP_DISABLE"
            .into(),
        _ => RUN.to_owned(),
    }
}
