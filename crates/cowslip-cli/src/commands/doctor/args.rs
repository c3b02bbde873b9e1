//! The options of `cowslip doctor`.

use std::path::PathBuf;

/// Say what works here, and which command enables the rest
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Exit codes: 0 the engine works in full · 1 in part, for want of what no permission brings · 3 the \
    kernel lacks it · 4 not permitted. docs/setup.md explains each probe."
)]
pub(crate) struct Args {
    /// Also show each probe with its cost here, and what each privilege lets a trace see
    #[arg(short, long)]
    pub(super) verbose: bool,
    /// Write JSON, with all of it, to a file, or `-` for stdout (then no table)
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,
}
