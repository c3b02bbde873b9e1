//! The options of `cowslip promote`.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use cowslip_promote::WorkSource;

use crate::commands::numbers::{between, positive, whole};

/// In seconds; longer than any useful wait.
const A_YEAR: u64 = 366 * 86_400;

/// Give running programs huge pages for the memory they use, without their cooperation
///
/// Regions of 2 MiB that are nearly full become one huge page, huge pages that hold hardly anything are split, and no
/// content changes. Memory that a live child shares, or that was just released, is left alone.
#[derive(clap::Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
#[command(after_help = "Examples:\n  cowslip promote --once --coverage 0.95 --pid 4711\n  \
    cowslip promote --match redis-server --record redis.jsonl\n  \
    cowslip promote --replay redis.jsonl --threshold 70\n  \
    cowslip promote --pid 4711 --explain 0x7f0000200000\n  \
    cowslip promote -- redis-server --save ''\n  \
    cowslip promote measure 4711 --unit lines:access.log\n  \
    cowslip promote advise 4711\n  \
    cowslip promote top\n\n\
    It needs CAP_SYS_NICE, and for other users' processes CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH.")]
pub(crate) struct PromoteArgs {
    #[command(subcommand)]
    pub(super) view: Option<View>,
    #[command(flatten)]
    pub(super) who: Who,
    /// Do it now and end, instead of running on
    #[arg(long)]
    pub(super) once: bool,
    /// With --once: the part of all anonymous memory that has to be huge in the end (0 to 1), else the exit code is 1
    #[arg(long, value_name = "RATIO", requires = "once", value_parser = between(0.0..=1.0))]
    pub(super) coverage: Option<f64>,
    /// With --once: how long to go on trying
    #[arg(long, value_name = "SECONDS", requires = "once", default_value_t = 60, value_parser = whole(0..=A_YEAR))]
    pub(super) timeout: u64,
    /// Say what would be done, and do nothing
    #[arg(long, requires = "once")]
    pub(super) dry_run: bool,
    #[command(flatten)]
    pub(super) how: How,
    /// Say how the region at this address is treated, and why
    #[arg(long, value_name = "ADDRESS", value_parser = address)]
    pub(super) explain: Option<u64>,
    /// Keep a record of everything seen and done (JSON Lines)
    #[arg(long, value_name = "FILE")]
    pub(super) record: Option<PathBuf>,
    /// Say what these options would have done in a record, instead of doing anything
    #[arg(long, value_name = "FILE", conflicts_with_all = ["record", "once", "config"])]
    pub(super) replay: Option<PathBuf>,
    /// Read targets and settings from a TOML file; both are read again on SIGHUP
    #[arg(long, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,
    /// Only say whether the configuration makes sense
    #[arg(long, requires = "config")]
    pub(super) check_config: bool,
    /// Only put back the settings that a killed run with --manage-thp has left
    #[arg(long, conflicts_with_all = ["once", "config", "Who"])]
    pub(super) restore_thp: bool,
    /// Serve metrics for Prometheus on this loopback address and port; `:PORT` is 127.0.0.1's
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = socket_address, conflicts_with = "once")]
    pub(super) metrics: Option<SocketAddr>,
    /// Write metrics for Prometheus to this file after every look
    #[arg(long, value_name = "FILE", conflicts_with = "once")]
    pub(super) metrics_file: Option<PathBuf>,
    /// Write the actions as JSON to a file, or `-` for stdout (then no table)
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,
    /// Start this command and promote it; its page faults make no huge pages, even where the system's setting is
    /// `always` (Linux 6.18)
    #[arg(last = true, value_name = "COMMAND",
          conflicts_with_all = ["once", "explain", "replay", "check_config", "restore_thp"])]
    pub(super) command: Vec<OsString>,
}

/// Which processes
#[derive(clap::Args, Debug)]
pub(super) struct Who {
    /// This process; may be given several times
    #[arg(long, value_name = "N[=WEIGHT]", value_parser = weighed_pid)]
    pub(super) pid: Vec<Weighed<i32>>,
    /// Every process of this name, with this weight each; may be given several times
    #[arg(long = "match", value_name = "NAME[=WEIGHT]", value_parser = weighed::<String>)]
    pub(super) name: Vec<Weighed<String>>,
    /// Every process in the control group with this directory, or this slice's name, or below it, with this weight
    /// together
    #[arg(long, value_name = "GROUP[=WEIGHT]", value_parser = weighed::<PathBuf>)]
    pub(super) cgroup: Vec<Weighed<PathBuf>>,
    /// Every process that may be looked at
    #[arg(long)]
    pub(super) all: bool,
}

