//! `cowslip demo`

mod args;

use std::process::ExitCode;
use std::sync::atomic::Ordering::Relaxed;

use cowslip::units::ByteCount;
use cowslip_bench::demo::{redis, store};
use cowslip_report::{Progress, Report};
use serde_json::{Map, Value};

use super::{output, signals};
use crate::exit::{self, CommandResult, Failure};
pub(super) use args::Args;

pub(super) fn run(args: Args) -> CommandResult {
    let size = args.size.unwrap_or_else(default_size);
    let stop = signals::interrupt().map_err(exit::io("listen for Ctrl-C"))?;
    let mut report = Report::new("demo", params(&args, size));
    let mut progress = Progress::new();
    let mut phase = String::new();
    let mut show = |label: &str, done: u64, of: u64| {
        if phase != label {
            phase = label.to_owned();
            progress.phase(label);
        }
        progress.set(done, of);
    };
    let options = store::Options { size_bytes: size.0, saves: args.saves as usize };
    store::run(&options, &stop, &mut show, &mut report)
        .map_err(|why| Failure::new(exit::USAGE, why))?;
    if !args.no_redis && !stop.load(Relaxed) {
        let options = redis::Options {
            size_bytes: size.0,
            saves: args.saves as usize,
            clients: args.clients as usize,
            redis_server: args.redis_server.clone(),
            cowslip: std::env::current_exe().ok(),
            ..redis::Options::default()
        };
        match redis::run(&options, &stop, &mut show, &mut report) {
            Ok(()) => {}
            Err(redis::Error::BadOption(why)) => return Err(Failure::new(exit::USAGE, why)),
            Err(error) => report.skip("redis", "fork", error.to_string()),
        }
    }
    progress.finish();
    output::deliver(&report, &args.output)?;
    let broken = report.ratios.iter().any(|ratio| ratio.holds == Some(false));
    let whole = !broken && !stop.load(Relaxed);
    Ok(if whole { ExitCode::SUCCESS } else { ExitCode::from(exit::NO) })
}

/// What a machine of 4 GiB has room for, with every rival's server in turn.
fn default_size() -> ByteCount {
    let memory = cowslip::host::memory_and_swap();
    ByteCount::gib(1).min(ByteCount(memory.0 / 8))
}

fn params(args: &Args, size: ByteCount) -> Map<String, Value> {
    let params = [
        ("size_bytes", size.0),
        ("saves", u64::from(args.saves)),
        ("clients", u64::from(args.clients)),
    ];
    params.into_iter().map(|(name, value)| (name.to_owned(), value.into())).collect()
}
