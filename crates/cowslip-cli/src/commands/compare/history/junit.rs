//! JUnit XML: a series is a test, which fails if its newest entries are worse.

use std::io;
use std::path::Path;

use cowslip_report::sink;
use cowslip_report::text::printable;
use minijinja::{Environment, context};

use super::{Found, HistoryArgs, sentences};

pub(super) fn write(found: &[Found], args: &HistoryArgs, path: &Path) -> io::Result<()> {
    sink::write(path, &render(found, args).map_err(io::Error::other)?)
}

fn render(found: &[Found], args: &HistoryArgs) -> Result<String, minijinja::Error> {
    let case = |one: &Found| {
        let history = &one.history;
        let group = &history.groups[0];
        let changes =
            group.changes.iter().rev().map(|change| sentences::sentence(history, group, change));
        let lines = changes.chain(sentences::notes(history, group, args.alpha));
        context! {
            name => printable(&history.name),
            metric => printable(&history.metric),
            fails => one.fails,
            verdict => sentences::verdict(one, args),
            text => lines.collect::<Vec<_>>().join("\n"),
        }
    };
    let mut environment = Environment::new();
    environment.add_template("junit.xml", include_str!("junit.xml"))?;
    environment.get_template("junit.xml")?.render(context! {
        cases => found.iter().map(case).collect::<Vec<_>>(),
        failures => found.iter().filter(|series| series.fails).count(),
    })
}
