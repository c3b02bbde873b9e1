//! The options of `cowslip compare` and `cowslip compare run`.

use std::path::PathBuf;

use clap::Subcommand;
use cowslip_compare::inputs::Where;

use super::history::HistoryArgs;
use super::record::RecordArgs;
use super::result::Settings;
use super::run::RunArgs;

/// Find what differs between good and bad runs: every metric in them is tested, and ranked
///
/// A file is a recording of `cowslip compare run`, or of sysstat, perf stat, vmstat or Prometheus, or a result of
/// hyperfine, pytest-benchmark, pyperf, asv, Google Benchmark, criterion, JMH, BenchmarkDotNet, `go test -bench`, fio, k6,
/// vegeta or wrk, or CSV with a header (docs/compare.md lists the options); a directory stands for all its files.
#[derive(clap::Args, Debug)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    override_usage = "cowslip compare [OPTIONS] <GOOD>... -- <BAD>...\n       \
    cowslip compare run [OPTIONS] --good <COMMAND> --bad <COMMAND> --output <DIR>\n       \
    cowslip compare record [OPTIONS] <NAME> -- <COMMAND>...\n       \
    cowslip compare history [OPTIONS] <NAME>",
    after_help = "Examples:\n  cowslip compare good-1.json good-2.json -- bad-1.json bad-2.json\n  \
    cowslip compare runs/good -- runs/bad --html page.html\n  \
    cowslip compare --metric '^vmstat\\.thp' --all runs/good -- runs/bad\n  \
    cowslip compare both.json@1 -- both.json@2\n  \
    cowslip compare run -n 10 --good './old' --bad './new' -o runs\n  \
    cowslip compare ./run -- bad.json          a file that is named like a command of this one\n\n\
    Exit codes: 0 not slower · 1 the bad runs are slower, by --effect or more (--primary, --fail-on); of files \
    without a time: a metric differs · 2 and above: it could not be found out"
)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(super) action: Option<Action>,
    /// Files or directories of good runs
    #[arg(required = true)]
    pub(super) good: Vec<PathBuf>,
    /// Files or directories of bad runs
    #[arg(required = true, last = true)]
    pub(super) bad: Vec<PathBuf>,
    /// Only the rows of tables that have this text in that column
    #[arg(long = "where", value_name = "COLUMN=TEXT", value_parser = column)]
    pub(super) wanted: Vec<Where>,
    #[command(flatten)]
    pub(super) settings: Settings,
}

fn column(text: &str) -> Result<Where, String> {
    let (column, value) = text.split_once('=').ok_or("COLUMN=TEXT is wanted")?;
    Ok(Where { column: column.to_owned(), value: value.to_owned() })
}

#[derive(Subcommand, Debug)]
pub(crate) enum Action {
    Run(RunArgs),
    Record(RecordArgs),
    History(HistoryArgs),
}
