//! The command `cowslip-bench`: its options, and where results go.

mod args;
mod demo;
mod demo_args;
mod failure;
mod output;

use std::fs;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::ValueEnum;
use cowslip::units::ByteCount;
use cowslip_bench::report::{Report, figures, summary};
use cowslip_bench::{
    Bench, Clock, Error, Interrupt, Options, bloat, cow, fork, process, restore, save, trace, vm,
};
use cowslip_report::{Progress, sink};
use cowslip_sys::exit_code::USAGE;
use serde_json::{Map, Value};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

pub(super) use args::Args;
use args::{Action, BenchArgs, ReportArgs};
use failure::{CommandResult, Failure, NO};

const DEFAULT_SIZE: ByteCount = ByteCount::gib(8);
/// The time limit of a bench without `--full`, less the time by which its last round may exceed it.
const LIMIT: Duration = Duration::from_secs(200);
const SMALLEST_SIZE: ByteCount = ByteCount::mib(64);

pub(super) fn run(action: Action) -> CommandResult {
    match &action {
        Action::Demo(args) => demo::run(args),
        Action::Cow(args) => measure("cow", args, DEFAULT_SIZE, cow::run),
        Action::Fork(args) => measure("fork", args, DEFAULT_SIZE, fork::run),
        Action::Save(args) => measure("save", args, save::default_size(args.full), save::run),
        Action::Restore(args) => measure("restore", args, restore::SIZE, restore::run),
        Action::Bloat(args) => measure("bloat", args, bloat::DEFAULT_SIZE, bloat::run),
        Action::Trace(args) => measure("trace", args, trace::SIZE, trace::run),
        Action::Process(args) => measure("process", args, process::SIZE, process::run),
        Action::Vm(args) => measure("vm", args, vm::SIZE, vm::run),
        Action::BloatProcess => bloat_process(),
        Action::Report(args) => report(args),
        Action::RestoreProcess(args) => restore_process(args),
        Action::RestoreWorker(args) => restore_worker(args),
        Action::FleetMonitor(args) => fleet_monitor(args),
    }
}

fn measure<P: ValueEnum + Send + Sync>(
    name: &'static str,
    args: &BenchArgs<P>,
    default_size: ByteCount,
    run: impl FnOnce(&Options, &[P], &mut Bench<'_>) -> Result<(), Error>,
) -> CommandResult {
    let options = options(args, default_size)?;
    let stop = interrupt()?;
    let mut report = Report::new(name, params(&options));
    let mut progress = Progress::new();
    let bench = &mut Bench {
        report: &mut report,
        progress: &mut progress,
        stop: &stop,
        clock: Clock::new((!args.full).then_some(LIMIT)),
    };
    let measured = run(&options, &args.only, bench);
    progress.finish();
    let interrupted = match measured {
        Ok(()) => false,
        Err(Error::Interrupted) => true,
        Err(error) => return Err(error.into()),
    };
    if interrupted {
        report.notes.push("interrupted: the results are not complete".to_owned());
    }
    report.end();
    output::deliver(&report, &args.output)?;
    let broken = report.ratios.iter().any(|ratio| ratio.holds == Some(false));
    Ok(if broken || interrupted { ExitCode::from(NO) } else { ExitCode::SUCCESS })
}

/// A flag that SIGINT, SIGTERM and SIGHUP set, which no longer end the process.
fn interrupt() -> Result<Interrupt, Failure> {
    let flag = Arc::default();
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&flag))
            .map_err(failure::system("listen for Ctrl-C"))?;
    }
    Ok(Interrupt::from(flag))
}

/// Prints a line, for a reader that may go away.
fn print(line: &str) -> Result<(), Failure> {
    sink::print(&format!("{line}\n")).map_err(failure::io("print"))
}

fn report(args: &ReportArgs) -> CommandResult {
    let results = args.root.join("benchmarks");
    let write = |page: &str, content: &[u8]| {
        fs::write(args.root.join(page), content).map_err(failure::io(format_args!("write {page}")))
    };
    let page = summary::markdown(&results).map_err(failure::io("read the results"))?;
    write("BENCHMARKS.md", page.as_bytes())?;
    for page in figures::PAGES {
        let text = fs::read_to_string(args.root.join(page)).map_err(failure::io(page))?;
        let filled = figures::fill(&results, &text).map_err(failure::io(page))?;
        write(page, filled.as_bytes())?;
    }
    if let Some(picture) = figures::picture(&results).map_err(failure::io("read the picture"))? {
        write(figures::PICTURE.1, &picture)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn bloat_process() -> CommandResult {
    bloat::process()?;
    Ok(ExitCode::SUCCESS)
}

fn restore_process(args: &restore::ProcessArgs) -> CommandResult {
    let observed = restore::process(args)?;
    print(&observed)?;
    Ok(ExitCode::SUCCESS)
}

fn fleet_monitor(args: &vm::MonitorArgs) -> CommandResult {
    vm::monitor(args)?;
    Ok(ExitCode::SUCCESS)
}

fn restore_worker(args: &restore::WorkerArgs) -> CommandResult {
    restore::worker(args)?;
    Ok(ExitCode::SUCCESS)
}

/// The requested size, or one that leaves room for the copies and for a second mechanism.
fn options<P: ValueEnum + Send + Sync>(
    args: &BenchArgs<P>,
    default_size: ByteCount,
) -> Result<Options, Failure> {
    let available = available_memory().map_err(failure::system("read /proc/meminfo"))?;
    let fitting = ByteCount(available.0 / 11 * 5);
    let size = args.size.unwrap_or(default_size.min(fitting));
    if size < SMALLEST_SIZE {
        let message = format!("a size of at least {SMALLEST_SIZE} is wanted, not {size}");
        return Err(Failure::new(USAGE, message));
    }
    if size > fitting {
        let message = format!(
            "{size} and as much again for copies do not fit the {available} of memory that are \
             available: --size {} at most",
            ByteCount(fitting.0 >> 30 << 30).max(SMALLEST_SIZE)
        );
        return Err(Failure::new(USAGE, message));
    }
    Ok(Options { size, budget: ByteCount(available.0 / 4 * 3), runs: args.runs })
}

fn params(options: &Options) -> Map<String, Value> {
    let params = [("size_bytes", options.size.0), ("runs", u64::from(options.runs))];
    params.into_iter().map(|(name, value)| (name.to_owned(), value.into())).collect()
}

/// The kernel's estimate of memory that is available without swapping.
fn available_memory() -> std::io::Result<ByteCount> {
    let text = fs::read_to_string("/proc/meminfo")?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kib.map(|kib| ByteCount(kib << 10))
        .ok_or_else(|| std::io::Error::other("it has no line MemAvailable"))
}
