//! The demo's page: the picture, the sentences, and the rest folded.

use crate::report::{Latencies, Report};
use minijinja::value::Value;
use minijinja::{Environment, context};
use serde_json::Value as Json;

use super::picture::{PANELS, draw, picture, whole_saves};
use super::quantities::{ms, of_unit, whole};
use super::redis::Outcome;
use super::redis::figures::FIGURES;
use super::redis::running_server::{Measured, Save};
use super::sentences::sentences;

/// Renders a page that needs only a browser.
///
/// # Errors
/// A template that does not fit, which is a mistake of this program.
pub fn page(outcome: &Outcome, report: &Report) -> Result<String, minijinja::Error> {
    let mut environment = Environment::new();
    environment.add_template("page.html", include_str!("page.html"))?;
    let mut sentences = sentences(outcome);
    let setting = if sentences.is_empty() { String::new() } else { sentences.remove(0) };
    let measured: Vec<_> = outcome.measured.iter().collect();
    let charts = measured.chunks(PANELS).map(|some| draw(&whole_saves(some)).map(safe));
    let charts = charts.collect::<Result<Vec<_>, _>>()?;
    environment.get_template("page.html")?.render(context! {
        setting => setting.replace(", in turns:", ", in turns."),
        picture => safe(picture(outcome)?),
        sentences,
        charts,
        tables => tables(outcome, report),
        facts => facts(report),
        notes => &report.notes,
    })
}

fn safe(svg: String) -> Value {
    Value::from_safe_string(svg)
}

fn table(title: &str, note: &str, headings: Vec<&'static str>, lines: Vec<Vec<String>>) -> Value {
    context! { title, note, headings, lines }
}

fn tables(outcome: &Outcome, report: &Report) -> Vec<Value> {
    let measured = &outcome.measured;
    let titles = measured.iter().map(|server| server.setup.title);
    let lines = FIGURES.iter().map(|figure| {
        let cells = measured.iter().map(|server| {
            let values = figure.saves(server).map(figure.of);
            let texts = values.map(|value| of_unit(value, figure.unit, figure.metric));
            texts.collect::<Vec<_>>().join(" · ")
        });
        [figure.title.to_owned()].into_iter().chain(cells).collect()
    });
    let note = "A number a save, in the order in which they were made.";
    let headings = [""].into_iter().chain(titles).collect();
    let mut tables =
        vec![table("Every save in numbers", note, headings, lines.collect()), latencies(measured)];
    let ratios = report.ratios.iter().map(|ratio| {
        let value = ratio.value.map_or("not measured".to_owned(), |value| format!("{value:.2}"));
        let bound = match (ratio.at_least, ratio.at_most) {
            (Some(low), _) => format!("at least {low}"),
            (_, Some(high)) => format!("at most {high}"),
            _ => String::new(),
        };
        let kept = ratio.holds.map_or("", |holds| if holds { "holds" } else { "missed" });
        vec![ratio.name.replace('_', " "), value, bound, kept.to_owned()]
    });
    let headings = vec!["", "measured", "promised", ""];
    tables.push(table("Promises", "Promised is what --full measures.", headings, ratios.collect()));
    tables
}

fn latencies(measured: &[Measured]) -> Value {
    type Of = fn(&Save) -> &Latencies;
    let phases: [(&str, Of); 3] = [
        ("before", |save| &save.quiet.latencies),
        ("during", |save| &save.during.latencies),
        ("after", |save| &save.after.latencies),
    ];
    let lines = measured.iter().flat_map(|server| {
        phases.map(|(phase, of)| {
            let mut all = Latencies::new();
            server.busy_saves().for_each(|save| all.merge(of(save)));
            let shares = [0.5, 0.99, 0.999].map(|share| ms(all.quantile_ns(share) as f64));
            let mut line = vec![format!("{}, {phase}", server.setup.title)];
            line.extend(shares);
            line.extend([ms(all.max_ns() as f64), whole(all.n() as f64)]);
            line
        })
    });
    let headings = vec!["", "half took at most", "99 %", "99.9 %", "slowest", "requests"];
    table("How long writes took", "", headings, lines.collect())
}

/// Facts about the machine and the options.
fn facts(report: &Report) -> Vec<Value> {
    let all = report.machine.iter().chain(&report.params);
    let fact = |(name, value): (&String, &Json)| {
        let text = match value {
            Json::Null => "unknown".to_owned(),
            Json::String(text) => text.clone(),
            other => match other.as_f64().filter(|_| name.ends_with("_bytes")) {
                Some(bytes) => of_unit(bytes, "bytes", name),
                None => other.to_string(),
            },
        };
        let name = name.strip_suffix("_bytes").unwrap_or(name).replace('_', " ");
        context! { name, text }
    };
    all.map(fact).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::demo::redis::setup::ServerSetup;

    #[test]
    fn the_page_begins_with_the_picture_and_hostile_names_stay_text() {
        let hostile = "</script><script>alert('x')</script>";
        let setups = [ServerSetup::stock_4k(), ServerSetup::cowslip(Path::new("cowslip"))];
        let outcome = Outcome {
            measured: setups.map(|setup| Measured::example(setup, 1_000_000_000)).into(),
            redis_version: hostile.to_owned(),
            size_bytes: 4 << 20,
            clients: 2,
            stolen_share: 0.0,
        };
        let mut report = Report::new("demo", serde_json::Map::new());
        report.notes.push(hostile.to_owned());
        report.machine.insert(hostile.to_owned(), hostile.into());
        let page = page(&outcome, &report).unwrap();
        assert!(!page.contains("<script") && !page.contains("NaN"));
        let first_fold = page.find("<details").unwrap();
        assert_eq!(page[..first_fold].matches("<svg").count(), 1);
        assert_eq!(page.matches("<svg").count(), 2);
    }
}
