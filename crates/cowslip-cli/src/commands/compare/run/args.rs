//! The options of `cowslip compare run`.

use std::path::PathBuf;

use clap::ValueEnum;

use crate::commands::compare::result::Settings;
use crate::commands::numbers::{between, positive, whole};

/// Run a good and a bad command in turns, record the kernel's counters, and compare
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  \
    cowslip compare run -n 10 --good './old' --bad './new' -o runs\n  \
    cowslip compare run --until 2 --good './old' --bad './new' -o runs\n  \
    cowslip compare run --good 'THP=always ./x' --bad 'THP=never ./x' --prepare 'sync' -o runs\n\n\
    The recordings stay in DIR/good and DIR/bad: cowslip compare DIR/good -- DIR/bad. After Ctrl-C the \
    runs that were finished are compared. The metrics of the machine are those of all it does: let it do \
    nothing else.\n\n\
    Exit codes: 0 not slower · 1 the bad command is slower, by --effect or more (--primary, --fail-on) · \
    2 to 6: it could not be found out · \
    125 a command failed, or was interrupted · 126 it cannot be run · 127 it is not there")]
pub(crate) struct RunArgs {
    /// The good command, for `sh -c`
    #[arg(long, value_name = "COMMAND")]
    pub(super) good: String,
    /// The bad command, for `sh -c`
    #[arg(long, value_name = "COMMAND")]
    pub(super) bad: String,
    /// Where the recordings go; made if it is not there
    #[arg(short, long, value_name = "DIR")]
    pub(super) output: PathBuf,
    /// Runs of each, two at least; with --until at most [default: 10, with --until 200]
    #[arg(short = 'n', long, value_parser = whole(2..=100_000u32))]
    pub(super) runs: Option<u32>,
    /// Go on, after ten runs of each, until the interval of the primary metric's change is narrower than this, in
    /// percent of the good mean
    #[arg(long, value_name = "PERCENT", value_parser = positive(f64::INFINITY))]
    pub(super) until: Option<f64>,
    #[command(flatten)]
    pub(super) way: Way,
    /// Find the function in which the difference arose, by three more runs of each, sampled each millisecond; and the system
    /// calls that grew, by three more
    #[arg(long, value_enum, value_name = "WHEN", num_args = 0..=1, default_value_t = Why::Auto,
        default_missing_value = "always")]
    pub(super) why: Why,
    /// Which goes first in each pair of runs
    #[arg(long, value_enum, default_value_t = Order::Random)]
    pub(super) order: Order,
    /// Makes the random order the same again
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = whole(0..=u64::MAX))]
    pub(super) seed: u64,
    #[command(flatten)]
    pub(super) settings: Settings,
}

/// When to look for a function.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Why {
    /// If the commands differ by --effect, and processor time, or waiting for anything else, has a tenth of that
    Auto,
    /// Also if they do not
    Always,
    /// Not at all
    Never,
}

/// The way to run and record a command, which `compare run` and `compare record` share.
#[derive(clap::Args, Debug)]
pub(in crate::commands::compare) struct Way {
    /// Runs of each before them, which are not recorded
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = whole(0..=100_000u32))]
    pub(in crate::commands::compare) warmup: u32,
    /// A command before each run
    #[arg(long, value_name = "COMMAND")]
    pub(in crate::commands::compare) prepare: Option<String>,
    /// A command after each run
    #[arg(long, value_name = "COMMAND")]
    pub(in crate::commands::compare) cleanup: Option<String>,
    /// Seconds between samples
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = between(0.001..=86_400.0))]
    pub(in crate::commands::compare) interval: f64,
    /// Keep runs whose command fails
    #[arg(long)]
    pub(in crate::commands::compare) ignore_failure: bool,
    /// Let the commands write to stdout and stderr
    #[arg(long)]
    pub(in crate::commands::compare) show_output: bool,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Order {
    /// At random
    Random,
    /// Good, bad, bad, good: even drift cancels out
    Abba,
}
