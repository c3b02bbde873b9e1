//! `cowslip promote`: huge pages for running programs.

mod advise;
pub(crate) mod args;
mod before_hold;
mod check;
mod command;
mod explain;
mod gain;
mod measure;
mod once;
mod operator;
mod plan;
mod replay;
mod report;
mod screen;
mod top;
mod top_source;
mod top_table;

use std::process::ExitCode;

use cowslip::ErrorKind;
use cowslip_promote::plan::Plan;
use cowslip_promote::session::Session;
use cowslip_promote::{ManagedThp, Restored, daemon, interference};
use cowslip_sys::atomic_file::{BY_UMASK, create_in_place};
use cowslip_sys::procfs::{self, Thp};

use crate::exit::{self, CommandResult, Failure};
use args::{PromoteArgs, View};
pub(super) use before_hold::before_hold;
use cowslip_report::text;
use operator::Console;

pub(crate) fn run(args: &PromoteArgs) -> CommandResult {
    match &args.view {
        Some(View::Top(args)) => return top::run(args),
        Some(View::Advise(args)) => return advise::run(args),
        Some(View::Measure(args)) => return measure::run(args),
        None => {}
    }
    if let Some(record) = &args.replay {
        return replay::run(args, record);
    }
    if args.restore_thp {
        return restore_thp();
    }
    if !args.command.is_empty() {
        return command::run(args);
    }
    let plan = plan::from_args(args, None)?;
    if args.check_config {
        return check::run(&plan, args);
    }
    promote(plan, Console::listen()?, args, None)
}

/// Promotes; `command` is the number of a command that was started for that.
fn promote(
    plan: Plan,
    console: Box<Console>,
    args: &PromoteArgs,
    command: Option<i32>,
) -> CommandResult {
    tidy_up();
    let mut session = start(plan, console, args)?;
    let found = session.search()?;
    if let Some((error, count)) = &found.denied {
        let processes = text::count(*count, "process");
        errln!("cowslip: left alone: {processes}; the first: {error}");
    }
    if args.once || args.explain.is_some() {
        found.check(session.plan(), session.promoter())?;
    }
    if let Some(address) = args.explain {
        return explain::run(&mut session, address, args.json.as_deref());
    }
    let acts = !(args.once && args.dry_run);
    let manages = session.plan().manage_thp && acts;
    if manages {
        let managed = manage(session.plan())?;
        session.manage(managed);
    }
    // A run that ends at once is affected only if it split a page.
    if !manages && !args.once {
        warn(session.plan());
    }
    let answer = match args.once {
        true => once::run(&mut session, args),
        false => go_on(&mut session, args, command),
    };
    if !manages && args.once && session.tally().splits() > 0 {
        warn(session.plan());
    }
    if session.settings_back()? {
        errln!("cowslip: the settings of transparent huge pages are as they were");
    }
    answer
}

fn start(plan: Plan, console: Box<Console>, args: &PromoteArgs) -> Result<Session, Failure> {
    let mut session = Session::start(plan, console)?;
    if let Some(path) = &args.record {
        let doing = format_args!("create {}", path.display());
        session.record(create_in_place(path, BY_UMASK).map_err(exit::io(doing))?)?;
    }
    Ok(session)
}

/// Without `--once`: runs until SIGINT or SIGTERM, or the end of the command; SIGHUP makes it read its configuration
/// again.
fn go_on(session: &mut Session, args: &PromoteArgs, command: Option<i32>) -> CommandResult {
    daemon::run(session, || plan::from_args(args, command).map_err(|failure| failure.to_string()))?;
    match command {
        // Standard output is the command's.
        Some(_) => report::write_json(session, args)?,
        None => report::deliver(session, args)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Restores the settings that a killed run has left.
fn restore_thp() -> CommandResult {
    match ManagedThp::restore_left()? {
        Some(now) => tell_restored(&now),
        None => errln!("cowslip: no run has left settings to be put back"),
    }
    Ok(ExitCode::SUCCESS)
}

/// Does the same at the start of any other run, as far as it is permitted.
fn tidy_up() {
    cowslip_promote::end_left_watching();
    match ManagedThp::restore_left() {
        Ok(Some(now)) => tell_restored(&now),
        Err(error) if error.kind() == ErrorKind::Corrupt => errln!("cowslip: {error}"),
        Ok(None) | Err(_) => {}
    }
}

fn tell_restored(Restored { thp: now, size }: &Restored) {
    if let Some((page_bytes, policy)) = size {
        let folder = procfs::size_folder(*page_bytes);
        errln!(
            "cowslip: put back what a run has left that was killed: {folder}/enabled is {}",
            policy.word()
        );
    }
    errln!(
        "cowslip: put back what a run has left that was killed: transparent_hugepage/enabled is {} and \
         khugepaged/max_ptes_none is {}",
        now.enabled.word(),
        now.max_ptes_none
    );
}

fn manage(plan: &Plan) -> Result<ManagedThp, Failure> {
    let managed = ManagedThp::set(&plan.settings)?;
    let (before, now) = managed.settings();
    errln!(
        "cowslip: until this ends, transparent_hugepage/enabled is {} (was {}) and \
         khugepaged/max_ptes_none is {} (was {})",
        now.enabled.word(),
        before.enabled.word(),
        now.max_ptes_none,
        before.max_ptes_none
    );
    Ok(managed)
}

/// Reports kernel settings that work against ours.
fn warn(plan: &Plan) {
    let Ok(thp) = Thp::read() else { return };
    for sentence in interference(&thp, &plan.settings) {
        errln!("cowslip: {sentence} (or --manage-thp)");
    }
}
