//! The report as one page that needs only a browser.

use std::io;
use std::path::Path;

use minijinja::value::Value;
use minijinja::{Environment, context};
use serde_json::{Map, Value as Json};

use super::charts::{Chart, Panel, charts};
use super::groups::{Group, Line, groups, heading, published};
use super::results::{Ratio, Report};
use cowslip_report::{sink, units};

/// Writes `report` to `path`, or to standard output if that is `-`.
///
/// # Errors
/// Like [`sink::write`].
pub fn write(report: &Report, path: &Path) -> io::Result<()> {
    sink::write(path, &render(report).map_err(io::Error::other)?)
}

fn render(report: &Report) -> Result<String, minijinja::Error> {
    let mut environment = Environment::new();
    environment.add_template("report.html", include_str!("report.html"))?;
    environment.get_template("report.html")?.render(context! {
        bench => &report.bench,
        machine => facts(&report.machine),
        params => facts(&report.params),
        notes => report.notes.clone(),
        ratios => report.ratios.iter().map(ratio).collect::<Vec<_>>(),
        charts => charts(report).into_iter().map(chart).collect::<Vec<_>>(),
        groups => groups(report).iter().map(group).collect::<Vec<_>>(),
    })
}

fn facts(facts: &Map<String, Json>) -> Vec<Value> {
    let fact = |(name, value): (&String, &Json)| {
        let text = match (value, value.as_u64()) {
            (Json::Null, _) => "unknown".to_owned(),
            (Json::String(text), _) => text.clone(),
            (_, Some(bytes)) if name.ends_with("_bytes") => units::size(bytes),
            (other, _) => other.to_string(),
        };
        let name = name.strip_suffix("_bytes").unwrap_or(name).replace('_', " ");
        context! { name, text }
    };
    facts.iter().map(fact).collect()
}

fn ratio(ratio: &Ratio) -> Value {
    context! {
        name => &ratio.name,
        value => ratio.value.map_or("–".to_owned(), |value| units::digits(value, 4)),
        bound => ratio.bound(),
        verdict => ratio.verdict(),
        unfit => ratio.host_fit == Some(false),
    }
}

fn chart(chart: Chart) -> Value {
    let panel = |panel: Panel| {
        context! {
            svg => Value::from_safe_string(panel.svg),
            tips => Value::from_safe_string(inside_script(&panel.tips)),
        }
    };
    let name = |(class, name): (String, String)| context! { class, name };
    context! {
        title => chart.title,
        caption => chart.caption,
        legend => chart.legend.into_iter().map(name).collect::<Vec<_>>(),
        panels => chart.panels.into_iter().map(panel).collect::<Vec<_>>(),
    }
}

/// JSON that cannot end its `<script>`.
fn inside_script(json: &str) -> String {
    json.replace('<', "\\u003c")
}

fn group(group: &Group<'_>) -> Value {
    let headings = group.stats.iter().map(|stat| heading(stat).to_owned()).collect::<Vec<_>>();
    let line = |line: &Line<'_>| {
        let cell = |stat: &&str| {
            let exact = line.row(stat).and_then(|row| Some(format!("{} {}", row.value?, row.unit)));
            context! { text => line.human(stat).unwrap_or_else(|| "–".to_owned()), exact }
        };
        context! {
            system => line.system,
            published => published(line.system),
            unfit => line.unfit(),
            size => line.size_bytes.map(units::size),
            variant => line.variant,
            cells => group.stats.iter().map(cell).collect::<Vec<_>>(),
            measured => line.measured(),
            skipped => line.skipped,
            n => line.n(),
        }
    };
    let lines = group.lines.iter().map(line).collect::<Vec<_>>();
    context! {
        metric => group.metric,
        has_size => group.has_size(),
        has_variant => group.has_variant(),
        has_n => group.has_n(),
        headings,
        lines,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::example;
    use crate::report::results::{Row, Series};

    #[test]
    fn the_page_has_charts_and_needs_no_network() {
        let page = render(&example::report()).unwrap();
        // Writes the page for a look at it in a browser.
        if let Some(path) = std::env::var_os("COWSLIP_EXAMPLE_HTML") {
            write(&example::report(), Path::new(&path)).unwrap();
        }
        assert_eq!(page.matches("<svg").count(), 4);
        assert!(page.contains("MISSED") && page.contains("sudo sysctl"));
        assert!(!page.contains("http:") && !page.contains("https:") && !page.contains("src="));
    }

    #[test]
    fn hostile_names_stay_text() {
        let hostile = "</script><script>alert('x')</script>\"><img>";
        let mut report = example::report();
        report.bench = hostile.to_owned();
        report.machine.insert(hostile.to_owned(), hostile.into());
        report.notes.push(hostile.to_owned());
        report.skip(hostile, hostile, hostile);
        report.ratio_at_most(hostile, Some(1.0), 2.0);
        for size in [1, 2] {
            let row = Row::new(hostile, "pause", "p50", 1.0, "ns").size_bytes(size);
            report.row(row.variant(hostile));
        }
        report.row(Row::new(hostile, hostile, "p50", 1.0, "ns"));
        report.series.push(Series {
            system: hostile.to_owned(),
            metric: hostile.to_owned(),
            unit: "ns",
            points: vec![(0.5, 1.0), (f64::NAN, f64::INFINITY)],
            marks: vec![(0.0, 1.0, hostile.to_owned())],
        });
        let page = render(&report).unwrap();
        assert!(!page.contains("<script>alert") && !page.contains("<img") && !page.contains("NaN"));
        let scripts = page.matches("<script").count();
        assert_eq!(page.matches("</script>").count(), scripts);
        assert_eq!(scripts, page.matches("<svg").count() + 1);
    }
}
