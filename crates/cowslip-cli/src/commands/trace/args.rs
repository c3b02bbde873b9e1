//! The options of `cowslip trace`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Subcommand, ValueEnum};
use cowslip::units::ByteCount;
use cowslip_trace::record::{Detail, Stacks, Unwinding};

use super::diff::DiffArgs;
use super::picture::HtmlArgs;
use super::report::ReportArgs;
use crate::commands::numbers::whole;
use crate::exit::OF_COMMANDS;

/// Record every page fault and mapping of a program and of its forks, or look at such a trace
///
/// Running programs are attached to and left without being stopped.
#[derive(clap::Args, Debug)]
#[command(
    args_conflicts_with_subcommands = true,
    override_usage = "cowslip trace [OPTIONS] [--] COMMAND...\n       cowslip trace [OPTIONS] --pid PID|--cgroup DIR|--system\n       \
    cowslip trace report|diff|html|export|import|permissions ...",
    after_help = format!("Examples:\n  \
    cowslip trace -o build.trace make -j4\n  cowslip trace --pid 4711 --detail access\n  \
    cowslip trace --pid 4711 --last 10 --trigger 'faults/s > 100000'\n  \
    cowslip trace --system --duration 10\n  \
    cowslip trace report cowslip.trace\n  \
    cowslip trace -- report          a program that is named like a command of this one\n\n\
    {}\n\n\
    Everybody may trace programs of their own; `cowslip trace permissions` says what privileges add.", OF_COMMANDS)
)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(super) action: Option<Action>,
    #[command(flatten)]
    pub(super) record: RecordArgs,
}

#[derive(Subcommand, Debug)]
pub(crate) enum Action {
    /// Show what each privilege makes visible here, and which command grants it
    Permissions,
    Export(ExportArgs),
    Import(ImportArgs),
    Report(ReportArgs),
    Diff(DiffArgs),
    Html(HtmlArgs),
}

/// Give a trace to other programs: as a table, or as lines of JSON
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  cowslip trace export build.trace -o faults.csv\n  \
    cowslip trace export build.trace --format jsonl | jq 'select(.kind == \"fault\")'")]
pub(crate) struct ExportArgs {
    /// The trace
    pub(super) file: PathBuf,
    /// The format
    #[arg(long, value_enum, default_value_t = FormatArg::Csv)]
    pub(super) format: FormatArg,
    /// Where it goes, or `-` for stdout
    #[arg(short, long, value_name = "FILE", default_value = "-")]
    pub(super) output: PathBuf,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum FormatArg {
    /// A row per event
    Csv,
    /// An object per event, one per line
    Jsonl,
}

/// Make a trace of perf's recording, its perf.data
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  perf record -e page-faults -c 1 -d -- ./cache\n  \
    cowslip trace import perf.data -o cache.trace\n\n  \
    perf record -e 'syscalls:sys_*_m*map' -e 'exceptions:page_fault_*' -p PID sleep 30\n  \
    cowslip trace import perf.data -o cache.trace")]
pub(crate) struct ImportArgs {
    /// The perf.data
    pub(super) file: PathBuf,
    /// Where the trace goes, whole or not at all
    #[arg(short, long, value_name = "FILE")]
    pub(super) output: PathBuf,
}

#[derive(clap::Args, Debug)]
pub(crate) struct RecordArgs {
    /// A running process; may be given several times
    #[arg(short, long, value_name = "PID", value_parser = whole(1..=i32::MAX))]
    pub(super) pid: Vec<i32>,
    /// All processes of a control group and of those below it, now and later: its directory
    #[arg(long, value_name = "DIR", conflicts_with = "pid")]
    pub(super) cgroup: Option<PathBuf>,
    /// All processes of the machine, now and later
    #[arg(long, conflicts_with_all = ["pid", "cgroup"])]
    pub(super) system: bool,
    /// End after this time; the programs go on
    #[arg(long, value_name = "SECONDS", value_parser = seconds, conflicts_with = "command")]
    pub(super) duration: Option<Duration>,
    /// Where the trace goes
    #[arg(short, long, value_name = "FILE", default_value = "cowslip.trace")]
    pub(super) output: PathBuf,
    /// How much to record of each fault
    #[arg(long, value_enum, default_value_t = DetailArg::Faults)]
    pub(super) detail: DetailArg,
    /// Let the kernel count the latencies of faults, as root
    #[arg(long)]
    pub(super) latency: bool,
    /// The call stacks to record
    #[arg(long, value_enum, default_value_t = StacksArg::Maps)]
    pub(super) stacks: StacksArg,
    /// How callers are found
    #[arg(long, value_enum, default_value_t = UnwindArg::FramePointers)]
    pub(super) unwind: UnwindArg,
    /// Record one in N faults
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = whole(1..=u64::MAX))]
    pub(super) one_in: u64,
    /// Each processor's ring [default: 8M, less where that is not permitted]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(super) ring: Option<ByteCount>,
    /// Keep the last seconds only, and write them when the program ends, at SIGUSR2, Ctrl-C or --trigger
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub(super) last: Option<Duration>,
    /// With --last: memory for them
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "256M", requires = "last")]
    pub(super) memory: ByteCount,
    /// With --last: when to write them, as in 'faults/s > 100000'
    #[arg(long, value_name = "CONDITION", value_parser = trigger, requires = "last")]
    pub(super) trigger: Option<u64>,
    /// Also record the kernel's counters, each second, for `cowslip compare`
    #[arg(long, value_name = "FILE")]
    pub(super) metrics: Option<PathBuf>,
    /// Write the numbers of the recording as JSON to a file, or `-` for stdout
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,
    /// The command to record, and its arguments
    #[arg(trailing_var_arg = true, value_name = "COMMAND", conflicts_with_all = ["pid", "cgroup", "system"])]
    pub(super) command: Vec<OsString>,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum DetailArg {
    /// Address, instruction, thread, time, minor or major
    Faults,
    /// Also the time it took, and with privileges how, and huge or not: each fault is slowed down twice as much
    Access,
}

