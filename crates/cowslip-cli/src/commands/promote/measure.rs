//! `cowslip promote measure`: the gain of one process.

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use cowslip_promote::session::{Round, Session};
use cowslip_promote::{Measurement, Reason, Unclear, Verdict};
use cowslip_report::{self as output, Progress, sink, text};
use serde_json::json;

use super::args::MeasureArgs;
use super::gain;
use super::operator::Console;
use super::plan;
use crate::exit::{self, CommandResult, Failure, NO};

/// Looks until regions are known to stay full.
const LOOKS: u32 = 4;
/// The time to make the rest of a program huge that gains.
const FOR_THE_REST: Duration = Duration::from_secs(60);

pub(super) fn run(args: &MeasureArgs) -> CommandResult {
    let mut session = Session::start(plan::measure(args)?, Console::listen()?)?;
    let target = session.promoter().targets().next().expect("it was named");
    let (process, name) = (target.id(), format!("{} ({})", target.name(), args.pid));
    let round = settled(&mut session)?;
    let mut progress = Progress::new();
    progress.phase("measuring");
    let measurement = session.measure_gain(&round, process, |done, all| {
        progress.set(done as u64, all as u64);
    })?;
    progress.finish();
    if measurement.verdict == Verdict::Gain {
        session.promote_until_done(Instant::now() + FOR_THE_REST, false, |_, _| {})?;
    }
    deliver(&name, &measurement, args)?;
    match measurement.verdict {
        Verdict::Gain => Ok(ExitCode::SUCCESS),
        Verdict::Unclear(Unclear::Interrupted) => {
            Err(Failure::new(NO, "interrupted before its end"))
        }
        Verdict::NoGain | Verdict::Unclear(_) => Ok(ExitCode::from(NO)),
    }
}

/// Dense regions count from their second look on.
fn settled(session: &mut Session) -> Result<Round, Failure> {
    let interval = Duration::from_millis(session.plan().settings.interval_ms);
    let mut round = session.look(0)?;
    for _ in 1..LOOKS {
        session.wait(interval)?;
        round = session.look(0)?;
        let soon = [Reason::FirstLook, Reason::JustReleased];
        if !round.decisions.iter().any(|decision| soon.contains(&decision.reason)) {
            break;
        }
    }
    Ok(round)
}

fn deliver(name: &str, measurement: &Measurement, args: &MeasureArgs) -> Result<(), Failure> {
    if let Some(file) = &args.json {
        let whole = json!({
            "schema": "cowslip.promote.measure/1",
            "pid": args.pid,
            "name": name,
            "measured": measurement,
        });
        output::json::write(&whole, file).map_err(exit::io("write the result"))?;
    }
    if args.json.as_deref() != Some(Path::new("-")) {
        let sentence = text::printable(&gain::sentence(name, measurement)) + "\n";
        sink::print(&sentence).map_err(exit::io("print the result"))?;
    }
    Ok(())
}
