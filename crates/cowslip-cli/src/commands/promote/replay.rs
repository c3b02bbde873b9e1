//! `--replay`: the effect that other settings would have had in a record.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use std::process::ExitCode;

use cowslip::units::{ByteCount, CHUNK_BYTES, page_size_bytes};
use cowslip_promote::{Counts, ProcessId, Replay};
use serde_json::{Value, json};

use super::args::PromoteArgs;
use super::{explain, plan};
use crate::exit::{self, CommandResult, Failure, NO};
use cowslip_report::{self as output, sink, text};

pub(super) fn run(args: &PromoteArgs, record: &Path) -> CommandResult {
    let file = File::open(record).map_err(exit::io(format_args!("open {}", record.display())))?;
    let events = cowslip_promote::read_record(BufReader::new(file));
    let replay = cowslip_promote::replay(events, |settings| plan::change(settings, args))?;
    if let Some(address) = args.explain {
        return story(&replay, address);
    }
    if let Some(file) = &args.json {
        output::json::write(&to_json(&replay), file).map_err(exit::io("write the report"))?;
    }
    if args.json.as_deref() != Some(Path::new("-")) {
        sink::print(&table(&replay)).map_err(exit::io("print the table"))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn added_bytes(counts: &Counts) -> u64 {
    counts.added_pages * page_size_bytes() as u64
}

fn to_json(replay: &Replay) -> Value {
    let counts = |counts: &Counts| {
        json!({
            "promotions": counts.promotions,
            "added_bytes": added_bytes(counts),
            "splits": counts.splits,
        })
    };
    json!({
        "schema": "cowslip.promote.replay/1",
        "looks": replay.rounds.len(),
        "recorded": counts(&replay.recorded),
        "replayed": counts(&replay.replayed),
    })
}

fn table(replay: &Replay) -> String {
    let heads = ["", "promoted", "memory added for it", "split"].map(str::to_owned).to_vec();
    let row = |name: &str, counts: &Counts| {
        vec![
            name.to_owned(),
            format!("{} regions of 2 MiB", counts.promotions),
            ByteCount(added_bytes(counts)).to_string(),
            counts.splits.to_string(),
        ]
    };
    let rows =
        [heads, row("as recorded", &replay.recorded), row("with these settings", &replay.replayed)];
    let mut lines = text::align(&rows);
    lines.push(format!("  over {} looks", replay.rounds.len()));
    lines.iter().map(|line| line.trim_end().to_owned() + "\n").collect()
}

fn story(replay: &Replay, address: u64) -> CommandResult {
    let start = address & !(CHUNK_BYTES as u64 - 1);
    let first_ns = replay.rounds.first().map_or(0, |round| round.look.at_ns);
    let mut processes: Vec<(ProcessId, &str)> = Vec::new();
    for process in replay.rounds.iter().flat_map(|round| &round.look.processes) {
        if !processes.iter().any(|(known, _)| *known == process.process) {
            processes.push((process.process, &process.name));
        }
    }
    let mut told = String::new();
    for (process, name) in processes {
        let story = replay.story(process, start);
        if !story.is_empty() {
            told += &format!("{} ({}), 2 MiB at {start:#x}\n", text::printable(name), process.pid);
        }
        for (at_ns, region, reason) in story {
            let seconds = (at_ns - first_ns) as f64 / 1e9;
            let (facts, why) = (explain::facts(&region), explain::why(reason));
            told += &format!("  {seconds:>8.1} s  {facts}\n              {why}\n");
        }
    }
    if told.is_empty() {
        return Err(Failure::new(
            NO,
            format!("{address:#x}: the record shows no memory in use there"),
        ));
    }
    sink::print(&told).map_err(exit::io("print the explanation"))?;
    Ok(ExitCode::SUCCESS)
}
