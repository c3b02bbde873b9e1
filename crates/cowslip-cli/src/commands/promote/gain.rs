//! The measured gain of a process, for people.

use cowslip::units::ByteCount;
use cowslip_promote::{Measurement, UnitOfWork, Verdict};

/// The result for people.
pub(super) fn sentence(name: &str, measurement: &Measurement) -> String {
    let unit = match measurement.unit {
        Some(UnitOfWork::Time) => "at its load",
        Some(UnitOfWork::Instructions) => "for an instruction",
        Some(UnitOfWork::Counter) | None => "for a unit of work",
    };
    let size = |bytes| ByteCount(bytes).to_string();
    let sample = format!(
        "with {} of {} dense huge",
        size(measurement.sample_bytes),
        size(measurement.dense_bytes)
    );
    let change = change(measurement);
    let end = match (measurement.verdict, measurement.huge_bytes) {
        (Verdict::Gain, _) => format!("{} more; kept", size(measurement.added_bytes)),
        (_, 0) => "split again".to_owned(),
        (_, left) => format!("{} stay huge, as a child shares them", size(left)),
    };
    match (measurement.verdict, change) {
        (Verdict::Unclear(why), None) => format!("{name}: cannot tell: {}", why.sentence()),
        (Verdict::Unclear(why), Some(change)) => {
            format!("{name}: cannot tell: {}: {change} {unit}, {sample}; {end}", why.sentence())
        }
        (Verdict::NoGain, change) => {
            let change = change.unwrap_or_default();
            format!("{name}: no gain: {change} {unit}, {sample}; {end}")
        }
        (Verdict::Gain, change) => {
            format!("{name}: {} {unit}, {sample}, {end}", change.unwrap_or_default())
        }
    }
}

/// The change of processor time, with its interval.
fn change(measurement: &Measurement) -> Option<String> {
    let change = measurement.change_percent?;
    let word = if change.value < 0.0 { "less" } else { "more" };
    let sign = if change.value < 0.0 { -1.0 } else { 1.0 };
    let range = change.interval.map(|(low, high)| {
        let (from, to) = if sign < 0.0 { (-high, -low) } else { (low, high) };
        format!(" ({from:.1} to {to:.1})")
    });
    Some(format!("{:.1} % {word} processor{}", change.value.abs(), range.unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use cowslip_compare::stats::Estimate;

    #[test]
    fn the_result_is_one_sentence() {
        let measured = |verdict, value, huge_bytes| Measurement {
            verdict,
            change_percent: Some(Estimate { value, interval: Some((value - 4.0, value + 4.0)) }),
            saved_ns: None,
            unit: Some(UnitOfWork::Counter),
            blocks: 8,
            void_blocks: 0,
            dense_bytes: 256 << 20,
            sample_bytes: 128 << 20,
            added_bytes: 0,
            huge_bytes,
        };
        let gain = sentence("redis (3)", &measured(Verdict::Gain, -11.0, 128 << 20));
        let wanted = "redis (3): 11.0 % less processor (7.0 to 15.0) for a unit of work, with 128 MiB of \
                      256 MiB dense huge, 0 B more; kept";
        assert_eq!(gain, wanted);
        let none = sentence("redis (3)", &measured(Verdict::NoGain, 1.0, 0));
        assert!(none.contains("no gain: 1.0 % more processor (-3.0 to 5.0)"), "{none}");
        assert!(none.ends_with("split again"), "{none}");
    }
}
