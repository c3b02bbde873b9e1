//! The parts of a bench, each of which can be selected.

use std::fmt::Debug;

use crate::report::HostState;
use clap::ValueEnum;
use cowslip_report::units;

use super::bench::Bench;
use super::error::{Error, Result};

/// Measures the selected parts, or all, each in the same time. See [`weighed`].
pub(super) fn each<P: ValueEnum + Debug + Copy>(
    bench: &mut Bench<'_>,
    only: &[P],
    measure: impl Fn(P, &mut Bench<'_>) -> Result<()>,
) -> Result<()> {
    weighed(bench, only, |_| 1.0, measure)
}

/// Measures the selected parts, or all. Each gets a share of the remaining time, by its weight among the remaining
/// parts. A part that fails as a whole leaves a note; the others go on.
pub(super) fn weighed<P: ValueEnum + Debug + Copy>(
    bench: &mut Bench<'_>,
    only: &[P],
    weight: impl Fn(P) -> f64,
    measure: impl Fn(P, &mut Bench<'_>) -> Result<()>,
) -> Result<()> {
    let parts = if only.is_empty() { P::value_variants() } else { only };
    bench.look_at_host()?;
    let mut hosts = Vec::new();
    for (i, &part) in parts.iter().enumerate() {
        let name = part.to_possible_value();
        let name = name.as_ref().map_or("", |name| name.get_name());
        bench.begin_stage(i + 1, parts.len(), &name);
        let left: f64 = parts[i..].iter().map(|&part| weight(part)).sum();
        bench.clock.begin_part(weight(part) / left);
        let first = bench.report.rows.len();
        let measured = bench.watched(|bench| measure(part, bench));
        let states = bench.report.rows[first..].iter().filter_map(|row| row.host);
        hosts.extend(states.reduce(HostState::worse).map(|host| told(name, host)));
        match measured {
            Err(Error::Failed(why)) => bench.report.notes.push(format!("{name}: {why}")),
            done => done?,
        }
    }
    if !hosts.is_empty() {
        let note =
            format!("the host, a touch of a free page and stolen time: {}", hosts.join("; "));
        bench.report.notes.push(note);
    }
    Ok(())
}

/// The worst state of the host while a part was measured.
fn told(part: &str, host: HostState) -> String {
    let touch = units::human(host.touch_ns_per_page, "ns");
    let unfit = if host.host_fit { "" } else { " ‡" };
    format!("{part} {touch}, {:.1} %{unfit}", host.stolen_share * 100.0)
}
