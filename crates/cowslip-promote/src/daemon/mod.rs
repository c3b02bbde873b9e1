//! The daemon: runs until the operator ends it, and reads its plan again on request.

mod notify;

use std::collections::BTreeMap;

use cowslip_sys::error::{Error, Result};

use crate::metrics::{self, Published};
use crate::plan::Plan;
use crate::session::{Notice, Round, Session};
use notify::Manager;

/// Runs until the operator ends it, or until every process given by number has ended. `read_plan` reads the
/// plan again; its error is reported in words, and the previous plan stays in force.
pub fn run(
    session: &mut Session,
    mut read_plan: impl FnMut() -> std::result::Result<Plan, String>,
) -> Result<()> {
    let published = Published::default();
    if let Some(address) = session.plan().metrics {
        let doing = format_args!("serve metrics at {address}");
        let at = published.serve(address).map_err(|error| Error::from_io(doing, &error))?;
        session.operator().tell(&Notice::MetricsAt(at));
    }
    let manager = Manager::find(session.plan().has_command());
    announce(session);
    manager.ready();
    let mut waited_for = BTreeMap::new();
    let mut writes = None;
    while !session.stops() {
        if session.operator().takes_reload() {
            reload(session, &manager, &mut read_plan);
        }
        let found = session.search()?;
        for name in &found.added {
            session.operator().tell(&Notice::Found(name));
        }
        for (path, errno) in
            found.missing.iter().filter(|(path, _)| !waited_for.contains_key(*path))
        {
            session.operator().tell(&Notice::GroupMissing(path, *errno));
        }
        waited_for = found.missing;
        if !session.plan().searches() && session.promoter().targets().next().is_none() {
            session.operator().tell(&Notice::AllEnded);
            break;
        }
        let mut round = session.look(session.content_ns())?;
        session.act(&mut round, |_, _| {})?;
        session.choose_page_size(!found.added.is_empty());
        if let Some((name, measurement)) = session.measure_next(&round)? {
            session.operator().tell(&Notice::Measured(&name, &measurement));
        }
        publish(session, &manager, &published, &round, &mut writes)?;
        session.wait(session.pause())?;
    }
    manager.stopping();
    session.look_last(0)?;
    Ok(())
}

fn announce(session: &mut Session) {
    let targets = session.promoter().targets();
    let names: Vec<String> =
        targets.map(|target| format!("{} ({})", target.name(), target.id().pid)).collect();
    session.operator().tell(&Notice::Promoting(&names));
}

/// Takes a new plan; reports an invalid one, and keeps the previous plan in force.
fn reload(
    session: &mut Session,
    manager: &Manager,
    read_plan: &mut impl FnMut() -> std::result::Result<Plan, String>,
) {
    manager.reloading();
    let done = read_plan().and_then(|plan| session.reload(plan).map_err(|error| error.to_string()));
    let operator = session.operator();
    match done {
        Ok(()) => operator.tell(&Notice::Reloaded),
        Err(why) => operator.tell(&Notice::ReloadFailed(&why)),
    }
    manager.ready();
}

/// `writes`: the last write of the metrics' file was done; nothing if there was none. The first has to be done. Later the disk
/// may be full of other users' files.
fn publish(
    session: &mut Session,
    manager: &Manager,
    published: &Published,
    round: &Round,
    writes: &mut Option<bool>,
) -> Result<()> {
    let text = metrics::text(session.tally());
    if let Some(path) = session.plan().metrics_file.clone() {
        match (session.operator().write_metrics(&path, &text), *writes) {
            (Ok(()), _) => *writes = Some(true),
            (Err(error), None) => return Err(Error::from_io("write the metrics", &error)),
            (Err(error), Some(true)) => {
                session.operator().tell(&Notice::MetricsNotWritten(&error.to_string()));
                *writes = Some(false);
            }
            (Err(_), Some(false)) => {}
        }
    }
    published.set(text);
    let coverage = session.tally().coverage(|process| Some(process.seen));
    let processes = match round.look.processes.len() {
        1 => "1 process".to_owned(),
        several => format!("{several} processes"),
    };
    let mut status = format!("{processes}, {coverage} of their anonymous memory huge");
    if session.is_scarce() {
        status += "; huge pages are scarce";
    }
    manager.status(&status);
    if round.acts > 0 {
        session.operator().tell(&Notice::Changed(round.acts, coverage));
    }
    Ok(())
}
