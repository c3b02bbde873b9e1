//! Facts about a trace as a whole: its completeness, and its machine.

use cowslip_sys::units::ByteCount;

use super::scene::Scene;
use crate::format::{self, counted, duration};

/// A name and its value here.
pub(super) struct Fact {
    pub(super) name: String,
    pub(super) text: String,
}

/// A sentence about the trace; bad if something is missing.
pub(super) struct Sentence {
    pub(super) text: String,
    pub(super) is_bad: bool,
}

/// The program traced.
pub(super) fn title(scene: &Scene) -> String {
    let header = &scene.analysis.header;
    let title = header.title();
    if !title.is_empty() {
        return title.split_whitespace().collect::<Vec<_>>().join(" ");
    }
    match scene.spaces.first() {
        Some(space) => space.label.clone(),
        None => "no program".to_owned(),
    }
}

/// The completeness of the trace.
pub(super) fn statement(scene: &Scene) -> Vec<Sentence> {
    let good = |text: String| Sentence { text, is_bad: false };
    let bad = |text: String| Sentence { text, is_bad: true };
    let mut said = Vec::new();
    if scene.is_cut_short {
        said.push(bad(format!("Of this trace {}.", format::CUT_SHORT)));
    }
    let faults = counted(scene.dots.count, "fault");
    said.push(good(format!("{faults} in {}.", duration(scene.duration_ns as f64))));
    said.push(match scene.lost {
        0 => good("No event was lost.".to_owned()),
        lost => {
            let all = lost.saturating_add(scene.events);
            let share = format::percent(lost as f64, all as f64);
            bad(format!("Lost for want of room: {} ({share}).", counted(lost, "event")))
        }
    });
    said.push(match scene.analysis.sampling_period {
        1 => good("Every fault was recorded.".to_owned()),
        period => bad(format!(
            "One fault in {period} was recorded: rates are multiplied by that, counts are not."
        )),
    });
    let drawn = scene.spaces.iter().filter(|space| space.is_drawn).count();
    if drawn < scene.spaces.len() {
        let all = scene.spaces.len();
        said.push(good(match drawn {
            1 => format!("Of {all} programs, the one with the most faults is drawn."),
            _ => format!("Of {all} programs, the {drawn} with the most faults are drawn."),
        }));
    }
    said
}

/// The machine and its settings.
pub(super) fn facts(scene: &Scene) -> Vec<Fact> {
    let header = &scene.analysis.header;
    let machine = &header.machine;
    let cost = |ns: Option<f64>| ns.map(duration).unwrap_or_default();
    let mut facts = vec![
        ("command".to_owned(), header.title()),
        ("kernel".to_owned(), format!("{} {}", machine.kernel_release, machine.kernel_version)),
        ("architecture".to_owned(), machine.architecture.clone()),
        ("processors".to_owned(), format!("{} × {}", machine.cpus, machine.cpu_model)),
        ("memory".to_owned(), ByteCount(machine.memory_bytes).to_string()),
        ("page size".to_owned(), ByteCount(machine.base_page_bytes()).to_string()),
        ("fault of a base page".to_owned(), cost(header.base_fault_ns)),
        ("fault of a huge page".to_owned(), cost(header.huge_fault_ns)),
        ("allocator".to_owned(), header.allocator.clone().unwrap_or_default()),
        ("sources".to_owned(), header.sources.join(", ")),
        ("clock".to_owned(), header.clock.clone()),
    ];
    let latencies = scene.latencies.iter().flat_map(format::latencies);
    facts.extend(latencies.map(|(kind, times)| (format!("latency of {kind}"), times)));
    let settings = [
        ("transparent_hugepage/", &machine.thp),
        ("", &machine.sysctl),
        ("environment ", &header.environment),
    ];
    for (prefix, settings) in settings {
        let named = settings.iter().map(|(name, value)| (format!("{prefix}{name}"), value.clone()));
        facts.extend(named);
    }
    facts.retain(|(_, text)| !text.trim().is_empty());
    facts.into_iter().map(|(name, text)| Fact { name, text }).collect()
}
