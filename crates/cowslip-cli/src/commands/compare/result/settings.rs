//! The options of a comparison, which `cowslip compare` and `cowslip compare run` share.

use std::path::PathBuf;

use clap::ValueEnum;
use cowslip_compare::Options;
use regex_lite::Regex;

use crate::commands::numbers::positive;

/// How to compare, and what to show
#[derive(clap::Args, Debug)]
pub(in crate::commands::compare) struct Settings {
    /// The level of each test; the intervals hold with one minus it
    #[arg(long, value_name = "P", default_value_t = 0.05, value_parser = share)]
    pub(in crate::commands::compare) alpha: f64,
    /// The accepted share of false findings among the metrics said to differ
    #[arg(long, value_name = "SHARE", default_value_t = 0.05, value_parser = share)]
    pub(super) fdr: f64,
    /// The primary metric: tested alone at --alpha, it decides the exit code [default:
    /// wall_seconds, or the only column such as `time` or `elapsed_ms`]
    #[arg(long, value_name = "METRIC")]
    pub(in crate::commands::compare) primary: Option<String>,
    /// Which way that metric must differ, by --effect or more, for exit code 1 [default: slower; any without such a metric]
    #[arg(long, value_enum)]
    pub(super) fail_on: Option<FailOn>,
    /// The change that matters, in percent: for exit code 1, for the first sentence, and for the advice on the number of runs
    #[arg(long, value_name = "PERCENT", default_value_t = 5.0, value_parser = positive(f64::INFINITY))]
    pub(super) effect: f64,
    /// Only metrics whose names this regular expression finds
    #[arg(long, value_name = "REGEX")]
    pub(super) metric: Option<Regex>,
    /// Show the metrics that do not differ as well
    #[arg(long)]
    pub(super) all: bool,
    /// Write JSON to a file, or `-` for stdout (then no table)
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,
    /// Write one self-contained page with charts
    #[arg(long, value_name = "FILE")]
    pub(super) html: Option<PathBuf>,
}

impl Settings {
    /// The change that matters, as a part of the good mean.
    pub(in crate::commands::compare) fn relevant(&self) -> f64 {
        self.effect / 100.0
    }

    pub(in crate::commands::compare) fn options(&self) -> Options {
        Options {
            alpha: self.alpha,
            fdr: self.fdr,
            primary: self.primary.clone(),
            wanted_change: self.relevant(),
        }
    }
}

/// The difference that is a failure.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::commands::compare) enum FailOn {
    /// The metric rose
    #[value(alias = "rose")]
    Slower,
    /// The metric fell
    #[value(alias = "fell")]
    Faster,
    /// It rose or fell
    Any,
}

pub(in crate::commands::compare) fn share(text: &str) -> Result<f64, String> {
    let share = text.parse().ok().filter(|share| 0.0 < *share && *share < 1.0);
    share.ok_or("a number between 0 and 1 is wanted".to_owned())
}
