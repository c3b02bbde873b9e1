//! The history as one page that needs nothing but a browser.

use std::io;
use std::path::Path;

use cowslip_compare::history::{Group, History};
use cowslip_report::sink;
use minijinja::value::Value;
use minijinja::{Environment, context};

use super::{Found, HistoryArgs, chart, sentences};
use crate::commands::compare::result::format;

/// Writes the page to `path`, or to standard output if that is `-`.
pub(super) fn write(found: &[Found], args: &HistoryArgs, path: &Path) -> io::Result<()> {
    sink::write(path, &render(found, args).map_err(io::Error::other)?)
}

fn render(found: &[Found], args: &HistoryArgs) -> Result<String, minijinja::Error> {
    let mut environment = Environment::new();
    environment.add_template("page.html", include_str!("page.html"))?;
    environment.get_template("page.html")?.render(context! {
        name => &args.name,
        alpha => format!("{} %", 100.0 * args.alpha),
        series => found.iter().map(|found| series(found, args)).collect::<Vec<_>>(),
    })
}

fn series(found: &Found, args: &HistoryArgs) -> Value {
    let history = &found.history;
    let groups = history.groups.iter();
    context! {
        name => &history.name,
        metric => &history.metric,
        fails => found.fails,
        verdict => sentences::verdict(found, args),
        groups => groups.map(|part| group(history, part, args)).collect::<Vec<_>>(),
    }
}

fn group(history: &History, group: &Group, args: &HistoryArgs) -> Value {
    let changes = group.changes.iter().enumerate().map(|(index, change)| {
        context! {
            number => index + 1,
            step => sentences::step(&history.metric, change),
            place => sentences::place(group, change),
            commits => sentences::commits(group, change),

            facts => sentences::facts(change),
        }
    });
    let entries = group.points.iter().rev().map(|point| {
        context! {
            number => point.number,
            time_ms => point.time_unix_ns / 1_000_000,
            commit => &point.commit,
            label => &point.label,
            value => format::value(&history.metric, point.value),
            runs => point.runs,
        }
    });
    context! {
        machine => sentences::machine(&group.machine),
        chart => chart::chart(history, group),
        changes => changes.collect::<Vec<_>>(),
        notes => sentences::notes(history, group, args.alpha),
        entries => entries.collect::<Vec<_>>(),
    }
}
