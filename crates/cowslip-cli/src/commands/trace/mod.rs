//! `cowslip trace`: page faults and mappings of programs, recorded and explained.

mod args;
mod diff;
mod export;
mod import;
mod load;
mod metrics;
mod permissions;
mod picture;
mod record;
mod report;
mod tables;

use crate::exit::CommandResult;
use args::Action;
pub(super) use args::Args;
use cowslip_trace::symbols::debuginfod_notice;
pub(super) use permissions::table as permissions_table;

pub(super) fn run(args: &Args) -> CommandResult {
    if let Some(Action::Report(_) | Action::Diff(_) | Action::Html(_)) = &args.action
        && let Some(notice) = debuginfod_notice()
    {
        errln!("cowslip: {notice}");
    }
    match &args.action {
        Some(Action::Permissions) => permissions::run(),
        Some(Action::Export(args)) => export::run(args),
        Some(Action::Import(args)) => import::run(args),
        Some(Action::Report(args)) => report::run(args),
        Some(Action::Diff(args)) => diff::run(args),
        Some(Action::Html(args)) => picture::run(args),
        None => record::run(&args.record),
    }
}
