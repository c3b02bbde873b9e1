//! Without `--once`: goes on until SIGINT or SIGTERM; SIGHUP has it read its configuration again.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use super::args::PromoteArgs;
use super::config::Plan;
use super::metrics::{self, Published};
use super::session::{Round, Session};
use super::{notify, report};
use crate::exit::{self, Answer, Failure};
use cowslip_report::text;

/// This part of the budget for processor time is for looking into huge pages.
const FOR_CONTENT: f64 = 0.5;

pub(super) fn run(session: &mut Session, args: &PromoteArgs) -> Answer {
    let published = Published::default();
    if let Some(address) = session.plan.metrics {
        let at = published
            .serve(address)
            .map_err(exit::io(format_args!("serve metrics at {address}")))?;
        eprintln!("cowslip: metrics at http://{at}/metrics");
    }
    announce(session);
    notify::ready();
    let mut waited_for = BTreeMap::new();
    while !session.signals.stops() {
        if session.signals.takes_reload() {
            reload(session, args);
        }
        let found = session.search()?;
        for name in found.added {
            eprintln!("cowslip: found {name}");
        }
        for (path, errno) in
            found.missing.iter().filter(|(path, _)| !waited_for.contains_key(*path))
        {
            eprintln!("cowslip: control group {}: {errno}; it is waited for", path.display());
        }
        waited_for = found.missing;
        if !session.plan.searches() && session.promoter.targets().next().is_none() {
            eprintln!("cowslip: every process has ended");
            break;
        }
        let mut round = session.look(content_ns(session))?;
        session.act(&mut round, |_, _| {})?;
        publish(session, &published, &round)?;
        session.wait(pause(session))?;
    }
    notify::stopping();
    session.look_last(0)?;
    report::deliver(session, args)?;
    Ok(ExitCode::SUCCESS)
}

fn announce(session: &Session) {
    let names: Vec<String> =
        session.promoter.targets().map(|it| format!("{} ({})", it.name(), it.id().pid)).collect();
    eprintln!(
        "cowslip: promoting {}",
        if names.is_empty() { "nobody yet".into() } else { names.join(", ") }
    );
}

/// A configuration that makes no sense is said so, and the one before stays in force.
fn reload(session: &mut Session, args: &PromoteArgs) {
    notify::reloading();
    let done = Plan::of(args).and_then(|plan| session.reload(plan));
    match done {
        Ok(()) => eprintln!("cowslip: read the configuration again"),
        Err(failure) => eprintln!("cowslip: goes on as before: {failure}"),
    }
    notify::ready();
}

/// What a look may spend on the content of huge pages, for each target.
pub(super) fn content_ns(session: &Session) -> u64 {
    let settings = &session.plan.settings;
    if settings.demote_below_percent == 0 {
        return 0;
    }
    let budget_ns = settings.interval_ms as f64 * 1e6 * settings.cpu_percent / 100.0;
    (budget_ns * FOR_CONTENT) as u64 / session.promoter.targets().count().max(1) as u64
}

/// Until the next look: so long that looking takes no more of a core than it may.
pub(super) fn pause(session: &Session) -> Duration {
    let settings = &session.plan.settings;
    let least_ns = session.promoter.look_cpu_ns() as f64 * 100.0 / settings.cpu_percent;
    Duration::from_millis(settings.interval_ms).max(Duration::from_nanos(least_ns as u64))
}

fn publish(session: &Session, published: &Published, round: &Round) -> Result<(), Failure> {
    let tally = &session.tally;
    let text = metrics::text(tally);
    if let Some(path) = &session.plan.metrics_file {
        metrics::write(path, &text).map_err(exit::io("write the metrics"))?;
    }
    published.set(text);
    let share = report::share(tally.coverage(|it| Some(it.seen)));
    let processes = text::count(round.look.processes.len(), "process");
    notify::status(&format!("{processes}, {share} of their memory huge"));
    if round.acts > 0 {
        eprintln!("cowslip: {} changed, {share} huge now", text::count(round.acts, "region"));
    }
    Ok(())
}
