//! The demo's results in some ten sentences, including Cowslip's losses.

use crate::report::Latencies;

use super::quantities::{mib, ms, of_unit, percent, seconds, tenths_us, thousands};
use super::redis::Outcome;
use super::redis::figures::{
    CPU, DURATION, EXTRA, Figure, HELD_UP, HUGE_AFTER, HUGE_BEFORE, RESIDENT_AFTER, WRITES,
};
use super::redis::running_server::Measured;
use super::redis::setup::{COWSLIP, STOCK, STOCK_THP};

/// The subjects of the sentences, in this order.
const COMPARED: [&str; 3] = [STOCK, STOCK_THP, COWSLIP];
/// A smaller difference does not count as lost.
const TOLERANCE: f64 = 0.05;
/// A larger share of stolen time is reported.
const MUCH_STOLEN: f64 = 0.01;

/// A sentence for each result. Empty if nothing was saved.
pub fn sentences(outcome: &Outcome) -> Vec<String> {
    let measured: Vec<_> = COMPARED
        .iter()
        .filter_map(|name| outcome.measured.iter().find(|server| server.setup.name == *name))
        .filter(|server| server.busy_saves().next().is_some())
        .collect();
    let Some(saves) = measured.iter().map(|server| server.busy_saves().count()).max() else {
        return Vec::new();
    };
    let each = |subject: &str, of: &dyn Fn(&Measured) -> String| {
        let parts = measured.iter().map(|server| format!("{} {}", server.setup.with, of(server)));
        let parts: Vec<_> = parts.map(|part| part.trim().to_owned()).collect();
        format!("{subject} {}.", parts.join(", "))
    };
    let three = |subject: &str, figures: &[Figure; 3], text: fn(f64) -> String, unit: &str| {
        let of = |server: &&Measured| {
            let [before, during, after] =
                figures.each_ref().map(|figure| text(value(figure, server)));
            let text = format!("{} {before}, {during} and {after}{unit}", server.setup.with);
            text.trim().to_owned()
        };
        let parts: Vec<_> = measured.iter().map(of).collect();
        format!("{subject} {}.", parts.join("; "))
    };
    let mut sentences = vec![
        format!(
            "Redis {}, unmodified, {} of values, {} clients that write all the time, {saves} saves each way, in \
             turns:",
            outcome.redis_version,
            mib(outcome.size_bytes as f64),
            outcome.clients,
        ),
        each("Requests under way at BGSAVE took", &|server| {
            format!("up to {}", ms(value(&HELD_UP, server)))
        }),
        each("Of a thousand writes during a save, one took longer than", &|server| {
            ms(latency_during(server).quantile_ns(0.999) as f64)
        }),
        three("Writes a second before, during and after a save:", &WRITES, thousands, ""),
        three("Processor time of the server for each of them:", &CPU, tenths_us, "\u{a0}µs"),
        each("A save took", &|server| seconds(value(&DURATION, server))),
        each("While it ran, the machine used more memory:", &|server| mib(value(&EXTRA, server))),
        each("Memory on huge pages, at best before a save and at worst after one:", &|server| {
            format!(
                "{} and {}",
                percent(value(&HUGE_BEFORE, server)),
                percent(value(&HUGE_AFTER, server))
            )
        }),
        each("In the end the server held", &|server| mib(value(&RESIDENT_AFTER, server))),
        verified(&outcome.measured),
    ];
    sentences.extend(losses(&measured));
    sentences.extend(stolen(outcome.stolen_share));
    sentences
}

/// The value over all saves, by the figure's first statistic.
fn value(figure: &Figure, measured: &Measured) -> f64 {
    figure.of_all(measured, figure.stats[0]).unwrap_or(f64::NAN)
}

fn latency_during(measured: &Measured) -> Latencies {
    let mut all = Latencies::new();
    measured.busy_saves().for_each(|save| all.merge(&save.during.latencies));
    all
}

fn verified(measured: &[Measured]) -> String {
    let saves = || measured.iter().flat_map(|server| &server.saves);
    let wrong: u64 = saves()
        .flat_map(|save| [save.saved, save.live])
        .map(|violations| violations.wrong_keys + violations.missing_keys + violations.extra_keys)
        .sum();
    let failed: u64 = measured.iter().map(|server| server.failed_requests).sum();
    let number = saves().count();
    if wrong + failed == 0 {
        return format!(
            "All {number} saves were loaded by another server, and every key compared: each holds one instant, \
             and nothing was lost."
        );
    }
    let exact = saves().filter(|save| save.is_exact()).count();
    format!(
        "VIOLATED: {exact} of {number} saves are exact; {wrong} keys are wrong, missing or too many, and {failed} \
         requests failed."
    )
}

