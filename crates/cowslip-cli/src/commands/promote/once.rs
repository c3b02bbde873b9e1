//! `--once`: promotes until nothing is left to do, and reports the result.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use cowslip_promote::percent;
use cowslip_promote::session::Session;

use super::args::PromoteArgs;
use super::report;
use crate::exit::{CommandResult, Failure, NO, VANISHED};
use cowslip_report::Progress;

pub(super) fn run(session: &mut Session, args: &PromoteArgs) -> CommandResult {
    let deadline = Instant::now() + Duration::from_secs(args.timeout);
    session.measure_before();
    let mut progress = Progress::new();
    progress.phase(if args.dry_run { "looking" } else { "promoting" });
    session.promote_until_done(deadline, args.dry_run, |done, all| {
        progress.set(done as u64, all as u64);
    })?;
    progress.finish();
    if !args.dry_run {
        session.look_last(0)?;
    }
    session.measure_after();
    deliver(session, args)
}

fn deliver(session: &Session, args: &PromoteArgs) -> CommandResult {
    let tally = session.tally();
    report::deliver(session, args)?;
    if tally.processes.values().all(|process| process.has_ended) {
        return Err(Failure::new(VANISHED, "the processes ended meanwhile"));
    }
    if session.stops() {
        return Err(Failure::new(NO, "interrupted before its end"));
    }
    let after = tally.coverage(|process| process.after);
    let fitting = after.fitting_ratio();
    if fitting.is_none() && after.shmem_bytes + after.text_bytes == 0 {
        let nowhere = "no private anonymous memory, no shared memory and none of an arena is in use where there is \
                       room for a huge page";
        let why = report::unaligned(session).unwrap_or(nowhere.to_owned());
        return Err(Failure::new(NO, format!("nothing of it can be promoted: {why}")));
    }
    match args.coverage {
        Some(wanted) if !after.reaches(wanted) => {
            let (wanted, fitting) = (percent(Some(wanted)), percent(fitting));
            let why = format!(
                "{after} of all anonymous memory is huge, not {wanted}, and {fitting} of the \
                 memory that fits huge pages"
            );
            Err(Failure::new(NO, why))
        }
        _ => Ok(ExitCode::SUCCESS),
    }
}
