//! What was done, as a table and as JSON.

use std::path::Path;

use cowslip::sys::process;
use cowslip::units::ByteCount;
use cowslip_promote::{Coverage, Reason};
use serde_json::{Map, Value, json};

use super::args::PromoteArgs;
use super::session::Session;
use super::system;
use super::tally::ProcessTally;
use crate::exit::{self, Failure};
use crate::output::{self, sink, text, units};

pub(super) fn deliver(session: &Session, args: &PromoteArgs) -> Result<(), Failure> {
    if let Some(file) = &args.json {
        output::json::write(&to_json(session, args), file).map_err(exit::io("write the report"))?;
    }
    if args.json.as_deref() != Some(Path::new("-")) {
        sink::print(&table(session, args.dry_run)).map_err(exit::io("print the table"))?;
    }
    Ok(())
}

fn to_json(session: &Session, args: &PromoteArgs) -> Value {
    let tally = &session.tally;
    let processes: Vec<Value> =
        tally.processes.iter().map(|(process, tally)| process_json(process.pid, tally)).collect();
    let reached = tally.coverage(|it| it.after).ratio();
    let is_reached = |wanted| reached.is_some_and(|reached| reached >= wanted);
    json!({
        "schema": "cowslip.promote/1",
        "dry_run": args.dry_run,
        "settings": session.promoter.policy().settings(),
        "heat": session.heat.to_json(),
        "system": system::to_json(&tally.system),
        "processes": processes,
        "coverage": {
            "ratio": reached,
            "wanted": args.coverage,
            "reached": args.coverage.map(is_reached),
        },
        "looks": tally.looks,
        "look_cpu_ns": tally.look_cpu_ns,
        "cpu_ns": process::cpu_ns(),
    })
}

fn process_json(pid: i32, tally: &ProcessTally) -> Value {
    let coverage = |it: Option<Coverage>| {
        it.map(|it| {
            json!({
                "anonymous_bytes": it.anonymous_bytes,
                "huge_bytes": it.huge_bytes,
                "arena_bytes": it.arena_bytes,
                "arena_huge_bytes": it.arena_huge_bytes,
                "ratio": it.ratio(),
            })
        })
    };
    let regions: Map<String, Value> =
        tally.regions.iter().map(|(reason, count)| (reason.to_string(), json!(count))).collect();
    let refusals: Map<String, Value> =
        tally.refusals.iter().map(|(errno, count)| (errno.to_string(), json!(count))).collect();
    json!({
        "pid": pid,
        "name": tally.name,
        "ended": tally.has_ended,
        "weight": tally.weight,
        "group": tally.group,
        "resident_bytes": tally.resident_bytes,
        "limits": tally.limits,
        "heat_percent": tally.heat_percent,
        "heat_source": tally.heat_source,
        "huge_source": tally.huge_source,
        "before": coverage(tally.before),
        "after": coverage(tally.after),
        "promotions": tally.promotions,
        "splits": tally.splits,
        "freed_bytes": tally.freed_bytes,
        "overtaken": tally.overtaken,
        "refusals_by_errno": refusals,
        "regions_by_reason": regions,
        "stall_ns": tally.stall_ns,
        "longest_stall_ns": tally.longest_stall_ns,
    })
}

/// The huge part, or a dash if there is nothing that could be huge.
pub(super) fn share(coverage: Coverage) -> String {
    coverage.ratio().map_or("–".to_owned(), |ratio| format!("{:.1} %", ratio * 100.0))
}

fn table(session: &Session, is_dry_run: bool) -> String {
    let heads =
        ["process", "huge before", "huge after", "promoted", "split", "freed", "longest stall"];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    for (process, tally) in &session.tally.processes {
        let share = |it: Option<Coverage>| it.map_or("unknown".to_owned(), share);
        let ended = if tally.has_ended { " (ended)" } else { "" };
        let would = |reason| tally.regions.get(&reason).copied().unwrap_or(0);
        let (promoted, split) = if is_dry_run {
            (would(Reason::Full), would(Reason::Sparse))
        } else {
            (tally.promotions, tally.splits)
        };
        rows.push(vec![
            format!("{} ({})", text::clip(&tally.name), process.pid),
            share(tally.before),
            share(tally.after) + ended,
            promoted.to_string(),
            split.to_string(),
            ByteCount(tally.freed_bytes).to_string(),
            units::human(tally.longest_stall_ns as f64, "ns"),
        ]);
    }
    let mut lines = text::align(&rows);
    if is_dry_run {
        lines.push(String::new());
        lines.push("  a dry run: promoted and split are what would be done now".to_owned());
    }
    lines.push(String::new());
    lines.push("  regions of 2 MiB at the last look:".to_owned());
    for (reason, count) in reasons(session) {
        lines.push(format!("  {count:>8}  {reason}: {}", told(reason, is_dry_run)));
    }
    let cpu = units::human(session.tally.look_cpu_ns as f64, "ns");
    let looks = text::count(session.tally.looks as usize, "look");
    lines.push(format!("  {looks} took {cpu} of processor time"));
    lines.iter().map(|line| line.trim_end().to_owned() + "\n").collect()
}

fn told(reason: Reason, is_dry_run: bool) -> String {
    let sentence = reason.sentence();
    match reason.action() {
        Some(_) if is_dry_run => format!("would be {sentence}"),
        Some(_) => format!("to be {sentence}"),
        None => sentence.into(),
    }
}

fn reasons(session: &Session) -> Vec<(Reason, u64)> {
    let mut sums = std::collections::BTreeMap::new();
    for (reason, count) in session.tally.processes.values().flat_map(|it| &it.regions) {
        *sums.entry(*reason).or_insert(0) += count;
    }
    sums.into_iter().collect()
}
