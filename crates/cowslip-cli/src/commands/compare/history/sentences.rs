//! Sentences about the changes of a series.

use std::collections::BTreeMap;

use cowslip_compare::history::{Change, Drift, Group, History, MACHINE, Point};
use cowslip_compare::recorder::way_back;
use cowslip_compare::{Cause, Certainty};
use cowslip_report::text::{count, printable};

use super::{Found, HistoryArgs};
use crate::commands::compare::record::commit;
use crate::commands::compare::result::format;
use crate::commands::compare::result::words;

/// The first line on a series.
pub(super) fn headline(history: &History) -> String {
    let group = &history.groups[0];
    let entries = entries(group);
    let changes = match group.changes.len() {
        0 => "no change".to_owned(),
        many => count(many, "change"),
    };
    format!("{entries} of {}, {changes}", printable(&history.metric))
}

/// Tells if the newest entries are worse.
pub(super) fn verdict(found: &Found, args: &HistoryArgs) -> String {
    let group = &found.history.groups[0];
    let newest = match (args.newest as usize).min(group.points.len()) {
        1 => "the newest entry".to_owned(),
        many => format!("the newest {many} entries"),
    };
    let step = group.newest.as_ref().map(|change| step(&found.history.metric, change));
    let drift = group.drift.map(|drift| slowly(&found.history.metric, group, &drift));
    let matters = if found.fails { "" } else { ", which does not matter here" };
    match (step, drift) {
        (None, None) => format!("no change in {newest}"),
        (Some(step), None) => format!("in {newest}, {step}{matters}"),
        (None, Some(drift)) => format!("{drift}{matters}"),
        (Some(step), Some(drift)) => format!("in {newest}, {step}; {drift}{matters}"),
    }
}

/// A drift, its size and its place.
fn slowly(metric: &str, group: &Group, drift: &Drift) -> String {
    let (before, after) = drift.means;
    let verb = if after > before { "rose" } else { "fell" };
    let by = format::percent(drift.change);
    format!(
        "{} {verb} slowly by {} since {} ({} to {}, p {})",
        printable(&words::name(metric)),
        by.trim_start_matches(['+', '-']),
        entry(&group.points[drift.from]),
        format::value(metric, before),
        format::value(metric, after),
        format::p(drift.p)
    )
}

/// A change in a sentence: the step, its interval, and its place.
pub(super) fn sentence(history: &History, group: &Group, change: &Change) -> String {
    let mut all = format!("{}, {}", step(&history.metric, change), place(group, change));
    for fact in facts(change) {
        all += &format!("; {fact}");
    }
    all
}

/// The direction of a change, its size, and the counters that explain it.
pub(super) fn step(metric: &str, change: &Change) -> String {
    let (before, after) = change.means;
    let verb = if after > before { "rose" } else { "fell" };
    let value = |value| format::value(metric, value);
    let by = change.change.map(|estimate| format::percent(estimate.value));
    let by = by.map_or(String::new(), |by| format!(" by {}", by.trim_start_matches(['+', '-'])));
    let (from, to, p) = (value(before), value(after), format::p(change.p));
    let interval =
        interval(change).map_or(String::new(), |interval| format!(", 95 % interval {interval}"));
    let certain = change.causes.iter().filter(|cause| cause.certainty != Certainty::Little);
    let certain: Vec<Cause> = certain.cloned().collect();
    let why = match certain.is_empty() {
        true => String::new(),
        false => format!(", as {}", printable(&words::counters(&certain))),
    };
    format!("{} {verb}{by} ({from} to {to}{interval}, p {p}){why}", printable(&words::name(metric)))
}

pub(super) fn interval(change: &Change) -> Option<String> {
    let (low, high) = change.change?.interval?;
    Some(format!("{} to {}", format::percent(low), format::percent(high)))
}

/// The entries before and after a change.
pub(super) fn place(group: &Group, change: &Change) -> String {
    let [before, after] = [change.at - 1, change.at].map(|index| entry(&group.points[index]));
    format!("between {before} and {after}")
}

