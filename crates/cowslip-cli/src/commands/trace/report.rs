//! `cowslip trace report`: the content of a trace, in a terminal.

mod lines;

use std::path::PathBuf;
use std::process::ExitCode;

use cowslip_report::{Progress, json as file, sink};
use cowslip_trace::analysis::{Frame, Sums};
use cowslip_trace::patterns;
use serde_json::{Map, Value, json};

use super::load::{Loaded, load, warn};
use super::tables::Extent;
use crate::exit::{self, CommandResult};

/// Say what the faults of a trace were for, where, in which patterns, and what to do about them
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  cowslip trace report build.trace\n  \
    cowslip trace report build.trace --json - | jq '.patterns[].sentence'\n\n\
    docs/trace.md has the rule of each kind of fault, and what a trace cannot tell.")]
pub(crate) struct ReportArgs {
    /// The trace
    file: PathBuf,
    /// Lines of each table
    #[arg(long, value_name = "N", default_value_t = 10)]
    top: usize,
    /// Write everything as JSON to a file, or `-` for stdout (then no tables)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

pub(super) fn run(args: &ReportArgs) -> CommandResult {
    let mut progress = Progress::brief();
    let mut loaded = load(&args.file, &mut progress)?;
    progress.finish();
    match &args.json {
        Some(path) => {
            warn(&loaded.path, loaded.cut_short.as_ref());
            file::write(&to_json(&mut loaded), path).map_err(exit::io("write the report"))?;
        }
        None => {
            let text = lines::lines(&mut loaded, args.top, Extent::of_stdout());
            sink::print(&text).map_err(exit::io("print the report"))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn to_json(loaded: &mut Loaded) -> Value {
    let Loaded { path, analysis, names, latencies, cut_short } = loaded;
    let who = names.by_function(&analysis.stacks, usize::MAX);
    let mut functions = |frames: &[Frame]| json!(names.functions(frames));
    let groups: Vec<Value> = analysis
        .groups
        .iter()
        .map(|group| {
            let mut value = json!(group);
            value["functions"] = functions(&group.identity.mapped_by);
            value
        })
        .collect();
    let stacks: Vec<Value> = analysis
        .stacks
        .iter()
        .map(|stack| {
            let mut value = json!(stack);
            value["functions"] = functions(&stack.frames);
            value
        })
        .collect();
    let kinds: Map<String, Value> = analysis
        .sums
        .kinds()
        .iter()
        .filter_map(|(kind, faults)| Some((json!(kind).as_str()?.to_owned(), json!(faults))))
        .collect();
    json!({
        "schema": "cowslip.trace-report/1",
        "file": path,
        "is_cut_short": cut_short.is_some(),
        "header": analysis.header,
        "duration_ns": analysis.duration_ns,
        "sampling_period": analysis.sampling_period,
        "faults": analysis.sums.faults(),
        "lost": analysis.lost,
        "forks": analysis.forks,
        "kinds": kinds,
        "sums": analysis.sums,
        "fault_cost": analysis.cost,
        "cost": analysis.cost_of(&analysis.sums),
        "latencies": latencies,
        "mappings": groups,
        "stacks": stacks,
        "who": who,
        "threads": analysis.threads,
        "patterns": patterns::find(analysis),
        "rate": analysis.rate,
    })
}

/// The cost of faults in words, or nothing.
fn cost(loaded: &Loaded, sums: &Sums) -> String {
    let cost = loaded.analysis.cost_of(sums);
    cost.map_or_else(String::new, |cost| cowslip_trace::format::duration(cost.ns))
}
