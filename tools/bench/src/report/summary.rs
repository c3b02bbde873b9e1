//! The results of many runs as one page in Markdown: each promise, its results, and whether it holds.
//!
//! ```text
//! FOLDER/results/2026-11-22-epyc-quiet/cow.json    of `cowslip-bench cow --json`; its host had nothing else to do
//! FOLDER/results/2026-11-23-epyc-busy/cow.json     it had
//! FOLDER/reasons.json                              {"name of a ratio": "what is known about it"}
//! ```
//! The newest result of a quiet host counts, and the worst of all busy ones.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::Path;

use cowslip_sys::error::io_kind;
use serde_json::Value;

use cowslip_report::units;

const ORDER: [&str; 7] = ["cow", "fork", "save", "restore", "bloat", "trace", "demo"];

/// One run's value for one ratio.
#[derive(Clone, Debug)]
struct Measured {
    value: Option<f64>,
    at_least: Option<f64>,
    at_most: Option<f64>,
    is_fit: bool,
}

impl Measured {
    fn of(ratio: &Value) -> Self {
        let number = |name| ratio.get(name).and_then(Value::as_f64);
        let (at_least, at_most) = (number("at_least"), number("at_most"));
        let is_fit = ratio.get("host_fit").and_then(Value::as_bool).unwrap_or(true);
        Self { value: number("value"), at_least, at_most, is_fit }
    }

    /// The distance of the value beyond its bound, as a share of the bound: at most zero if it holds.
    fn excess(&self) -> Option<f64> {
        let value = self.value?;
        let share = |beyond: f64, bound: f64| if bound == 0.0 { beyond } else { beyond / bound };
        let below = self.at_least.map(|bound| share(bound - value, bound));
        let above = self.at_most.map(|bound| share(value - bound, bound));
        below.into_iter().chain(above).max_by(f64::total_cmp)
    }

    fn holds(&self) -> Option<bool> {
        self.excess().map(|excess| excess <= 0.0)
    }

    /// The value, with a mark if the host was unfit.
    fn told(&self) -> String {
        let mark = if self.is_fit { "" } else { " ‡" };
        self.value.map(|it| units::human(it, "") + mark).unwrap_or_default()
    }

    fn promise(&self) -> String {
        match (self.at_least, self.at_most) {
            (Some(low), Some(high)) => format!("{low} to {high}"),
            (Some(low), None) => format!("≥ {low}"),
            (None, Some(high)) => format!("≤ {high}"),
            (None, None) => String::new(),
        }
    }
}

/// All results of one ratio.
#[derive(Default, Debug)]
struct Ratio {
    /// The promise of the newest result, measured or not.
    promise: String,
    quiet: Option<Measured>,
    busy: Vec<Measured>,
}

impl Ratio {
    fn worst(&self) -> Option<&Measured> {
        let key = |it: &&Measured| it.excess().or(it.value).unwrap_or(f64::NEG_INFINITY);
        self.busy.iter().filter(|it| it.value.is_some()).max_by(|a, b| key(a).total_cmp(&key(b)))
    }

    fn status(&self) -> &'static str {
        let quiet = self.quiet.as_ref().and_then(Measured::holds);
        if self.quiet.as_ref().is_some_and(|it| it.value.is_some() && !it.is_fit) {
            return "host unfit";
        }
        match (quiet, self.worst().and_then(Measured::holds)) {
            (Some(false), _) => "missed",
            (Some(true), Some(false)) => "missed when busy",
            (Some(true), _) => "holds",
            (None, Some(true)) => "holds when busy",
            (None, Some(false)) => "missed when busy",
            (None, None) if self.quiet.is_some() => "",
            (None, None) => "not measured",
        }
    }
}

/// The ratios by bench, in the order of [`ORDER`]: with their names, in their own order.
type Ratios = BTreeMap<(usize, String), Vec<(String, Ratio)>>;

/// The origin of a folder of results.
#[derive(Debug)]
struct Host {
    folder: String,
    machine: Value,
}

/// Reads the results in `folder`, and returns the page.
///
/// # Errors
/// Errors of the file system; [`io::ErrorKind::InvalidData`] for a file that is no result, with its name.
pub fn markdown(folder: &Path) -> io::Result<String> {
    let (hosts, ratios) = read(folder)?;
    let reasons = folder.join("reasons.json");
    let reasons = if reasons.exists() { parse(&reasons)? } else { Value::Null };
    Ok(page(&hosts, ratios, &reasons))
}

fn read(folder: &Path) -> io::Result<(Vec<Host>, Ratios)> {
    let mut hosts = Vec::new();
    let mut ratios = Ratios::new();
    for (host, run) in entries(&folder.join("results"))?.into_iter().enumerate() {
        let is_quiet = run.ends_with("-quiet");
        let place = folder.join("results").join(&run);
        for file in entries(&place)? {
            let report = parse(&place.join(&file))?;
            if hosts.len() == host {
                let machine = report["machine"].clone();
                hosts.push(Host { folder: run.clone(), machine });
            }
            let bench = report["bench"].as_str().unwrap_or_default().to_owned();
            let order = ORDER.iter().position(|it| *it == bench).unwrap_or(ORDER.len());
            let known = ratios.entry((order, bench)).or_default();
            for ratio in report["ratios"].as_array().into_iter().flatten() {
                let name = ratio["name"].as_str().unwrap_or_default();
                let measured = Measured::of(ratio);
                let index = known.iter().position(|(it, _)| it == name).unwrap_or_else(|| {
                    known.push((name.to_owned(), Ratio::default()));
                    known.len() - 1
                });
                known[index].1.promise = measured.promise();
                match &mut known[index].1 {
                    it if !is_quiet => it.busy.push(measured),
                    it if measured.value.is_some() => it.quiet = Some(measured),
                    _ => {}
                }
            }
        }
    }
    Ok((hosts, ratios))
}