impl From<DetailArg> for Detail {
    fn from(arg: DetailArg) -> Self {
        match arg {
            DetailArg::Faults => Self::Faults,
            DetailArg::Access => Self::Access,
        }
    }
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum StacksArg {
    /// None
    None,
    /// Those of threads that map memory, where privileges permit
    Maps,
    /// Also those of threads that fault
    Faults,
}

impl From<StacksArg> for Stacks {
    fn from(arg: StacksArg) -> Self {
        match arg {
            StacksArg::None => Self::None,
            StacksArg::Maps => Self::Maps,
            StacksArg::Faults => Self::Faults,
        }
    }
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum UnwindArg {
    /// Along frame pointers: a stack ends at the first function without one
    FramePointers,
    /// By the unwind tables of the program's files, which compilers always write: 8 KiB are copied for each stack
    Dwarf,
}

impl From<UnwindArg> for Unwinding {
    fn from(arg: UnwindArg) -> Self {
        match arg {
            UnwindArg::FramePointers => Self::FramePointers,
            UnwindArg::Dwarf => Self::Dwarf,
        }
    }
}

fn size(text: &str) -> Result<ByteCount, String> {
    match ByteCount::parse(text) {
        Some(size) if size.0 > 0 => Ok(size),
        _ => Err("a size such as 512K or 8MiB is wanted".into()),
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.trim().trim_end_matches('s').parse().ok();
    let time = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    time.filter(|time| !time.is_zero()).ok_or("a number of seconds is wanted".into())
}

fn trigger(text: &str) -> Result<u64, String> {
    let number = text.trim().strip_prefix("faults/s").and_then(|rest| {
        let number = rest.trim().strip_prefix('>')?.trim().replace(['_', ','], "");
        number.parse().ok()
    });
    number.ok_or("a condition such as 'faults/s > 100000' is wanted".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_and_times_are_read() {
        assert_eq!(trigger("faults/s > 100_000"), Ok(100_000));
        assert_eq!(trigger(" faults/s>7 "), Ok(7));
        assert!(trigger("faults > 7").is_err() && trigger("faults/s > many").is_err());
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        assert!(seconds("0").is_err() && seconds("-1").is_err() && seconds("long").is_err());
    }
}
