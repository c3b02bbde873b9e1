//! The source of `cowslip promote top`'s rows: a daemon, or looks at processes.

use std::time::Duration;

use cowslip_promote::metrics::Source;
use cowslip_promote::session::Session;

use super::args::TopArgs;
use super::operator::Console;
use super::plan;
use crate::exit::Failure;

/// The daemon that was named, or the usual one; without one, looks of our own.
pub(super) fn from_args(args: &TopArgs) -> Result<Source, Failure> {
    if let Some(address) = args.metrics {
        return Ok(Source::Daemon(address));
    }
    if let Some(file) = &args.metrics_file {
        return Ok(Source::File(file.clone()));
    }
    let plan = plan::watch(&args.who, args.heat, Duration::from_secs(args.interval));
    let who = &args.who;
    let is_named = who.all || !(who.pid.is_empty() && who.name.is_empty() && who.cgroup.is_empty());
    if !is_named && let Some(usual) = Source::usual() {
        return Ok(usual);
    }
    let mut session = Session::start(plan, Console::listen()?)?;
    session.search()?.check(session.plan(), session.promoter())?;
    Ok(Source::Looks(Box::new(session)))
}