/// The commits from the last entry of the old level to the first of the new one, as git takes them.
pub(super) fn commits(group: &Group, change: &Change) -> Option<String> {
    let both = [change.at - 1, change.at].map(|index| group.points[index].commit.as_deref());
    let [before, after] = both;
    let clean = |commit: &str| printable(commit.trim_end_matches("-dirty"));
    Some(format!("{}..{}", commit::short(&clean(before?)), commit::short(&clean(after?))))
}

/// An entry's number and names.
pub(super) fn entry(point: &Point) -> String {
    let commit = point.commit.as_deref().map(commit::short);
    let names: Vec<String> =
        [commit, point.label.clone()].into_iter().flatten().map(|name| printable(&name)).collect();
    match names.is_empty() {
        true => format!("entry {}", point.number),
        false => format!("{} (entry {})", names.join(" "), point.number),
    }
}

/// The facts that changed with it.
pub(super) fn facts(change: &Change) -> Vec<String> {
    let phrase = |(name, (before, after)): (&String, &(Option<String>, Option<String>))| {
        let value = |fact: &Option<String>| fact.as_deref().map_or("unknown".to_owned(), printable);
        let back = before.as_deref().and_then(|before| way_back(name, before));
        let back = back.map_or_else(String::new, |way| format!(" (to return: {way})"));
        format!("{} changed from {} to {}{back}", printable(name), value(before), value(after))
    };
    change.facts.iter().map(phrase).collect()
}

/// A machine by its facts.
pub(super) fn machine(facts: &BTreeMap<String, String>) -> String {
    let phrase = |name: &&str| {
        let value = printable(facts.get(*name)?);
        Some(match *name {
            "cpu.count" if value == "1" => "1 processor".to_owned(),
            "cpu.count" => format!("{value} processors"),
            "cpu.mhz" => format!("{value} MHz"),
            "build" => format!("{value} build"),
            "kernel" => format!("Linux {value}"),
            "thp.enabled" => format!("huge pages {value}"),
            _ => value,
        })
    };
    let all: Vec<String> = MACHINE.iter().filter_map(phrase).collect();
    if all.is_empty() { "an unknown machine".to_owned() } else { all.join(", ") }
}

/// Describes the entries of another machine than the newest, and the way to compare them if one fact differs.
pub(super) fn apart(history: &History, other: &Group) -> String {
    let newest = &history.groups[0].machine;
    let differing: Vec<&&str> =
        MACHINE.iter().filter(|name| newest.get(**name) != other.machine.get(**name)).collect();
    let advice = match differing.as_slice() {
        [only] => format!(" (--ignore {only} compares them)"),
        _ => String::new(),
    };
    format!("{} of another machine, {}{advice}", entries(other), machine(&other.machine))
}

fn entries(group: &Group) -> String {
    match group.points.len() {
        1 => "1 entry".to_owned(),
        many => format!("{many} entries"),
    }
}

/// The limits of an analysis, a sentence each.
pub(super) fn notes(history: &History, group: &Group, alpha: f64) -> Vec<String> {
    let mut all = vec![unseen(group, alpha)];
    if let Some(correlation) = group.dependence {
        all.push(format!(
            "entries depend on the ones before (correlation {correlation:.2}): false changes are more frequent"
        ));
    }
    if history.left_out > 0 {
        let metric = printable(&history.metric);
        all.push(format!("entries without {metric}, left out: {}", history.left_out));
    }
    all
}

/// The steps that would not have been seen.
fn unseen(group: &Group, alpha: f64) -> String {
    let size = |step: f64| format::percent(step).trim_start_matches('+').to_owned();
    let level = &group.levels[group.levels.len() - 1];
    let values = &group.points[level.from..level.to];
    let is_constant = values.iter().all(|point| point.value == values[0].value);
    match group.smallest_steps.as_slice() {
        [] if is_constant && values.len() > 1 => {
            "the values of the last level are all the same: no smallest step is known".to_owned()
        }
        [] => format!(
            "the last level has {}: too few to see another step at --alpha {alpha}",
            count(values.len(), "value")
        ),
        steps => {
            let phrase =
                steps.iter().map(|(newer, step)| format!("{} after {newer} entries", size(*step)));
            let phrase: Vec<String> = phrase.collect();
            format!(
                "smaller steps of the last level could go unseen: {} are found with a probability of 80 %",
                phrase.join(", and ")
            )
        }
    }
}
