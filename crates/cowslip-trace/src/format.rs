//! Numbers and mappings in sentences.

use cowslip_sys::units::ByteCount;

use crate::analysis::{Group, MappingIdentity};
use crate::attribute::Place;
use crate::model::{Latencies, LatencyBucket, Machine, Severity};
use crate::thp::{self, Kind};

/// The notice about a trace without its end.
pub const CUT_SHORT: &str = "the end is missing: the recorder was killed, or the file was cut";

/// A number with separated thousands.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A number of things: `1 fault`, `2 faults`.
pub fn counted(number: u64, thing: &str) -> String {
    format!("{} {thing}{}", count(number), if number == 1 { "" } else { "s" })
}

/// The kernel's histogram: for each kind of fault its name, and the faults by the time that they took.
pub fn latencies(latencies: &Latencies) -> Vec<(String, String)> {
    let row = |buckets: &[LatencyBucket]| {
        let LatencyBucket { in_user_mode, severity, .. } = buckets[0];
        let severity = if severity == Severity::Major { "major" } else { "minor" };
        let mode = if in_user_mode { "user" } else { "kernel" };
        let time = |bucket: &LatencyBucket| {
            format!("{} up to {}", count(bucket.faults), duration(bucket.up_to_ns as f64))
        };
        let times: Vec<_> = buckets.iter().map(time).collect();
        (format!("{severity} faults in {mode} mode"), times.join(", "))
    };
    let mut rows: Vec<_> = latencies.by_kind().map(row).collect();
    if latencies.uncounted > 0 {
        rows.push((
            "faults without a latency".into(),
            format!("at most {}", count(latencies.uncounted)),
        ));
    }
    rows
}

/// A duration with two or three digits.
pub fn duration(ns: f64) -> String {
    let (value, unit) = match ns {
        ns if ns < 999.5 => return format!("{ns:.0} ns"),
        ns if ns < 999_500.0 => (ns / 1e3, "µs"),
        ns if ns < 999_500_000.0 => (ns / 1e6, "ms"),
        ns => (ns / 1e9, "s"),
    };
    if value < 9.95 { format!("{value:.1} {unit}") } else { format!("{value:.0} {unit}") }
}

/// A part as a percentage of the whole.
pub fn percent(part: f64, whole: f64) -> String {
    let share = if whole > 0.0 { part / whole * 100.0 } else { 0.0 };
    if share < 9.95 { format!("{share:.1} %") } else { format!("{share:.0} %") }
}

/// The setting of transparent huge pages on a machine, and the smaller sizes that are enabled.
///
/// ```
/// use cowslip_trace::format::huge_pages;
/// use cowslip_trace::model::Machine;
/// let mut machine = Machine::default();
/// assert_eq!(huge_pages(&machine), "unknown");
/// machine.thp.insert("enabled".into(), "always [madvise] never".into());
/// machine.thp.insert("hugepages-64kB/enabled".into(), "[always] inherit madvise never".into());
/// machine.thp.insert("shmem_enabled".into(), "always within_size advise [never] deny force".into());
/// assert_eq!(huge_pages(&machine), "madvise, 64 KiB always; shared memory never");
/// ```
pub fn huge_pages(machine: &Machine) -> String {
    let of = |kind| {
        let largest = thp::setting(machine, kind)?;
        let sizes = thp::smaller_sizes(machine, kind).into_iter().map(|(size, word)| {
            format!(", {} {word}", ByteCount(machine.base_page_bytes() << size))
        });
        Some(largest.to_owned() + &sizes.collect::<String>())
    };
    let shared =
        of(Kind::Shared).map_or_else(String::new, |setting| format!("; shared memory {setting}"));
    of(Kind::Anonymous).unwrap_or_else(|| "unknown".into()) + &shared
}

/// The mappings of a group, as the subject of a sentence.
pub fn mappings(group: &Group) -> String {
    let MappingIdentity { place, size_bytes, .. } = &group.identity;
    let is_exact = |size: &u64| group.mappings.checked_mul(*size) == Some(group.mapped_bytes);
    let size = size_bytes.map(|size| match is_exact(&size) {
        true => ByteCount(size).to_string(),
        false => format!("{} to {}", ByteCount(size / 2), ByteCount(size)),
    });
    if group.identity.is_arena() {
        return "Cowslip's arenas".into();
    }
    let maps = if group.mappings == 1 { "map" } else { "maps" };
    match (place, size) {
        (Place::Anonymous, Some(size)) => format!("{size} anonymous {maps}"),
        (Place::Shared, Some(size)) => format!("{size} shared {maps}"),
        (Place::Named(name), Some(size)) => format!("{size} {maps} {name}"),
        (Place::Hugetlb, Some(size)) => format!("{size} hugetlb {maps}"),
        (Place::Heap, _) => "the heap".into(),
        (Place::Stack, _) => "the stack".into(),
        (Place::ThreadStack, _) => "threads' stacks".into(),
        (place, _) => place.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        assert_eq!(count(0), "0");
        assert_eq!(count(1_234_567), "1,234,567");
        assert_eq!(counted(1, "fault"), "1 fault");
        assert_eq!(duration(486.0), "486 ns");
        assert_eq!(duration(9_940.0), "9.9 µs");
        assert_eq!(duration(999_600.0), "1.0 ms");
        assert_eq!(duration(12e9), "12 s");
        assert_eq!(percent(1.0, 3.0), "33 %");
        assert_eq!(percent(1.0, 0.0), "0.0 %");
    }
}
