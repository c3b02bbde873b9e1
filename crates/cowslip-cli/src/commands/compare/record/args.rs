//! The options of `cowslip compare record`.

use std::path::PathBuf;

use crate::commands::compare::run::Way;
use crate::commands::numbers::whole;

/// Add a result to a series: the runs of a command, or a file of another tool
#[derive(clap::Args, Debug)]
#[command(
    override_usage = "cowslip compare record [OPTIONS] <NAME> -- <COMMAND>...\n       \
    cowslip compare record [OPTIONS] <NAME> --from <FILE>",
    after_help = "Examples:\n  cowslip compare record build -- make -j8\n  \
    cowslip compare record -n 5 query --label v1.2 -- ./query --all\n  \
    cowslip compare record sorts --from target/criterion\n  \
    pytest --benchmark-json=out.json && cowslip compare record tests --from out.json\n\n\
    Of a file with several benchmarks each is a series: NAME/BENCHMARK; FILE@2 is the second one alone, in NAME.\n\n\
    Exit codes: 0 added · 2 to 6: it could not be · 125 a command failed, or was interrupted · \
    126 it cannot be run · 127 it is not there"
)]
pub(crate) struct RecordArgs {
    /// The name of the series
    pub(super) name: String,
    /// The folder of all series; made if it is not there
    #[arg(long, value_name = "FOLDER", default_value = "cowslip-history")]
    pub(super) into: PathBuf,
    /// A result to add: a file that `cowslip compare` reads, of pytest-benchmark or Google Benchmark, or a
    /// target/criterion
    #[arg(long, value_name = "FILE", conflicts_with = "command")]
    pub(super) from: Option<PathBuf>,
    /// The file was made on this machine: needed where it does not say, as with hyperfine and criterion
    #[arg(long, requires = "from")]
    pub(super) this_machine: bool,
    /// The commit that was measured [default: that of the file, or of git in this folder]
    #[arg(long, value_name = "COMMIT")]
    pub(super) commit: Option<String>,
    /// A name for people, such as a version
    #[arg(long, value_name = "TEXT")]
    pub(super) label: Option<String>,
    /// Runs of the command
    #[arg(short = 'n', long, default_value_t = 10, value_parser = whole(1..=100_000u32))]
    pub(super) runs: u32,
    #[command(flatten)]
    pub(super) way: Way,
    /// The command and its arguments
    #[arg(last = true, required_unless_present = "from")]
    pub(super) command: Vec<String>,
}
