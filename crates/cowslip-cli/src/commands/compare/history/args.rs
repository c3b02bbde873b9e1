//! The options of `cowslip compare history`.

use std::path::PathBuf;

use clap::builder::PossibleValuesParser;
use cowslip_compare::history::{MACHINE, Settings};

use crate::commands::compare::result::{FailOn, share};
use crate::commands::numbers::{positive, whole};

/// Find the commits that changed a series, and tell if the newest entries are slower
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  cowslip compare history build\n  \
    cowslip compare history build --html build.html --junit build.xml\n  \
    cowslip compare history sorts/wrapping/100 --primary items_per_second --fail-on fell\n\n\
    NAME also stands for all series called NAME/*.\n\n\
    Exit codes: 0 the newest entries hold no change for the worse · 1 they do, by --effect or more (--fail-on) · \
    2 and above: it could not be found out")]
pub(crate) struct HistoryArgs {
    /// The name of the series
    pub(super) name: String,
    /// The folder of all series
    #[arg(long, value_name = "FOLDER", default_value = "cowslip-history")]
    pub(super) from: PathBuf,
    /// The metric [default: wall_seconds, or the only one]
    #[arg(long, value_name = "METRIC")]
    pub(super) primary: Option<String>,
    /// The share of series without a change that are said to have one
    #[arg(long, value_name = "P", default_value_t = 0.01, value_parser = share)]
    pub(super) alpha: f64,
    /// The change that matters for exit code 1, in percent: of a step in the newest entries, or of a slow drift
    #[arg(long, value_name = "PERCENT", default_value_t = 5.0, value_parser = positive(f64::INFINITY))]
    pub(super) effect: f64,
    /// The direction that is worse
    #[arg(long, value_enum, default_value_t = FailOn::Slower)]
    pub(super) fail_on: FailOn,
    /// The number of newest entries in which a change decides the exit code
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = whole(1..=1_000_000u32))]
    pub(super) newest: u32,
    /// Compare entries that differ in this fact of the machine
    #[arg(long, value_name = "FACT", value_parser = PossibleValuesParser::new(MACHINE))]
    pub(super) ignore: Vec<String>,
    /// Write JSON to a file, or `-` for stdout (then no text)
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    pub(super) json: Option<PathBuf>,
    /// Write one self-contained page with charts
    #[arg(long, value_name = "FILE")]
    pub(super) html: Option<PathBuf>,
    /// Write JUnit XML, in which a series that became worse is a failed test
    #[arg(long, value_name = "FILE")]
    pub(super) junit: Option<PathBuf>,
}

impl HistoryArgs {
    pub(super) fn settings(&self) -> Settings {
        Settings {
            metric: self.primary.clone(),
            alpha: self.alpha,
            newest: self.newest as usize,
            effect: self.effect / 100.0,
            ignored: self.ignore.clone(),
        }
    }
}
