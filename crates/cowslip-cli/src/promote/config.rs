//! What to promote and how: the configuration file, overridden by the options.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cowslip_promote::Settings;
use serde::Deserialize;

use super::args::{self, PromoteArgs};
use crate::exit::{Failure, USAGE};

/// Between the looks of a run that is to be over in seconds.
const ONCE_INTERVAL_MS: u64 = 500;
/// Somebody waits for its end.
const ONCE_STALL_PERCENT: f64 = 25.0;
const ONCE_SLOW_MS: u64 = 20;
const ONCE_CPU_PERCENT: f64 = 100.0;

/// The file.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct File {
    /// Which processes; with weights.
    target: Vec<Rule>,
    settings: Settings,
    heat: bool,
    manage_thp: bool,
    metrics: Option<SocketAddr>,
    metrics_file: Option<PathBuf>,
}

/// Some processes, and the share of huge pages beside that of others: of each, but of all together for those of a control
/// group.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(try_from = "Target")]
pub(super) struct Rule {
    pub(super) who: Who,
    pub(super) weight: u32,
}

/// Which processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Who {
    Pid(i32),
    Match(String),
    Cgroup(PathBuf),
    All,
}

impl fmt::Display for Who {
    /// As it follows "process".
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pid(pid) => write!(f, "{pid}"),
            Self::Match(name) => write!(f, "named {name:?}"),
            Self::Cgroup(path) => write!(f, "in the control group {}", path.display()),
            Self::All => f.write_str("that may be looked at"),
        }
    }
}

/// A `[[target]]` of the file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Target {
    pid: Option<i32>,
    r#match: Option<String>,
    cgroup: Option<PathBuf>,
    all: Option<bool>,
    weight: Option<u32>,
}

impl TryFrom<Target> for Rule {
    type Error = &'static str;

    fn try_from(target: Target) -> Result<Self, Self::Error> {
        let weight = target.weight.unwrap_or(1);
        let all = target.all.filter(|all| *all).map(|_| Who::All);
        let named = [
            target.pid.map(Who::Pid),
            target.r#match.map(Who::Match),
            target.cgroup.map(Who::Cgroup),
            all,
        ];
        let mut named = named.into_iter().flatten();
        match (named.next(), named.next()) {
            _ if weight == 0 => Err("a weight is to be 1 or more"),
            (Some(who), None) => Ok(Self { who, weight }),
            _ => Err("a target has one of pid, match, cgroup, all = true"),
        }
    }
}

/// Everything that was asked for.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) rules: Vec<Rule>,
    pub(super) settings: Settings,
    pub(super) heat: bool,
    pub(super) manage_thp: bool,
    pub(super) metrics: Option<SocketAddr>,
    pub(super) metrics_file: Option<PathBuf>,
}

impl Plan {
    /// Reads the file, if one was given; the options come before it.
    pub(super) fn of(args: &PromoteArgs) -> Result<Self, Failure> {
        let file = args.config.as_deref().map_or_else(|| Ok(File::default()), read)?;
        let mut rules = file.target;
        rules.extend(rules_of(&args.who));
        let mut settings = file.settings;
        if args.once && args.config.is_none() {
            settings.interval_ms = ONCE_INTERVAL_MS;
            settings.settle_ms = 2 * ONCE_INTERVAL_MS;
            settings.stall_percent = ONCE_STALL_PERCENT;
            settings.slow_ms = ONCE_SLOW_MS;
            settings.promotion_cpu_percent = ONCE_CPU_PERCENT;
        }
        change(&mut settings, args);
        settings.check()?;
        let metrics = args.metrics.or(file.metrics);
        if let Some(address) = metrics.filter(|address| !address.ip().is_loopback()) {
            let why = format!("metrics are for this machine: {address} is no loopback address");
            return Err(Failure::new(USAGE, why));
        }
        if rules.is_empty() {
            let why =
                "which processes? --pid, --match, --cgroup, --all or a [[target]] in --config";
            return Err(Failure::new(USAGE, why));
        }
        Ok(Self {
            rules,
            settings,
            heat: args.how.heat || file.heat,
            manage_thp: args.how.manage_thp || file.manage_thp,
            metrics,
            metrics_file: args.metrics_file.clone().or(file.metrics_file),
        })
    }

    /// Looks at processes, every so often, and does nothing.
    pub(super) fn watch(who: &args::Who, heat: bool, interval: Duration) -> Self {
        let mut rules = rules_of(who);
        if rules.is_empty() {
            rules.push(Rule { who: Who::All, weight: 1 });
        }
        let interval_ms = interval.as_millis() as u64;
        let settings = Settings { interval_ms, ..Settings::default() };
        Self { rules, settings, heat, manage_thp: false, metrics: None, metrics_file: None }
    }

    /// Whether other processes than those there are now may become targets.
    pub(super) fn searches(&self) -> bool {
        self.rules.iter().any(|rule| !matches!(rule.who, Who::Pid(_)))
    }
}

fn rules_of(who: &args::Who) -> Vec<Rule> {
    let mut rules = Vec::new();
    let mut add = |who, weight| rules.push(Rule { who, weight });
    who.pid.iter().for_each(|it| add(Who::Pid(it.who), it.weight));
    who.name.iter().for_each(|it| add(Who::Match(it.who.clone()), it.weight));
    who.cgroup.iter().for_each(|it| add(Who::Cgroup(it.who.clone()), it.weight));
    if who.all {
        add(Who::All, 1);
    }
    rules
}

/// What the options say of the settings.
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
    if let Some(percent) = args.how.stall_budget {
        settings.stall_percent = percent;
    }
}

fn read(path: &Path) -> Result<File, Failure> {
    let file = path.display();
    let text = std::fs::read_to_string(path)
        .map_err(|error| Failure::new(USAGE, format!("read {file}: {error}")))?;
    toml::from_str(&text).map_err(|error| Failure::new(USAGE, format!("{file}: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<File, toml::de::Error> {
        toml::from_str(text)
    }

    #[test]
    fn a_file_says_who_and_how() {
        let file = parse(
            "manage_thp = true\nmetrics = \"127.0.0.1:9464\"\n\
             [[target]]\nmatch = \"redis-server\"\nweight = 2\n[[target]]\ncgroup = \"/a\"\n\
             [settings]\nthreshold_percent = 80\n",
        )
        .unwrap();
        let who = Who::Match("redis-server".into());
        assert_eq!(file.target[0], Rule { who, weight: 2 });
        assert_eq!(file.target[1], Rule { who: Who::Cgroup("/a".into()), weight: 1 });
        assert_eq!((file.settings.threshold_percent, file.manage_thp), (80, true));
    }

    #[test]
    fn what_it_does_not_know_is_named_with_its_line() {
        for (text, name) in [
            ("treshold = 1", "treshold"),
            ("[settings]\nthreshold = 1", "threshold"),
            ("[[target]]\nname = \"a\"", "name"),
            ("[[target]]\nweight = 2", "one of pid"),
            ("[[target]]\npid = 7\nall = true", "one of pid"),
            ("[[target]]\npid = 7\nweight = 0", "weight"),
            ("[settings]\nthreshold_percent = 300", "300"),
        ] {
            let error = parse(text).map(|_| ()).unwrap_err().to_string();
            assert!(error.contains(name) && error.contains("line"), "{error}");
        }
    }
}
