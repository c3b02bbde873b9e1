//! Huge pages that only one side got, and why.

use super::{Reason, change, distance, subject};
use crate::analysis::{Analysis, Shape};
use crate::diff::{Diff, GroupDiff, GroupSide, Setting};
use crate::format::counted;

/// Base pages on one side, 2 MiB on the other.
pub(super) fn of_2_mib(diff: &Diff, analyses: [&Analysis; 2]) -> Option<Reason> {
    let turned: Vec<_> = diff.groups.iter().filter_map(turned).collect();
    let (group, sides) = turned.first()?;
    let compared = [0, 1].map(|side| turned.iter().map(|(group, _)| group.compared()[side]).sum());
    let each = sides.map(|side| counted(side.shape.per_mapping[1], "fault"));
    let huge_side = usize::from(!is_huge(&sides[0].shape));
    let which = ["first", "second"][huge_side];
    let sees_advice = analyses
        .iter()
        .all(|analysis| analysis.header.sources.iter().any(|source| source.contains("madvise")));
    let cause = cause(&turned);
    let took = format!("{} took {} each, then {}", subject(group), each[0], each[1]);
    let setting = cause.is_none().then(|| setting(diff)).flatten();
    let cause = cause.or_else(|| setting.map(told)).unwrap_or_else(|| match sees_advice {
        true => format!("only the {which} run got them, and no setting or advice says why"),
        false => format!("only the {which} run got them; what the programs advise is not seen"),
    });
    let back = setting.map_or_else(String::new, |setting| way_back(setting, huge_side));
    let sentence = format!("huge pages: {cause}; {took}: {}{back}", change(diff, compared));
    Some(Reason { faults: distance(compared), sentence })
}

/// Only one program asks for huge pages, and gets them. The other one's memory on base pages is mapped in
/// another way, and therefore has no counterpart.
pub(super) fn of_other_maps(diff: &Diff, analyses: [&Analysis; 2]) -> Option<Reason> {
    let advice = analyses.map(|analysis| {
        let asking = analysis.groups.iter().filter(|group| is_huge(&group.shape));
        let asked: u64 = asking.map(|group| group.huge_advice).sum();
        (asked, analysis.groups.iter().map(|group| group.huge_advice).sum::<u64>())
    });
    let without = match advice {
        [(1.., _), (_, 0)] => 1,
        [(_, 0), (1.., _)] => 0,
        _ => return None,
    };
    let is_of_it = |group: &&GroupDiff| match &group.sides[without] {
        Some(side) => {
            group.sides[1 - without].is_none() && group.place.begins_empty() && is_base(&side.shape)
        }
        None => false,
    };
    let group = diff.groups.iter().find(is_of_it)?;
    let [first, second] = advice.map(|(_, calls)| counted(calls, "call"));
    let change = change(diff, group.compared());
    Some(Reason {
        faults: diff.groups.iter().filter(is_of_it).map(GroupDiff::distance).sum(),
        sentence: format!(
            "huge pages: {first} → {second} of madvise(MADV_HUGEPAGE); {}: {change}",
            subject(group)
        ),
    })
}

