//! The comparison as one page that needs nothing but a browser.

use std::io;
use std::path::Path;

use cowslip_report::sink;
use minijinja::value::Value;
use minijinja::{Environment, context};

use cowslip_compare::profile::ProfileDifference;
use cowslip_compare::{Comparison, Row, Verdict};

use super::{Report, Settings, flame, format, strip_plot};

/// Writes the page to `path`, or to standard output if that is `-`.
pub(super) fn write(
    comparison: &Comparison,
    report: &Report,
    profile: Option<&ProfileDifference>,
    settings: &Settings,
    path: &Path,
) -> io::Result<()> {
    sink::write(path, &render(comparison, report, profile, settings).map_err(io::Error::other)?)
}

fn render(
    comparison: &Comparison,
    report: &Report,
    profile: Option<&ProfileDifference>,
    settings: &Settings,
) -> Result<String, minijinja::Error> {
    let mut environment = Environment::new();
    environment.add_template("page.html", include_str!("page.html"))?;
    environment.get_template("page.html")?.render(context! {
        cause => &report.cause,
        beside => &report.beside,
        tables => vec![report.ledger.clone(), report.profile.clone(), report.calls.clone()],
        flame => profile.map(flame::flame),
        primary => &report.primary,
        headline => format::headline(comparison),
        advice => &report.advice,
        alpha => settings.alpha,
        fdr => settings.fdr,
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
        verdict => format::verdict(row),
        good => format::value(&row.metric, good),
        bad => format::value(&row.metric, bad),
        change => row.change.map_or("–".to_owned(), |change| format::percent(change.value)),
        interval => interval.map(|(a, b)| format!("{} … {}", format::percent(a), format::percent(b))),
        t => format::t(row),
        p => format::p(row.p),
        adjusted => format::p(row.adjusted_p),
        rank => format::p(row.rank.p),
        effect => row.effect.map_or("–".to_owned(), |effect| format::short(effect.value)),
        effect_interval => row.effect.and_then(|effect| effect.interval).map(format::interval),
        runs => row.runs_for_wanted,
        strip_plot => strip_plot::strip_plot(row),
    }
}
