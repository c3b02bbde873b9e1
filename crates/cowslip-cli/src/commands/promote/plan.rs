//! The targets and the settings: the configuration file, overridden by the options.

use std::path::Path;
use std::time::Duration;

use cowslip_promote::Settings;
use cowslip_promote::plan::{Plan, Rule, Who};
use cowslip_sys::regular;

use super::args::{self, PromoteArgs};
use crate::exit::{self, Failure, USAGE};

/// Between the looks of a run that should be over in seconds.
const ONCE_INTERVAL_MS: u64 = 500;
/// A user waits for its end.
const ONCE_STALL_PERCENT: f64 = 25.0;
const ONCE_SLOW_MS: u64 = 20;
const ONCE_CPU_PERCENT: f64 = 100.0;

/// Reads the file, if one was given; the options take precedence over it. `command` is the number of a command that was
/// started.
pub(super) fn from_args(args: &PromoteArgs, command: Option<i32>) -> Result<Plan, Failure> {
    let mut plan = args.config.as_deref().map_or_else(|| Ok(Plan::default()), read)?;
    let command = command.map(|pid| Rule::new(Who::Command(pid), 1));
    plan.rules.splice(0..0, command);
    plan.rules.extend(rules_of(&args.who));
    let settings = &mut plan.settings;
    if args.once && args.config.is_none() {
        hurry(settings);
    }
    change(settings, args);
    plan.heat |= args.how.heat;
    plan.manage_thp |= args.how.manage_thp;
    plan.metrics = args.metrics.or(plan.metrics);
    plan.metrics_file = args.metrics_file.clone().or(plan.metrics_file);
    plan.check()?;
    if plan.rules.is_empty() && args.command.is_empty() {
        let why = "which processes? --pid, --match, --cgroup, --all, a [[target]] in --config, or -- COMMAND";
        return Err(Failure::new(USAGE, why));
    }
    Ok(plan)
}

/// Settings of a run that a user waits for.
fn hurry(settings: &mut Settings) {
    settings.interval_ms = ONCE_INTERVAL_MS;
    settings.settle_ms = 2 * ONCE_INTERVAL_MS;
    settings.stall_percent = ONCE_STALL_PERCENT;
    settings.slow_ms = ONCE_SLOW_MS;
    settings.promotion_cpu_percent = ONCE_CPU_PERCENT;
}

/// A plan that makes as much as possible of a process huge, and splits nothing: a fork copies less then.
pub(super) fn before_hold(pid: i32) -> Result<Plan, Failure> {
    let mut plan = Plan { rules: vec![Rule::new(Who::Pid(pid), 1)], ..Plan::default() };
    hurry(&mut plan.settings);
    plan.settings.demote_below_percent = 0;
    plan.check()?;
    Ok(plan)
}

/// A plan that measures the gain of one process.
pub(super) fn measure(args: &args::MeasureArgs) -> Result<Plan, Failure> {
    let rule = Rule { measure: true, unit: args.unit.clone(), ..Rule::new(Who::Pid(args.pid), 1) };
    let mut plan = Plan { rules: vec![rule], ..Plan::default() };
    hurry(&mut plan.settings);
    plan.settings.stall_percent = args.stall_budget.unwrap_or(ONCE_STALL_PERCENT);
    plan.settings.min_gain_percent = args.effect;
    plan.settings.measure_period_ms = args.period;
    plan.settings.measure_within_s = args.within;
    plan.check()?;
    Ok(plan)
}

/// A plan that looks at processes at intervals, and does nothing.
pub(super) fn watch(who: &args::Who, heat: bool, interval: Duration) -> Plan {
    let mut rules = rules_of(who);
    if rules.is_empty() {
        rules.push(Rule::new(Who::All, 1));
    }
    let interval_ms = interval.as_millis() as u64;
    let settings = Settings { interval_ms, ..Settings::default() };
    Plan { rules, settings, heat, ..Plan::default() }
}

fn rules_of(who: &args::Who) -> Vec<Rule> {
    let mut rules = Vec::new();
    let mut add = |who, weight| rules.push(Rule::new(who, weight));
    who.pid.iter().for_each(|target| add(Who::Pid(target.who), target.weight));
    who.name.iter().for_each(|target| add(Who::Match(target.who.clone()), target.weight));
    who.cgroup.iter().for_each(|target| add(Who::Cgroup(target.who.clone()), target.weight));
    if who.all {
        add(Who::All, 1);
    }
    rules
}

/// Applies the options to the settings.
pub(super) fn change(settings: &mut Settings, args: &PromoteArgs) {
    if let Some(percent) = args.how.threshold {
        settings.threshold_percent = percent;
        if args.how.demote_below.is_none() {
            settings.demote_below_percent =
                settings.demote_below_percent.min(percent.saturating_sub(1));
        }
    }
    if let Some(percent) = args.how.demote_below {
        settings.demote_below_percent = percent;
    }
    settings.files |= args.how.files;
    if let Some(percent) = args.how.stall_budget {
        settings.stall_percent = percent;
    }
}

fn read(path: &Path) -> Result<Plan, Failure> {
    let file = path.display();
    let text = regular::read_text(path).map_err(exit::io(format_args!("read {file}")))?;
    Plan::parse(&text).map_err(|error| Failure::new(USAGE, format!("{file}: {error}")))
}
