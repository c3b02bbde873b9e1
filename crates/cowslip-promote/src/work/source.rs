//! The place of a counter of work.

use std::fmt;
use std::io::{self, Read};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use cowslip_sys::regular;
use serde::Deserialize;

use crate::metrics::{Labels, get, labels, sample};

/// The place of a counter of work.
///
/// ```
/// use cowslip_promote::WorkSource;
/// assert!("http://127.0.0.1:9121/metrics#redis_commands_processed_total".parse::<WorkSource>().is_ok());
/// assert!("lines:/var/log/nginx/access.log".parse::<WorkSource>().is_ok());
/// assert!("http://192.0.2.1:9121/metrics#total".parse::<WorkSource>().is_err());
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(try_from = "String")]
pub enum WorkSource {
    /// The sum of a metric's samples in Prometheus' format, of a server on this machine.
    Metric {
        /// The server.
        address: SocketAddr,
        /// The path of its metrics.
        path: String,
        /// The metric.
        name: String,
        /// The labels that its samples must have, among others.
        labels: Labels,
    },
    /// A file that holds a number.
    Number(PathBuf),
    /// A file that gets a line for each unit.
    Lines(PathBuf),
}

/// The most that is read of a file with a number.
const MOST_NUMBER_BYTES: u64 = 256;

const FORM: &str = "http://127.0.0.1:PORT/PATH#METRIC, lines:FILE or FILE is wanted";

impl FromStr for WorkSource {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("lines:") {
            return Ok(Self::Lines(path.into()));
        }
        match text.strip_prefix("http://") {
            Some(url) => metric(url),
            None if text.contains("://") || text.is_empty() => Err(FORM.into()),
            None => Ok(Self::Number(text.into())),
        }
    }
}

fn metric(url: &str) -> Result<WorkSource, String> {
    let (at, selector) = url.split_once('#').ok_or(FORM)?;
    let (server, path) = at.split_once('/').ok_or(FORM)?;
    let address = match server.strip_prefix("localhost:") {
        Some(port) => port.parse().map(|port| (Ipv4Addr::LOCALHOST, port).into()).ok(),
        None => server.parse::<SocketAddr>().ok(),
    };
    let address = address.ok_or(FORM)?;
    if !address.ip().is_loopback() {
        return Err(format!(
            "a counter is read from this machine only: {address} is no loopback address"
        ));
    }
    if path.contains(|character: char| character.is_whitespace() || character.is_control()) {
        return Err(FORM.into());
    }
    let (name, labels) = match selector.split_once('{') {
        Some((name, rest)) => (name, labels(rest).ok_or("its labels are to be as in {a=\"b\"}")?.0),
        None => (selector, Labels::new()),
    };
    let (path, name) = (format!("/{path}"), name.to_owned());
    Ok(WorkSource::Metric { address, path, name, labels })
}

impl TryFrom<String> for WorkSource {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl fmt::Display for WorkSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Metric { address, path, name, .. } => write!(f, "http://{address}{path}#{name}"),
            Self::Number(path) => write!(f, "{}", path.display()),
            Self::Lines(path) => write!(f, "lines:{}", path.display()),
        }
    }
}

impl WorkSource {
    /// The number now. Lines are counted by [`Lines`](super::lines::Lines).
    pub(super) fn read(&self) -> io::Result<f64> {
        let missing = || io::Error::new(io::ErrorKind::InvalidData, format!("{self}: no number"));
        match self {
            Self::Metric { address, path, name, labels } => {
                sum(&get(*address, path)?, name, labels).ok_or_else(missing)
            }
            Self::Number(path) | Self::Lines(path) => {
                let mut text = Vec::new();
                regular::open(path)?.take(MOST_NUMBER_BYTES).read_to_end(&mut text)?;
                let word = String::from_utf8_lossy(&text);
                word.split_ascii_whitespace()
                    .next()
                    .and_then(|number| number.parse().ok())
                    .ok_or_else(missing)
            }
        }
    }
}

/// The sum of the samples of this name that have these labels; `None` if there are none.
fn sum(text: &str, wanted: &str, labels: &Labels) -> Option<f64> {
    let is_wanted = |name: &str, has: &Labels| {
        name == wanted && labels.iter().all(|(label, value)| has.get(label) == Some(value))
    };
    let samples = text.lines().filter_map(sample);
    let values = samples.filter(|(name, has, _)| is_wanted(name, has)).map(|(.., value)| value);
    values.fold(None, |sum, value| Some(sum.unwrap_or(0.0) + value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_of_a_metric_are_summed() {
        let text = "# HELP a of a\n# TYPE a counter\na{x=\"1\"} 3\na{x=\"2\",y=\"z\"} 4 1700000000000\nab 9\n";
        let of = |selector: &str| {
            let source = format!("http://localhost:1/m#{selector}").parse().unwrap();
            let WorkSource::Metric { name, labels, .. } = source else { panic!("{source}") };
            sum(text, &name, &labels)
        };
        assert_eq!((of("a"), of("ab"), of("b")), (Some(7.0), Some(9.0), None));
        assert_eq!((of("a{y=\"z\"}"), of("a{y=\"w\"}")), (Some(4.0), None));
    }

    #[test]
    fn other_machines_and_nonsense_are_refused() {
        for text in [
            "http://10.0.0.1:80/m#a",
            "http://localhost/m#a",
            "http://localhost:80#a",
            "http://localhost:80/m",
            "http://localhost:80/m\r\nX: y#a",
            "https://localhost:80/m#a",
            "",
        ] {
            assert!(text.parse::<WorkSource>().is_err(), "{text:?}");
        }
        assert_eq!("/a/b".parse(), Ok(WorkSource::Number("/a/b".into())));
        assert!("http://[::1]:80/m#a".parse::<WorkSource>().is_ok());
    }
}
