//! The verdict in a line, and the uses that work here.

use cowslip::host::{Report, Standing};
use cowslip_report::{BAD, BOLD, DIM, GOOD, Paint, WARN};

use super::uses::{Use, Works};
use crate::commands::advice;

/// Columns of one line.
const NAME: usize = 32;
const WORKS: usize = 10;

/// The first line of the summary.
pub(super) fn verdict(report: &Report, uses: &[Use]) -> String {
    let count = |works| uses.iter().filter(|usage| usage.works == works).count();
    let (yes, partly, no) = (count(Works::Yes), count(Works::InPart), count(Works::No));
    let engine = match report.standing() {
        Standing::Full if yes == uses.len() => return "Cowslip works here in full.".to_owned(),
        Standing::Full => "in full",
        Standing::Partly | Standing::Denied if yes + partly > 1 => "in part",
        // The sentence names the missing capability.
        _ => return report.sentence(),
    };
    let mut parts = vec![format!("{yes} work")];
    for (number, words) in [(partly, "in part"), (no, "not")] {
        if number > 0 {
            parts.push(format!("{number} {words}"));
        }
    }
    format!("Cowslip's engine works here {engine}; of {} uses {}.", uses.len(), parts.join(", "))
}

pub(super) fn summary(report: &Report, uses: &[Use], paint: Paint) -> String {
    let code = if report.standing() == Standing::Full { GOOD } else { BAD };
    let mut lines = vec![paint.paint(code, &verdict(report, uses)), String::new()];
    let mut told: Vec<&str> = Vec::new();
    for usage in uses {
        let code = match usage.works {
            Works::Yes => GOOD,
            Works::InPart => WARN,
            Works::No => BAD,
        };
        let works = paint.paint(code, &format!("{:WORKS$}", usage.works.words()));
        lines.push(format!("  {:NAME$}{works}{}", usage.name, usage.by));
        let below = |text: &str| format!("  {:NAME$}{:WORKS$}{text}", "", "");
        if !usage.why.is_empty() {
            lines.push(below(&paint.paint(DIM, &usage.why)));
        }
        for fix in &usage.fixes {
            match told.contains(&fix.as_str()) {
                true => lines.push(below("run the same")),
                false => lines.push(below(&paint.paint(BOLD, &advice(fix)))),
            }
            told.push(fix);
        }
    }
    lines.push(String::new());
    lines.push(
        "cowslip doctor --verbose shows each probe, what it costs here, and what it is for."
            .to_owned(),
    );
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use cowslip::host;

    use super::*;

    fn a_use(works: Works, fix: &str) -> Use {
        let (name, by, why) = ("this", "cowslip this", "a reason".to_owned());
        Use { name, by, works, why, fixes: vec![fix.to_owned()] }
    }

    #[test]
    fn the_verdict_comes_first_and_counts() {
        let mut report = host::report();
        report.capabilities.clear();
        assert_eq!(verdict(&report, &[]), "Cowslip works here in full.");
        let uses = [a_use(Works::Yes, "a"), a_use(Works::InPart, "a"), a_use(Works::No, "b")];
        let said = "Cowslip's engine works here in full; of 3 uses 1 work, 1 in part, 1 not.";
        let text = summary(&report, &uses, Paint::NEVER);
        assert_eq!(text.lines().next(), Some(said));
        assert_eq!(text.matches("run: a").count(), 1, "each command is told once: {text}");
        assert!(summary(&report, &uses, Paint::ALWAYS).contains('\x1b') && !text.contains('\x1b'));
    }
}
