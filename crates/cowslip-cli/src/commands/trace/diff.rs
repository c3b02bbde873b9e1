//! `cowslip trace diff`: the differences between two traces.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::ValueEnum;
use cowslip_report::text::{align, printable, wrap};
use cowslip_report::{Progress, json as file, sink};
use cowslip_sys::units::ByteCount;
use cowslip_trace::diff::{Basis, Diff, GroupDiff, GroupSide, Setting};
use cowslip_trace::format::{count, counted, duration};
use serde_json::{Value, json};

use super::load::{Loaded, load, warn};
use super::tables::{Extent, callers, table};
use crate::exit::{self, CommandResult, NO};

/// Say which mappings have more faults in one of two traces, of which kind, and what else differs
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  cowslip trace diff good.trace bad.trace\n  \
    cowslip trace diff --by second monday.trace tuesday.trace --json - | jq '.diff.explanations'\n\n\
    Mappings are set side by side by what they are: file, who mapped them, and size. Exit code: 0 the \
    faults are the same, 1 they differ (by a quarter, a hundred faults and one in a hundred of all).")]
pub(crate) struct DiffArgs {
    /// A trace
    first: PathBuf,
    /// Another one
    second: PathBuf,
    /// Compare faults per second or in the whole run [default: run if both are of commands from their start]
    #[arg(long, value_enum, value_name = "WHAT")]
    by: Option<By>,
    /// Lines of each table
    #[arg(long, value_name = "N", default_value_t = 10)]
    top: usize,
    /// Write everything as JSON to a file, or `-` for stdout (then no tables)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum By {
    /// Faults per second
    Second,
    /// Faults in the whole run
    Run,
}

pub(super) fn run(args: &DiffArgs) -> CommandResult {
    let mut progress = Progress::brief();
    let mut first = load(&args.first, &mut progress)?;
    let mut second = load(&args.second, &mut progress)?;
    progress.phase("comparing");
    let analyses = [&first.analysis, &second.analysis];
    let basis = match args.by {
        Some(By::Second) => Basis::PerSecond,
        Some(By::Run) => Basis::PerRun,
        None if first.cut_short.is_some() || second.cut_short.is_some() => Basis::PerSecond,
        None => Basis::fitting(analyses),
    };
    let diff = Diff::new(analyses, [&mut first.names, &mut second.names], basis);
    progress.finish();
    match &args.json {
        Some(path) => {
            [&first, &second].iter().for_each(|side| warn(&side.path, side.cut_short.as_ref()));
            file::write(&to_json(&diff, [&first, &second]), path)
                .map_err(exit::io("write the differences"))?;
        }
        None => {
            let lines = lines(&diff, [&first, &second], args.top);
            sink::print(&Extent::of_stdout().text(&lines))
                .map_err(exit::io("print the differences"))?;
        }
    }
    Ok(if diff.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(NO) })
}

fn to_json(diff: &Diff, sides: [&Loaded; 2]) -> Value {
    json!({
        "schema": "cowslip.trace-diff/1",
        "files": sides.map(|side| &side.path),
        "are_cut_short": sides.map(|side| side.cut_short.is_some()),
        "headers": sides.map(|side| &side.analysis.header),
        "same": diff.is_empty(),
        "diff": diff,
    })
}

fn lines(diff: &Diff, sides: [&Loaded; 2], top: usize) -> Vec<String> {
    let mut lines = Vec::new();
    for side in sides {
        let cut_short = side.cut_short.iter().map(|cut| format!("{}: {cut}", side.path.display()));
        lines.extend(cut_short.flat_map(|line| wrap(&line, 2)));
    }
    if diff.is_empty() {
        lines.push("the faults are the same".to_owned());
    }
    for explanation in &diff.explanations {
        lines.extend(wrap(explanation, 2));
    }
    if diff.explanations.is_empty() && !diff.is_empty() {
        lines.push("no rule says from which of the differences below it comes".into());
    }
    lines.push(String::new());
    lines.extend(wholes(diff, sides));
    lines.extend(kinds(diff));
    lines.extend(groups(diff, top));
    lines.extend(settings(&diff.settings, top));
    lines
}