fn page(hosts: &[Host], ratios: Ratios, reasons: &Value) -> String {
    let has_busy = ratios.values().flatten().any(|(_, ratio)| !ratio.busy.is_empty());
    let mut page = String::from(
        "# Benchmarks\n\nWritten by `cowslip-bench report` from [benchmarks/results](benchmarks/results): do not edit it. \
         The systems of a\n[ratio](SPECIFICATION.md#speed) took turns in one run. \"Quiet\" is the newest run on a host \
         with nothing else to do.\n",
    );
    if has_busy {
        page.push_str("\"Busy\" is the worst of those on a host that had, \"of\" their number.\n");
    }
    let (busy_heads, busy_rules) =
        if has_busy { (" busy, worst | of |", " ---: | ---: |") } else { ("", "") };
    let mut notes = String::new();
    let mut has_unfit = false;
    for ((_, bench), ratios) in ratios {
        let _ = writeln!(
            page,
            "\n## `cowslip-bench {bench}`\n\n| ratio | promise | quiet |{busy_heads} status |\n\
             | --- | --- | ---: |{busy_rules} --- |"
        );
        for (name, ratio) in ratios {
            let promise = &ratio.promise;
            let value = |it: Option<&Measured>| it.map(Measured::told).unwrap_or_default();
            has_unfit |=
                [ratio.quiet.as_ref(), ratio.worst()].iter().flatten().any(|it| !it.is_fit);
            let mark = match reasons.get(&name).and_then(Value::as_str) {
                Some(reason) => {
                    let _ = writeln!(notes, "[^{name}]: {reason}");
                    format!("[^{name}]")
                }
                None => String::new(),
            };
            let of =
                if ratio.busy.is_empty() { String::new() } else { ratio.busy.len().to_string() };
            let worst = value(ratio.worst());
            let busy = if has_busy { format!(" {worst} | {of} |") } else { String::new() };
            let _ = writeln!(
                page,
                "| `{name}`{mark} | {promise} | {} |{busy} {} |",
                value(ratio.quiet.as_ref()),
                ratio.status(),
            );
        }
    }
    if has_unfit {
        page.push_str("\n‡ The host took processor time or free memory back meanwhile: the value counts for nothing.\n");
    }
    page.push_str("\n## Hosts\n\n| results | processor | processors | memory | Linux |\n| --- | --- | ---: | ---: | --- |\n");
    for host in hosts {
        let text = |name: &str| match &host.machine[name] {
            Value::String(text) => text.clone(),
            Value::Null => String::new(),
            other => other.to_string(),
        };
        let memory = host.machine["memory_bytes"].as_f64().unwrap_or_default() / f64::from(1 << 30);
        let _ = writeln!(
            page,
            "| {} | {} | {} | {memory:.1} GiB | {} |",
            host.folder,
            text("cpu_model"),
            text("cpus"),
            text("kernel_release")
        );
    }
    if !notes.is_empty() {
        let _ = write!(page, "\n{notes}");
    }
    page
}

/// The names in a folder, in order.
pub(super) fn entries(folder: &Path) -> io::Result<Vec<String>> {
    let explain = |error: io::Error| {
        io::Error::new(io_kind(&error), format!("cannot read {}: {error}", folder.display()))
    };
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).map_err(explain)? {
        names.push(entry.map_err(explain)?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

pub(super) fn parse(path: &Path) -> io::Result<Value> {
    let bytes = fs::read(path)?;
    serde_json::from_slice(&bytes).map_err(|error| {
        io::Error::new(io::ErrorKind::InvalidData, format!("{}: {error}", path.display()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(value: f64, at_least: Option<f64>, at_most: Option<f64>) -> Measured {
        Measured { value: Some(value), at_least, at_most, is_fit: true }
    }

    #[test]
    fn the_worst_is_what_is_farthest_beyond_its_bounds() {
        let busy = [1.0, 0.9, 1.2].map(|it| measured(it, Some(0.97), Some(1.03)));
        let mut ratio = Ratio { busy: busy.into(), ..Ratio::default() };
        assert_eq!(ratio.worst().and_then(|it| it.value), Some(1.2));
        assert_eq!(ratio.status(), "missed when busy");
        ratio.quiet = Some(measured(1.0, Some(0.97), Some(1.03)));
        assert_eq!(ratio.status(), "missed when busy");
        ratio.busy.clear();
        assert_eq!(ratio.status(), "holds");
        ratio.quiet = Some(measured(3.0, None, Some(0.0)));
        assert_eq!(ratio.status(), "missed");
        let unfit = serde_json::json!({ "value": 0.5, "at_most": 1.0, "host_fit": false });
        ratio.quiet = Some(Measured::of(&unfit));
        assert_eq!(ratio.status(), "host unfit");
        assert_eq!(ratio.quiet.as_ref().map(Measured::told).as_deref(), Some("0.500 ‡"));
    }

    /// `cowslip-bench report -o BENCHMARKS.md` was forgotten if this fails.
    #[test]
    fn the_page_is_that_of_the_results() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let page = fs::read_to_string(root.join("BENCHMARKS.md")).unwrap();
        assert_eq!(markdown(&root.join("benchmarks")).unwrap(), page);
    }
}