/// On a busy host the slowest of many requests waited for the host.
fn stolen(share: f64) -> Option<String> {
    (share > MUCH_STOLEN).then(|| {
        format!(
            "The host took {} of the processors' time meanwhile: some of it is noise.",
            percent(share)
        )
    })
}

/// The figures in which Cowslip is behind the better of the others.
fn losses(measured: &[&Measured]) -> Option<String> {
    let cowslip = measured.iter().find(|server| server.setup.name == COWSLIP)?;
    let others: Vec<_> = measured.iter().filter(|server| server.setup.name != COWSLIP).collect();
    if others.is_empty() {
        return None;
    }
    let mut lost = Vec::new();
    let mut compare = |title: &str, unit: &str, metric: &str, of: &dyn Fn(&Measured) -> f64| {
        let is_rate = unit == "1/s";
        let best = others.iter().map(|server| of(server));
        let best = best.reduce(if is_rate { f64::max } else { f64::min }).unwrap_or(f64::NAN);
        let own = of(cowslip);
        let excess = if is_rate { best / own - 1.0 } else { own / best - 1.0 };
        if excess > TOLERANCE {
            let [own, best] = [own, best].map(|value| of_unit(value, unit, metric));
            lost.push(format!("{title} ({own} instead of {best})"));
        }
    };
    let worse_if_more = [&HELD_UP, &DURATION, &EXTRA, &RESIDENT_AFTER];
    for figure in worse_if_more.into_iter().chain(&CPU).chain(&WRITES) {
        compare(figure.title, figure.unit, figure.metric, &|server| value(figure, server));
    }
    compare("slowest write in a thousand", "ns", "", &|server| {
        latency_during(server).quantile_ns(0.999) as f64
    });
    Some(match lost.is_empty() {
        true => "Cowslip is behind the others in none of these.".to_owned(),
        false => format!("Cowslip is behind the better of the others in: {}.", lost.join(", ")),
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::demo::redis::setup::ServerSetup;

    fn outcome(cowslip_save_ns: u64) -> Outcome {
        let setups = [ServerSetup::stock_4k(), ServerSetup::cowslip(Path::new("cowslip"))];
        let saves_ns = [1_000_000_000, cowslip_save_ns];
        let measured = setups.into_iter().zip(saves_ns);
        let measured = measured.map(|(setup, save_ns)| Measured::example(setup, save_ns));
        Outcome {
            measured: measured.collect(),
            redis_version: "7".to_owned(),
            size_bytes: 4 << 20,
            clients: 2,
            stolen_share: 0.0,
        }
    }

    /// The sentences with spaces that a line may break at.
    fn plain(outcome: &Outcome) -> Vec<String> {
        sentences(outcome).iter().map(|sentence| sentence.replace('\u{a0}', " ")).collect()
    }

    #[test]
    fn what_is_lost_is_said_and_by_how_much() {
        let all = plain(&outcome(2_000_000_000));
        assert!(
            all.contains(
                &"Requests under way at BGSAVE took up to 1.0 ms, with Cowslip up to 1.0 ms."
                    .to_owned()
            )
        );
        assert!(all.contains(&"A save took 1.0 s, with Cowslip 2.0 s.".to_owned()), "{all:?}");
        let lost = all.last().unwrap();
        assert!(lost.contains("time of a save (2.0 s instead of 1.0 s), writes"), "{lost}");
        let none = plain(&outcome(1_010_000_000));
        assert!(none.last().unwrap().ends_with("behind the others in none of these."), "{none:?}");
    }

    #[test]
    fn a_wrong_key_is_what_a_reader_sees() {
        let mut outcome = outcome(1_000_000_000);
        outcome.measured[1].saves[0].saved.wrong_keys = 3;
        let all = sentences(&outcome).join("\n");
        assert!(all.contains("VIOLATED: 1 of 2 saves are exact; 3 keys"), "{all}");
        assert!(!all.contains("nothing was lost"));
        outcome.measured.clear();
        assert!(sentences(&outcome).is_empty() && outcome.is_empty());
    }
}
