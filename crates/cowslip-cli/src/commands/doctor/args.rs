//! The options of `cowslip doctor`.

use std::path::PathBuf;

/// Say what works here, at what cost, and which command mends what does not
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Write JSON to a file, or `-` for stdout
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,
}
