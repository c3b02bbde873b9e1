//! The options of `cowslip compare` and `cowslip record`.

use std::path::PathBuf;

use clap::ValueEnum;
use cowslip_compare::{MeasureChoice, Options, Sort, UnitChoice};
use regex_lite::Regex;

use crate::args::OutputArgs;
use crate::numbers::{between, positive, whole};

/// Find what differs between good and bad runs: every metric in them is tested, and ranked
///
/// A file is a recording of `cowslip record`, or of `sadf -j`, `perf stat -j` or `hyperfine --export-json`, or CSV
/// with a header; a directory stands for all its files.
#[derive(clap::Args, Debug)]
#[command(
    override_usage = "cowslip compare [OPTIONS] <GOOD>... -- <BAD>...",
    after_help = "Examples:\n  cowslip compare good-1.json good-2.json -- bad-1.json bad-2.json\n  \
    cowslip compare runs/good -- runs/bad --html page.html\n  \
    cowslip compare --metric '^vmstat\\.thp' --all runs/good -- runs/bad\n  \
    cowslip compare both.json@1 -- both.json@2\n\n\
    Exit codes: 0 nothing differs significantly · 1 something does · 2 and above: it could not be found out"
)]
pub(crate) struct CompareArgs {
    /// Files or directories of good runs
    #[arg(required = true)]
    pub(super) good: Vec<PathBuf>,
    /// Files or directories of bad runs
    #[arg(required = true, last = true)]
    pub(super) bad: Vec<PathBuf>,
    #[command(flatten)]
    pub(super) how: How,
}

/// Run a good and a bad command in turns, record what the kernel counts, and compare
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  \
    cowslip record -n 10 --good './old' --bad './new' -o runs\n  \
    cowslip record --good 'THP=always ./x' --bad 'THP=never ./x' --prepare 'sync' -o runs\n\n\
    The recordings stay in DIR/good and DIR/bad: cowslip compare DIR/good -- DIR/bad. After Ctrl-C the \
    runs that were finished are compared. The metrics of the machine are those of all it does: let it do \
    nothing else.\n\n\
    Exit codes: 0 nothing differs significantly · 1 something does · 2 to 6: it could not be found out · \
    125 a command failed, or was interrupted · 126 it cannot be run · 127 it is not there")]
pub(crate) struct RecordArgs {
    /// The good command, for `sh -c`
    #[arg(long, value_name = "COMMAND")]
    pub(super) good: String,
    /// The bad command, for `sh -c`
    #[arg(long, value_name = "COMMAND")]
    pub(super) bad: String,
    /// Where the recordings go; made if it is not there
    #[arg(short, long, value_name = "DIR")]
    pub(super) output: PathBuf,
    /// Runs of each
    #[arg(short = 'n', long, default_value_t = 10, value_parser = whole(1..=100_000u32))]
    pub(super) runs: u32,
    /// Runs of each before them, which are not recorded
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = whole(0..=100_000u32))]
    pub(super) warmup: u32,
    /// A command before each run
    #[arg(long, value_name = "COMMAND")]
    pub(super) prepare: Option<String>,
    /// A command after each run
    #[arg(long, value_name = "COMMAND")]
    pub(super) cleanup: Option<String>,
    /// Which goes first in each pair of runs
    #[arg(long, value_enum, default_value_t = Order::Random)]
    pub(super) order: Order,
    /// Makes the random order the same again
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = whole(0..=u64::MAX))]
    pub(super) seed: u64,
    /// Seconds between samples
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = between(0.001..=86_400.0))]
    pub(super) interval: f64,
    /// Keep runs whose command fails
    #[arg(long)]
    pub(super) ignore_failure: bool,
    /// Let the commands write to stdout and stderr
    #[arg(long)]
    pub(super) show_output: bool,
    #[command(flatten)]
    pub(super) how: How,
}

/// How to compare, and what to show
#[derive(clap::Args, Debug)]
pub(super) struct How {
    /// The level of each test; the intervals hold with one minus it
    #[arg(long, value_name = "P", default_value_t = 0.05, value_parser = share)]
    pub(super) alpha: f64,
    /// The share of false ones that is accepted among the metrics said to differ
    #[arg(long, value_name = "SHARE", default_value_t = 0.05, value_parser = share)]
    pub(super) fdr: f64,
    /// Compare runs, each by its mean or rate [default, with two runs on each side]
    #[arg(long, conflicts_with = "per_sample")]
    pub(super) per_run: bool,
    /// Compare samples, though those of one run are not independent
    #[arg(long)]
    pub(super) per_sample: bool,
    /// How counters are compared: as the runs show (docs/compare.md), by what they counted in a run, or in a second
    #[arg(long, value_enum, default_value_t = Counters::Auto)]
    pub(super) counters: Counters,
    /// The change that matters, in percent: what the first sentence is about, and the advice on the number of runs
    #[arg(long, value_name = "PERCENT", default_value_t = 5.0, value_parser = positive(f64::INFINITY))]
    pub(super) effect: f64,
    /// Only metrics whose names this regular expression finds
    #[arg(long, value_name = "REGEX")]
    pub(super) metric: Option<Regex>,
    /// The order: t as of (good, bad), so that what grew comes first; p; the size of the effect
    #[arg(long, value_enum, default_value_t = SortArg::T)]
    pub(super) sort: SortArg,
    /// Show the metrics that do not differ as well
    #[arg(long)]
    pub(super) all: bool,
    #[command(flatten)]
    pub(super) output: OutputArgs,
}

impl How {
    /// What counts as a change that matters, as a part of the good mean.
    pub(super) fn relevant(&self) -> f64 {
        self.effect / 100.0
    }

    pub(super) fn options(&self) -> Options {
        Options {
            alpha: self.alpha,
            fdr: self.fdr,
            unit: match (self.per_run, self.per_sample) {
                (true, _) => UnitChoice::Run,
                (_, true) => UnitChoice::Sample,
                _ => UnitChoice::Auto,
            },
            counters: match self.counters {
                Counters::Auto => MeasureChoice::Auto,
                Counters::Count => MeasureChoice::Count,
                Counters::Rate => MeasureChoice::Rate,
            },
            wanted_change: self.relevant(),
            sort: match self.sort {
                SortArg::T => Sort::T,
                SortArg::P => Sort::P,
                SortArg::Effect => Sort::Effect,
            },
        }
    }
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Counters {
    Auto,
    Count,
    Rate,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SortArg {
    T,
    P,
    Effect,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Order {
    /// By lot
    Random,
    /// Good, bad, bad, good: what drifts evenly falls out
    Abba,
}

fn share(text: &str) -> Result<f64, String> {
    let share = text.parse().ok().filter(|it| 0.0 < *it && *it < 1.0);
    share.ok_or("a number between 0 and 1 is wanted".to_owned())
}