#[derive(clap::Subcommand, Debug)]
pub(super) enum View {
    Top(TopArgs),
    Measure(MeasureArgs),
    Advise(AdviseArgs),
}

/// Show processes and their huge pages, live: those of a running daemon, or any
///
/// Without an option, those of the daemon that serves its metrics at 127.0.0.1:9464; if there is none, all that may be
/// looked at. Nothing is promoted.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Keys: q quits · p pauses · s sorts by the next column · r the other way round"
)]
pub(super) struct TopArgs {
    #[command(flatten)]
    pub(super) who: Who,
    /// The daemon that serves its metrics here
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = socket_address, conflicts_with = "Who")]
    pub(super) metrics: Option<SocketAddr>,
    /// The daemon that writes its metrics to this file
    #[arg(long, value_name = "FILE", conflicts_with_all = ["Who", "metrics"])]
    pub(super) metrics_file: Option<PathBuf>,
    /// Without a daemon: ask the kernel which memory is accessed
    #[arg(long)]
    pub(super) heat: bool,
    /// Time between two looks
    #[arg(long, value_name = "SECONDS", default_value_t = 2, value_parser = whole(1..=3600u64))]
    pub(super) interval: u64,
    /// Order of the processes
    #[arg(long, value_enum, default_value_t = Sort::Rss)]
    pub(super) sort: Sort,
    /// Print the table once, as is done without a terminal
    #[arg(long)]
    pub(super) once: bool,
    /// Write it once, as JSON to a file, or `-` for stdout
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,
}

/// Measure what huge pages save a program, and keep them only if they do
///
/// Its dense memory is made huge and split again, in turns; of some GiB a random part. Processor time for a unit of its
/// work is compared between the turns. If it falls, all dense memory becomes huge. Otherwise the part is split again.
/// Content never changes. It takes half a minute if much is gained, and 90 seconds at most (--within).
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Units:\n  http://127.0.0.1:9121/metrics#redis_commands_processed_total   a metric in \
    Prometheus' format, of this machine\n  lines:/var/log/nginx/access.log   lines that are added to a file\n  \
    /run/app/requests   a number in a file\n\nWithout a unit, processor time is compared as it is, if the load is \
    steady.\n\nExit codes: 0 it gains · 1 it does not, or that cannot be told"
)]
pub(super) struct MeasureArgs {
    /// The process
    #[arg(value_name = "PID", value_parser = whole(1..=i32::MAX))]
    pub(super) pid: i32,
    /// A counter of the program's work
    #[arg(long, value_name = "COUNTER")]
    pub(super) unit: Option<WorkSource>,
    /// Saved processor time from which huge pages are worth it
    #[arg(long, value_name = "PERCENT", default_value_t = 2.0, value_parser = positive(50.0))]
    pub(super) effect: f64,
    /// Length of a turn
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 500, value_parser = whole(20..=3_600_000u64))]
    pub(super) period: u64,
    /// Time after which it ends without an answer; more memory is measured in more time
    #[arg(long, value_name = "SECONDS", default_value_t = 90, value_parser = whole(1..=86_400u64))]
    pub(super) within: u64,
    /// Largest part of the program's time for which a change may hold it up [default: 25]
    #[arg(long, value_name = "PERCENT", value_parser = positive(100.0))]
    pub(super) stall_budget: Option<f64>,
    /// Write the result as JSON to a file, or `-` for stdout (then no sentence)
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,
}

/// Say what each size of pages would cost and cover for a program
///
/// Nothing is changed. Sizes between 4 KiB and 2 MiB are the kernel's from Linux 6.8 on
/// (/sys/kernel/mm/transparent_hugepage/hugepages-*kB/enabled).
#[derive(clap::Args, Debug)]
pub(super) struct AdviseArgs {
    /// The process
    #[arg(value_name = "PID", value_parser = whole(1..=i32::MAX))]
    pub(super) pid: i32,
    /// The used part from which pages count as dense
    #[arg(long, value_name = "PERCENT", default_value_t = 90, value_parser = whole(1..=100u8))]
    pub(super) threshold: u8,
    /// Write it as JSON to a file, or `-` for stdout (then no table)
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,
}

