//! The options of `cowslip-bench`.

use std::path::PathBuf;

use clap::builder::RangedU64ValueParser;
use clap::{Parser, Subcommand, ValueEnum};
use cowslip::units::ByteCount;
use cowslip_bench::{bloat, cow, fork, process, restore, save, trace, vm};

use super::demo;
use super::output::OutputArgs;

/// Measure Cowslip beside the best alternatives, all in one run
#[derive(Parser, Debug)]
#[command(name = "cowslip-bench", version, max_term_width = 100)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) action: Action,
}

#[derive(Subcommand, Debug)]
pub(crate) enum Action {
    Demo(demo::Args),
    /// Copy-on-write under huge pages: the pause and the writes after it (Durg 2025, Lin 2022)
    Cow(BenchArgs<cow::Part>),
    /// Forking from a big process: latency, page tables, and the cost of the faults afterwards (Lin 2022)
    Fork(BenchArgs<fork::Part>),
    /// The whole cycle of Redis's saves: the effect on clients, the cost [default size: 1 GiB, with --full 4 GiB]
    Save(BenchArgs<save::Part>),
    /// Restoring from an image and saving to it, in all ways and beside other tools (Vansa 2023) [default size: 512
    /// MiB]
    Restore(BenchArgs<restore::Part>),
    /// Memory held but not used, faults and stalls under huge pages (Ingens, 2016) [default size: 512 MiB]
    Bloat(BenchArgs<bloat::Part>),
    /// A process that follows commands, for `bloat`
    #[command(hide = true)]
    BloatProcess,
    /// Tracing page faults: overhead beside perf, events lost, the picture
    Trace(BenchArgs<trace::Part>),
    /// Whole processes: the pause of a hold, copies, roll backs, warm starts [default size: 1 GiB]
    Process(BenchArgs<process::Part>),
    /// Guest memory: a guest of KVM frozen while it writes, clones, roll backs, lazy restores [default size: 1 GiB]
    Vm(BenchArgs<vm::Part>),
    /// Write BENCHMARKS.md, and figures and the picture in other pages, from the results of runs
    Report(ReportArgs),
    /// One restore in a process of its own, for `restore`
    #[command(hide = true)]
    RestoreProcess(restore::ProcessArgs),
    /// One of many processes that restore the same image, for `restore`
    #[command(hide = true)]
    RestoreWorker(restore::WorkerArgs),
    /// One of many monitors of machines, for `vm`
    #[command(hide = true)]
    FleetMonitor(vm::MonitorArgs),
}

#[derive(clap::Args, Debug)]
pub(crate) struct BenchArgs<P: ValueEnum + Send + Sync + 'static> {
    /// The largest memory to work on [default: the bench's, or 8 GiB; at most a third of the machine's memory]
    #[arg(long, value_name = "SIZE", value_parser = byte_count)]
    pub(super) size: Option<ByteCount>,
    /// Repetitions of each measurement of a pause
    #[arg(long, default_value_t = 9, value_parser = whole(1, 1000))]
    pub(super) runs: u32,
    /// Measure all sizes and rounds, and AFL++, however long it takes [default: within four minutes]
    #[arg(long)]
    pub(super) full: bool,
    /// Measure only this; may be given several times [default: everything]
    #[arg(long, value_enum, value_name = "PART")]
    pub(super) only: Vec<P>,
    #[command(flatten)]
    pub(super) output: OutputArgs,
}

#[derive(clap::Args, Debug)]
pub(crate) struct ReportArgs {
    /// A checkout, with benchmarks/results/DATE-HOST-quiet/BENCH.json and …-busy/BENCH.json
    #[arg(value_name = "FOLDER", default_value = ".")]
    pub(super) root: PathBuf,
}

/// A whole number in this range.
pub(super) fn whole(least: u64, most: u64) -> RangedU64ValueParser<u32> {
    RangedU64ValueParser::new().range(least..=most)
}

/// A size above zero.
pub(super) fn byte_count(text: &str) -> Result<ByteCount, &'static str> {
    let count = ByteCount::parse(text).filter(|count| count.0 > 0);
    count.ok_or("a size such as 512M or 8GiB is wanted")
}