/// The cause in the programs, if the traces show one.
fn cause(turned: &[Turned<'_>]) -> Option<String> {
    let total = |side: usize, count: fn(&GroupSide) -> u64| -> u64 {
        turned.iter().map(|(_, sides)| count(sides[side])).sum()
    };
    let advice = [0, 1].map(|side| total(side, |side| side.huge_advice));
    let refused = [0, 1].map(|side| total(side, |side| side.shape.huge_refused));
    let only = |counts: [u64; 2]| match counts {
        [0, 0] => None,
        [0, _] => Some("second"),
        [_, 0] => Some("first"),
        _ => None,
    };
    if let Some(which) = only(refused) {
        return Some(format!("the {which} program refuses them (MADV_NOHUGEPAGE)"));
    }
    only(advice)?;
    let [first, second] = advice.map(|calls| counted(calls, "call"));
    Some(format!("{first} → {second} of madvise(MADV_HUGEPAGE)"))
}

/// The setting of huge pages that differs.
fn setting(diff: &Diff) -> Option<&Setting> {
    diff.settings.iter().find(|setting| is_of_huge_pages(&setting.name))
}

/// The command that brings one side's value of a setting back; nothing for settings that are no files of the kernel.
fn way_back(setting: &Setting, side: usize) -> String {
    let [value, other] = [side, 1 - side].map(|side| setting.values[side].as_deref());
    let Some(value) = value.filter(|_| setting.name.starts_with("transparent_hugepage/")) else {
        return String::new();
    };
    let asks = match (setting.name.as_str(), other) {
        ("transparent_hugepage/enabled", Some("madvise")) => {
            ", or for this program alone madvise(MADV_HUGEPAGE) or `cowslip run`"
        }
        _ => "",
    };
    format!("; to return to it: echo {value} > /sys/kernel/mm/{}{asks}", setting.name)
}

/// The same number of mappings took other numbers of faults each, and a size of huge pages below 2 MiB has
/// another setting.
pub(super) fn of_other_sizes(diff: &Diff, _: [&Analysis; 2]) -> Option<Reason> {
    let is_size = |setting: &&Setting| {
        let name = setting.name.strip_prefix("transparent_hugepage/hugepages-");
        name.is_some_and(|name| !name.starts_with("2048kB/"))
    };
    let setting = diff.settings.iter().find(is_size)?;
    let of_shared = setting.name.ends_with("/shmem_enabled");
    let changed = |group: &&GroupDiff| {
        let [Some(first), Some(second)] = &group.sides else { return false };
        let [few, many] = {
            let [one, other] = [first, second].map(|side| side.shape.per_mapping[1]);
            [one.min(other), one.max(other)]
        };
        let is_such = match of_shared {
            true => group.place.is_shared_memory(),
            false => group.place.is_anonymous(),
        };
        is_such && first.mappings == second.mappings && many >= few.saturating_mul(2)
    };
    let group = diff.groups.iter().find(changed)?;
    let faults = diff.groups.iter().filter(changed).map(GroupDiff::distance).sum();
    let [first, second] = group.compared();
    let back = way_back(setting, usize::from(second < first));
    let change = change(diff, group.compared());
    let sentence = format!("huge pages: {}; {}: {change}{back}", told(setting), subject(group));
    Some(Reason { faults, sentence })
}

/// Mappings with base pages on one side and huge pages on the other.
type Turned<'a> = (&'a GroupDiff, [&'a GroupSide; 2]);

fn turned(group: &GroupDiff) -> Option<Turned<'_>> {
    let [Some(first), Some(second)] = &group.sides else { return None };
    let is_turned = is_base(&first.shape) && is_huge(&second.shape)
        || is_base(&second.shape) && is_huge(&first.shape);
    is_turned.then_some((group, [first, second]))
}

fn told(setting: &Setting) -> String {
    let [first, second] = setting.values.each_ref().map(|value| value.as_deref().unwrap_or("none"));
    format!("{} {first} → {second}", setting.name)
}

fn is_of_huge_pages(name: &str) -> bool {
    let is_of_size = name.contains("/hugepages-") && !name.contains("/hugepages-2048kB/");
    let is_switch = ["/enabled", "/shmem_enabled", "/defrag"].iter().any(|end| name.ends_with(end));
    is_switch && !is_of_size || name.contains("TRANSPARENT_HUGEPAGE") || name.starts_with("THP_")
}

/// Many faults in each mapping, in places where a huge page fits.
fn is_base(shape: &Shape) -> bool {
    shape.came_huge == 0 && (shape.huge_further + shape.huge_refused) * 2 > shape.arrivals
}

/// Huge pages by the events, or hardly ever a second fault where one fits.
fn is_huge(shape: &Shape) -> bool {
    shape.came_huge * 2 > shape.arrivals
        || (shape.huge_first > 0 && shape.huge_further * 10 <= shape.huge_first)
}
