//! The processes to promote and the settings: the content of a configuration file.

use std::fmt;
use std::fs::{self, OpenOptions};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use cowslip_sys::atomic_file::Target;
use cowslip_sys::error::{Error, ErrorKind, Result};
use serde::Deserialize;

use crate::model::Settings;
use crate::work::WorkSource;

/// The packaged unit's `RuntimeDirectory=`.
pub const UNIT_FOLDER: &str = "/run/cowslip";

/// A request to promote. The names are those of the configuration file.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Plan {
    /// The processes, with weights.
    #[serde(rename = "target")]
    pub rules: Vec<Rule>,
    /// The settings of promotion.
    pub settings: Settings,
    /// True to ask the kernel which memory is accessed.
    pub heat: bool,
    /// True to keep khugepaged to the threshold, and the size of pages at faults to the targets' use, meanwhile.
    pub manage_thp: bool,
    /// The address at which to serve metrics.
    pub metrics: Option<SocketAddr>,
    /// The file to write them to.
    pub metrics_file: Option<PathBuf>,
}

impl Plan {
    /// Reads the text of a configuration file.
    ///
    /// # Errors
    /// Text that is no TOML, or an unknown key, with its line.
    pub fn parse(text: &str) -> Result<Self, toml::de::Error> {
        toml::from_str(text)
    }

    /// Checks that it makes sense; the error is `Usage`, with the reason.
    pub fn check(&self) -> Result<()> {
        self.settings.check()?;
        if let Some(address) = self.metrics.filter(|address| !address.ip().is_loopback()) {
            let why = format!("metrics are for this machine: {address} is no loopback address");
            return Err(Error::new(ErrorKind::Usage, why));
        }
        Ok(())
    }

    /// Creates and removes a file beside `metrics_file`, as writing the metrics will; `Usage` with the reason if it cannot.
    ///
    /// The packaged unit makes [`UNIT_FOLDER`] when it starts, so a missing one is no error.
    pub fn check_metrics_file(&self) -> Result<()> {
        let Some(file) = &self.metrics_file else { return Ok(()) };
        let refuse = |why: String| {
            let text = format!("metrics_file {}: {why}", file.display());
            Err(Error::new(ErrorKind::Usage, text))
        };
        if !file.is_absolute() {
            return refuse(format!("not an absolute path, as {UNIT_FOLDER}/promote.prom is"));
        }
        let folder = file.parent().unwrap_or(Path::new("/"));
        if folder == Path::new(UNIT_FOLDER) && !folder.exists() {
            return Ok(());
        }
        let folder = match Target::find(file) {
            Ok(Target::Stream) => return Ok(()),
            Ok(Target::File(real)) => real.parent().unwrap_or(Path::new("/")).to_owned(),
            Err(error) => return refuse(error.to_string()),
        };
        let trial = folder.join(format!(".cowslip-check-{}", std::process::id()));
        match OpenOptions::new().write(true).create_new(true).open(&trial) {
            Ok(_) => fs::remove_file(&trial).or_else(|error| refuse(error.to_string())),
            Err(error) => refuse(format!("cannot write in {}: {error}", folder.display())),
        }
    }

    /// True if processes other than the present ones may become targets.
    pub fn searches(&self) -> bool {
        self.rules.iter().any(|rule| !matches!(rule.who, Who::Pid(_)))
    }

    /// True if a command was started to be promoted.
    pub(crate) fn has_command(&self) -> bool {
        self.rules.iter().any(|rule| matches!(rule.who, Who::Command(_)))
    }
}

/// Processes, and their weight in sharing huge pages: each process has its own share, but those of a control
/// group have one together.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(try_from = "RuleText")]
pub struct Rule {
    /// The processes.
    pub who: Who,
    /// Their weight.
    pub weight: u32,
    /// True to promote them only where a measurement shows a gain.
    pub measure: bool,
    /// The counter of their work for that.
    pub unit: Option<WorkSource>,
}

impl Rule {
    /// These processes, with this weight, promoted without a measurement.
    pub fn new(who: Who, weight: u32) -> Self {
        Self { who, weight, measure: false, unit: None }
    }
}

/// A selection of processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Who {
    /// The process of this number.
    Pid(i32),
    /// The command that was started with this number, and its descendants.
    Command(i32),
    /// Every process of this name.
    Match(String),
    /// Every process in the control group with this directory, or of this slice (`web.slice`), or below it.
    Cgroup(PathBuf),
    /// Every process that may be observed.
    All,
}

impl fmt::Display for Who {
    /// In words, to follow "process".
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pid(pid) | Self::Command(pid) => write!(f, "{pid}"),
            Self::Match(name) => write!(f, "named {name:?}"),
            Self::Cgroup(path) => write!(f, "in the control group {}", path.display()),
            Self::All => f.write_str("that may be looked at"),
        }
    }
}

/// A `[[target]]` of the file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleText {
    pid: Option<i32>,
    r#match: Option<String>,
    cgroup: Option<PathBuf>,
    all: Option<bool>,
    weight: Option<u32>,
    #[serde(default)]
    measure: bool,
    unit: Option<WorkSource>,
}

impl TryFrom<RuleText> for Rule {
    type Error = &'static str;

    fn try_from(target: RuleText) -> Result<Self, Self::Error> {
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
            _ if target.unit.is_some() && !target.measure => Err("a unit is for measure = true"),
            (Some(who), None) => {
                Ok(Self { who, weight, measure: target.measure, unit: target.unit })
            }
            _ => Err("a target has one of pid, match, cgroup, all = true"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_says_who_and_how() {
        let file = Plan::parse(
            "manage_thp = true\nmetrics = \"127.0.0.1:9464\"\n\
             [[target]]\nmatch = \"redis-server\"\nweight = 2\n[[target]]\ncgroup = \"/a\"\n\
             [settings]\nthreshold_percent = 80\n",
        )
        .unwrap();
        let who = Who::Match("redis-server".into());
        assert_eq!(file.rules[0], Rule::new(who, 2));
        assert_eq!(file.rules[1], Rule::new(Who::Cgroup("/a".into()), 1));
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
            ("[[target]]\npid = 7\nunit = \"/a\"", "measure = true"),
            ("[[target]]\npid = 7\nmeasure = true\nunit = \"http://a\"", "METRIC"),
            ("[settings]\nthreshold_percent = 300", "300"),
        ] {
            let error = Plan::parse(text).map(|_| ()).unwrap_err().to_string();
            assert!(error.contains(name) && error.contains("line"), "{error}");
        }
    }
}
