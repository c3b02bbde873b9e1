//! `cowslip compare`: what differs between good and bad runs.

mod args;
mod history;
mod record;
mod result;
mod run;

use std::path::PathBuf;

use cowslip_compare::inputs::Run;
use cowslip_report::Progress;

use crate::exit::{CommandResult, Failure, USAGE};
use args::Action;
pub(super) use args::Args;

pub(super) fn run(args: &Args) -> CommandResult {
    match &args.action {
        Some(Action::Run(args)) => return run::run(args),
        Some(Action::Record(args)) => return record::record(args),
        Some(Action::History(args)) => return history::history(args),
        None => {}
    }
    let is_option = |path: &&PathBuf| path.as_os_str().as_encoded_bytes().starts_with(b"-");
    if let Some(option) = args.bad.iter().find(is_option).filter(|path| !path.exists()) {
        let why = "all that comes after `--` are bad runs; options go before it";
        return Err(Failure::new(USAGE, format!("{}: {why}", option.display())));
    }
    // A file that is missing is the first and only thing that is said.
    for path in args.good.iter().chain(&args.bad).filter(|path| !path.exists()) {
        result::read(path, &args.wanted)?;
    }
    let mut progress = Progress::new();
    progress.phase("reading");
    let files = args.good.len() + args.bad.len();
    let mut done = 0;
    let mut read = |paths: &[PathBuf]| -> Result<Vec<Run>, Failure> {
        let mut runs = Vec::new();
        for path in paths {
            runs.extend(result::read(path, &args.wanted)?);
            done += 1;
            progress.set(done, files as u64);
        }
        Ok(runs)
    };
    let (good, bad) = (read(&args.good)?, read(&args.bad)?);
    progress.finish();
    result::deliver(good, bad, &result::Found::default(), &args.settings)
}
