//! `--once`: promotes until nothing is left to do, and has the kernel say what came of it.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use cowslip_promote::{Coverage, ProcessId, Promoter, Reason};

use super::args::PromoteArgs;
use super::report;
use super::session::{Round, Session};
use super::tally::ProcessTally;
use crate::exit::{Answer, Failure, NO, VANISHED};
use crate::output::progress::Progress;

/// Looks without anything to do after which regions that come and go are not waited for.
const IDLE_LOOKS: u32 = 4;

pub(super) fn run(session: &mut Session, args: &PromoteArgs) -> Answer {
    let deadline = Instant::now() + Duration::from_secs(args.timeout);
    measure(session, |tally, coverage| tally.before = Some(coverage));
    let mut progress = Progress::new();
    progress.phase(if args.dry_run { "looking" } else { "promoting" });
    let interval = Duration::from_millis(session.plan.settings.interval_ms);
    let splits = session.plan.settings.demote_below_percent > 0;
    let mut idle_looks = 0;
    let mut looks = 0;
    let mut put_off = 0;
    while !session.signals.stops() {
        // What was promoted here is not empty: content is looked at before, and once more in the end; and
        // again for splits that were put off.
        let looks_inside = splits && (looks < 2 || idle_looks == 1 || put_off > 0);
        let mut round = session.look(if looks_inside { u64::MAX } else { 0 })?;
        looks += 1;
        if args.dry_run && looks == 2 {
            break;
        }
        if !args.dry_run {
            session.act(&mut round, |done, all| progress.set(done as u64, all as u64))?;
        }
        put_off = if is_waiting(&round) { put_off.max(round.put_off) } else { round.put_off };
        idle_looks = if round.acts > 0 || put_off > 0 { 0 } else { idle_looks + 1 };
        if is_done(&round, idle_looks) || Instant::now() >= deadline {
            break;
        }
        session.wait(interval)?;
    }
    progress.finish();
    if !args.dry_run {
        session.look_last(0)?;
    }
    measure(session, |tally, coverage| tally.after = Some(coverage));
    deliver(session, args)
}

/// Whether what was put off still is.
fn is_waiting(round: &Round) -> bool {
    round.decisions.iter().any(|it| it.reason == Reason::BackingOff)
}

/// Whether nothing that may still change is waited for.
fn is_done(round: &Round, idle_looks: u32) -> bool {
    let has = |wanted: &[Reason]| round.decisions.iter().any(|it| wanted.contains(&it.reason));
    let soon = [Reason::FirstLook, Reason::JustReleased, Reason::RetryLater, Reason::Filling];
    let later = [Reason::BackingOff, Reason::StallBudget, Reason::CpuBudget, Reason::Pressure];
    idle_looks > 0 && !has(&later) && (!has(&soon) || idle_looks >= IDLE_LOOKS)
}

/// Has the kernel sum up each target; one that ends meanwhile has no sum.
fn measure(session: &mut Session, mut keep: impl FnMut(&mut ProcessTally, Coverage)) {
    for (process, name, coverage) in sums(&session.promoter) {
        let tally = session.tally.processes.entry(process).or_default();
        tally.name = name;
        match coverage {
            Some(coverage) => keep(tally, coverage),
            None => tally.has_ended = true,
        }
    }
}

fn sums(promoter: &Promoter) -> Vec<(ProcessId, String, Option<Coverage>)> {
    promoter.targets().map(|it| (it.id(), it.name().to_owned(), it.coverage().ok())).collect()
}

fn deliver(session: &Session, args: &PromoteArgs) -> Answer {
    let tally = &session.tally;
    report::deliver(session, args)?;
    if tally.processes.values().all(|it| it.has_ended) {
        return Err(Failure::new(VANISHED, "the processes ended meanwhile"));
    }
    if session.signals.stops() {
        return Err(Failure::new(NO, "interrupted before its end"));
    }
    let Some(reached) = tally.coverage(|it| it.after).ratio() else {
        let why = "nothing of it can be promoted: no private anonymous memory and none of an arena is in \
                   use where there is room for a huge page";
        return Err(Failure::new(NO, why));
    };
    match args.coverage {
        Some(wanted) if reached < wanted => {
            let why = format!("{:.1} % is huge, not {:.1} %", reached * 100.0, wanted * 100.0);
            Err(Failure::new(NO, why))
        }
        _ => Ok(ExitCode::SUCCESS),
    }
}