fn wholes(diff: &Diff, sides: [&Loaded; 2]) -> Vec<String> {
    let mut rows =
        vec![["", "faults", "in", "lost", "recorded", "command"].map(str::to_owned).to_vec()];
    for (side, loaded) in diff.sides.iter().zip(sides) {
        let every = match side.sampling_period {
            1 => "all".to_owned(),
            period => format!("one in {}", count(period)),
        };
        rows.push(vec![
            loaded.path.display().to_string(),
            count(side.faults),
            duration(side.duration_ns as f64),
            count(side.lost),
            every + if loaded.cut_short.is_some() { ", cut short" } else { "" },
            printable(&loaded.analysis.header.title()),
        ]);
    }
    let mut lines = align(&rows);
    lines.push(String::new());
    lines
}

fn kinds(diff: &Diff) -> Vec<String> {
    let mut rows = Vec::new();
    for kind in &diff.kinds {
        let mark = if kind.differs { "differs" } else { "" };
        let [first, second] = kind.compared.map(faults);
        rows.push(vec![first, second, mark.to_owned(), kind.kind.to_string()]);
    }
    table(&format!("faults {}, by kind", diff.basis), &[], rows)
}

fn groups(diff: &Diff, top: usize) -> Vec<String> {
    let row = |group: &GroupDiff| {
        let [first, second] = group.compared().map(faults);
        vec![first, second, sides(&group.sides), subject(group)]
    };
    let mut lines = table(
        &format!("faults {}, by mapping", diff.basis),
        &[],
        diff.groups.iter().take(top).map(row).collect(),
    );
    if let Some(more) = diff.groups.len().checked_sub(top).filter(|more| *more > 0) {
        lines.insert(lines.len() - 1, format!("  and {more} more (--top, --json)"));
    }
    lines
}

/// Describes the changes beside the number.
fn sides(sides: &[Option<GroupSide>; 2]) -> String {
    match sides {
        [None, Some(_)] => "only in the second".into(),
        [Some(_), None] => "only in the first".into(),
        [Some(first), Some(second)] => {
            let each = [first, second].map(|side| side.shape.per_mapping[1]);
            let kinds = [first, second].map(|side| side.kind);
            let mut changes = Vec::new();
            if each[0] != each[1] {
                changes.push(format!("{} → {} each", count(each[0]), counted(each[1], "fault")));
            }
            let steps = [first, second]
                .map(|side| side.shape.is_regular().then_some(side.shape.step_pages));
            if let ([Some(one), Some(other)], true) = (steps, steps[0] != steps[1]) {
                changes.push(format!("{one:+} → {other:+} pages a step"));
            }
            if let ([Some(one), Some(other)], true) = (kinds, kinds[0] != kinds[1]) {
                changes.push(format!("{one} → {other}"));
            }
            changes.join(", ")
        }
        [None, None] => String::new(),
    }
}

fn subject(group: &GroupDiff) -> String {
    let size = group.size_bytes.map(|size| format!("{} ", ByteCount(size))).unwrap_or_default();
    let callers = callers(" by ", &group.mapped_by);
    format!("{size}{}{callers}", printable(&group.place.to_string()))
}

fn settings(settings: &[Setting], top: usize) -> Vec<String> {
    let value = |value: &Option<String>| value.as_deref().map_or_else(|| "–".to_owned(), printable);
    let mut lines = Vec::new();
    if !settings.is_empty() {
        lines.push("what else differs".to_owned());
    }
    for Setting { name, values: [first, second] } in settings.iter().take(top.max(1) * 2) {
        lines.extend(wrap(&format!("  {name}: {} → {}", value(first), value(second)), 4));
    }
    if let Some(more) = settings.len().checked_sub(top.max(1) * 2).filter(|more| *more > 0) {
        lines.push(format!("  and {more} more (--top, --json)"));
    }
    lines
}

fn faults(compared: f64) -> String {
    format!("{:>11}", count(compared.round() as u64))
}