/// Orders of the processes.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Sort {
    Rss,
    Huge,
    Coverage,
    Bloat,
    Heat,
    Promoted,
    Refused,
    Stall,
    Name,
}

/// A target, and its share of huge pages beside that of others.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Weighed<T> {
    pub(super) who: T,
    pub(super) weight: u32,
}

/// Settings to override
#[derive(clap::Args, Debug)]
pub(super) struct How {
    /// Promote regions with at least this much in use [default: 90]
    #[arg(long, value_name = "PERCENT", value_parser = whole(1..=100u8))]
    pub(super) threshold: Option<u8>,
    /// Split huge pages with less than this in use; 0: none [default: 20]
    #[arg(long, value_name = "PERCENT", value_parser = whole(0..=99u8))]
    pub(super) demote_below: Option<u8>,
    /// Largest part of a target's time for which promotion may hold it up [default: 5, with --once 25]
    #[arg(long, value_name = "PERCENT", value_parser = positive(100.0))]
    pub(super) stall_budget: Option<f64>,
    /// Ask the kernel which memory is accessed, and treat hot memory first (DAMON, else clear_refs)
    #[arg(long)]
    pub(super) heat: bool,
    /// Promote the text of programs and libraries too, where the kernel can
    #[arg(long)]
    pub(super) files: bool,
    /// Keep khugepaged to the threshold, set the size of pages at faults that suits, and put both back at the end
    #[arg(long)]
    pub(super) manage_thp: bool,
}

const NO_PID: &str = "a process number above 0 is wanted, such as 4711 or 4711=2";

/// A name may have a `=` of its own: only a number after the last one is a weight.
fn weighed<T: FromStr>(text: &str) -> Result<Weighed<T>, String> {
    let split = text.rsplit_once('=').and_then(|(who, weight)| Some((who, weight.parse().ok()?)));
    let (who, weight) = split.unwrap_or((text, 1));
    match who.parse() {
        Ok(who) if weight > 0 => Ok(Weighed { who, weight }),
        Ok(_) => Err("a weight is to be 1 or more".into()),
        Err(_) => Err(NO_PID.into()),
    }
}

fn weighed_pid(text: &str) -> Result<Weighed<i32>, String> {
    weighed(text).and_then(|target| if target.who > 0 { Ok(target) } else { Err(NO_PID.into()) })
}

/// A port alone is one of this machine's own address.
fn socket_address(text: &str) -> Result<SocketAddr, String> {
    let whole = if text.starts_with(':') { format!("127.0.0.1{text}") } else { text.to_owned() };
    whole.parse().map_err(|_| "an address and a port are wanted, such as 127.0.0.1:9464".into())
}

fn address(text: &str) -> Result<u64, String> {
    u64::from_str_radix(text.trim_start_matches("0x"), 16)
        .map_err(|_| "a hexadecimal address such as 0x7f0000200000 is wanted".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_alone_is_of_this_machine() {
        assert_eq!(socket_address(":9464"), socket_address("127.0.0.1:9464"));
        assert_eq!(socket_address("[::1]:1"), Ok("[::1]:1".parse().unwrap()));
        assert!(socket_address("9464").unwrap_err().contains("such as 127.0.0.1:9464"));
    }

    #[test]
    fn a_weight_comes_after_the_last_sign_of_equality() {
        let of = |text| weighed::<String>(text).map(|target| (target.who, target.weight));
        assert_eq!(of("redis=3"), Ok(("redis".to_owned(), 3)));
        assert_eq!(of("a=b"), Ok(("a=b".to_owned(), 1)));
        assert_eq!(of("a=b=2"), Ok(("a=b".to_owned(), 2)));
        assert!(of("a=0").is_err());
        assert_eq!(weighed("7=2"), Ok(Weighed { who: 7, weight: 2 }));
        assert!(weighed_pid("seven").is_err() && weighed_pid("0").is_err());
    }
}
