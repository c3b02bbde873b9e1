//! `cowslip trace`: page faults and mappings of programs, recorded and explained.

pub(crate) mod args;
mod diff;
mod export;
mod import;
mod ladder;
mod load;
mod metrics;
mod picture;
mod record;
mod report;
mod tables;

use crate::exit::Answer;
use args::{Action, TraceArgs};

pub(crate) fn run(args: &TraceArgs) -> Answer {
    match &args.action {
        Some(Action::Ladder(args)) => ladder::run(args),
        Some(Action::Export(args)) => export::run(args),
        Some(Action::Import(args)) => import::run(args),
        Some(Action::Report(args)) => report::run(args),
        Some(Action::Diff(args)) => diff::run(args),
        Some(Action::Html(args)) => picture::html(args),
        Some(Action::Svg(args)) => picture::svg(args),
        Some(Action::Png(args)) => picture::png(args),
        None => record::run(&args.record),
    }
}
