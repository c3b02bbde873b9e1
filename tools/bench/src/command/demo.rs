//! The demo.

use std::io;
use std::path::Path;
use std::process::ExitCode;

use cowslip::units::ByteCount;
use cowslip_bench::Interrupt;
use cowslip_bench::demo::{self, redis};
use cowslip_bench::report::{Report, table};
use cowslip_report::{Progress, json, sink, text};
use cowslip_sys::exit_code;
use serde_json::{Map, Value};

pub(super) use super::demo_args::Args;
use super::failure::{self, CommandResult, Failure};
use super::{interrupt, print};

const SIZE: ByteCount = ByteCount::mib(512);
const FULL_SIZE: ByteCount = ByteCount::gib(1);
const SAVES: u32 = 2;
const FULL_SAVES: u32 = 5;
/// Spaces before the lines of a sentence after its first.
const INDENT: usize = 2;

pub(super) fn run(args: &Args) -> CommandResult {
    let options = options(args)?;
    let stop = interrupt()?;
    let mut report = Report::new("demo", params(&options));
    let mut progress = Progress::new();
    let outcome = measure(&options, &stop, &mut progress, &mut report);
    progress.finish();
    let outcome = outcome?;
    report.end();
    deliver(args, &outcome, &report)?;
    let is_interrupted = stop.is_set();
    let is_broken = report.ratios.iter().any(|ratio| ratio.holds == Some(false));
    let is_whole = !is_broken && !is_interrupted && !outcome.is_empty();
    Ok(if is_whole { ExitCode::SUCCESS } else { ExitCode::from(failure::NO) })
}

fn options(args: &Args) -> Result<redis::Options, Failure> {
    let cowslip = cowslip_bench::cowslip()?;
    let (size, saves) = if args.full { (FULL_SIZE, FULL_SAVES) } else { (SIZE, SAVES) };
    // A machine of 4 GiB has room for this, each server in turn.
    let memory = cowslip::host::memory_and_swap();
    let size = args.size.unwrap_or(size.min(ByteCount(memory.0 / 8)));
    Ok(redis::Options {
        size_bytes: size.0,
        saves: args.saves.unwrap_or(saves) as usize,
        full: args.full,
        clients: args.clients as usize,
        redis_server: args.redis_server.clone(),
        ..redis::Options::new(cowslip)
    })
}

fn measure(
    options: &redis::Options,
    stop: &Interrupt,
    progress: &mut Progress,
    report: &mut Report,
) -> Result<redis::Outcome, Failure> {
    let mut phase = String::new();
    let mut show = |label: &str, done: u64, of: u64| {
        if phase != label {
            phase = label.to_owned();
            progress.phase(label);
        }
        progress.set(done, of);
    };
    redis::run(options, stop, &mut show, report).map_err(|error| {
        let code = match &error {
            redis::Error::BadOption(_) | redis::Error::NoServer { .. } => exit_code::USAGE,
            redis::Error::Io { source, .. } => exit_code::of_system(source),
            redis::Error::Interrupted => failure::NO,
            _ => exit_code::FAILED,
        };
        Failure::new(code, error)
    })
}

/// Delivers the sentences, unless JSON goes to standard output, and the files. An empty outcome has no picture.
fn deliver(args: &Args, outcome: &redis::Outcome, report: &Report) -> Result<(), Failure> {
    let is_json_alone = args.json.as_deref() == Some(Path::new("-"));
    if !is_json_alone {
        if args.full {
            table::print(report).map_err(failure::io("print the results"))?;
        }
        for sentence in demo::sentences(outcome) {
            text::wrap(&sentence, INDENT).iter().try_for_each(|line| print(line))?;
        }
        if !args.full {
            let skipped = report.rows.iter().filter(|row| row.metric == "fork");
            let mut skipped = skipped.filter_map(|row| Some((&row.system, row.skipped.as_ref()?)));
            skipped.try_for_each(|(name, why)| print(&format!("skipped: {name}: {why}")))?;
            report.notes.iter().try_for_each(|note| print(&format!("note: {note}")))?;
        }
    }
    if let Some(path) = &args.json {
        json::write(report, path).map_err(failure::io("write the results"))?;
    }
    if outcome.is_empty() {
        return Ok(());
    }
    for (path, drawn) in
        [(&args.svg, demo::picture(outcome)), (&args.html, demo::page(outcome, report))]
    {
        let Some(path) = path else { continue };
        let drawn = drawn.map_err(io::Error::other).map_err(failure::io("draw the picture"))?;
        sink::write(path, &drawn).map_err(failure::io("write the picture"))?;
    }
    if let (Some(page), false) = (&args.html, is_json_alone) {
        print(&format!("Pictures and every number: {}", page.display()))?;
    }
    Ok(())
}

fn params(options: &redis::Options) -> Map<String, Value> {
    let params = [
        ("size_bytes", options.size_bytes),
        ("saves", options.saves as u64),
        ("clients", options.clients as u64),
        ("value_bytes", options.value_bytes as u64),
    ];
    params.into_iter().map(|(name, value)| (name.to_owned(), value.into())).collect()
}
