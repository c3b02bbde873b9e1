//! The comparison as one page that needs nothing but a browser.

use std::io;
use std::path::Path;

use cowslip_report::sink;
use minijinja::value::Value;
use minijinja::{Environment, context};

use cowslip_compare::{Comparison, Row, Verdict};

use super::args::How;
use super::{cause, strip, words};

/// Writes the page to `path`, or to standard output if that is `-`.
pub(super) fn write(comparison: &Comparison, how: &How, path: &Path) -> io::Result<()> {
    sink::write(path, &render(comparison, how).map_err(io::Error::other)?)
}

fn render(comparison: &Comparison, how: &How) -> Result<String, minijinja::Error> {
    let mut environment = Environment::new();
    environment.add_template("page.html", include_str!("page.html"))?;
    environment.get_template("page.html")?.render(context! {
        cause => cause::sentence(comparison, how.relevant()),
        headline => words::headline(comparison),
        advice => words::advice(comparison, how),
        alpha => how.alpha,
        fdr => how.fdr,
        rows => comparison.rows.iter().map(row).collect::<Vec<_>>(),
        constant => &comparison.constant,
    })
}

fn row(row: &Row) -> Value {
    let (good, bad) = row.means;
    let interval = row.change.and_then(|change| change.interval);
    let class = match row.verdict {
        Verdict::Differs => "differs",
        Verdict::Perhaps => "perhaps",
        Verdict::Unproven => "unproven",
    };
    context! {
        metric => &row.metric,
        class,
        verdict => words::verdict(row),
        good => words::value(&row.metric, good),
        bad => words::value(&row.metric, bad),
        change => row.change.map_or("–".to_owned(), |change| words::percent(change.value)),
        interval => interval.map(|(a, b)| format!("{} … {}", words::percent(a), words::percent(b))),
        t => words::t(row),
        p => words::p(row.p),
        adjusted => words::p(row.adjusted_p),
        rank => words::p(row.rank.p),
        effect => row.effect.map_or("–".to_owned(), |effect| words::short(effect.value)),
        effect_interval => row.effect.and_then(|effect| effect.interval).map(words::interval),
        runs => row.runs_for_wanted,
        strip => strip::strip(row),
    }
}
