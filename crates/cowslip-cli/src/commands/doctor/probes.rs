//! Each probe of the doctor's: its answer, its cost here, and the command that enables it.

use cowslip::host::{Answer, Need, Report};
use cowslip_report::{BAD, BOLD, DIM, GOOD, Paint, WARN};

/// Columns of one line, and where the lines below it begin.
const NAME: usize = 22;
const ANSWER: usize = 13;
const COST: usize = 24;
const WIDTH: usize = 99;

/// A table of the probes, each with its cost here, its purpose and the command that enables it.
pub(super) fn table(report: &Report, paint: Paint) -> String {
    let heads = format!("{:NAME$}{:ANSWER$}{:COST$}what for", "capability", "answer", "cost here");
    let mut lines = vec![paint.paint(BOLD, &heads)];
    let mut told = Vec::new();
    for probe in &report.capabilities {
        let hurts = match probe.need {
            Need::Extra => false,
            Need::HugePages => !report.has_huge_pages(),
            _ => true,
        };
        let (answer, code) = match &probe.answer {
            Answer::Available => ("yes".to_owned(), GOOD),
            Answer::Unsupported => ("no".to_owned(), if hurts { BAD } else { WARN }),
            Answer::Denied { .. } => ("denied".to_owned(), if hurts { BAD } else { WARN }),
            Answer::Unknown { errno: 0 } => ("failed".to_owned(), BAD),
            Answer::Unknown { errno } => (format!("failed ({errno})"), BAD),
        };
        let answer = paint.paint(code, &format!("{answer:ANSWER$}"));
        let cost = probe.cost.map_or(String::new(), |cost| cost.to_string());
        lines.push(format!("{:NAME$}{answer}{cost:COST$}{}", probe.name, probe.what_for));

        if !probe.detail.is_empty() && (probe.cost.is_none() || probe.need != Need::Extra) {
            lines.extend(below(&probe.detail).map(|line| paint.paint(DIM, &line)));
        }
        if let Answer::Denied { hint } = &probe.answer
            && is_new(&mut told, hint)
        {
            lines.extend(below(hint));
        }
        if let Some(fix) = &probe.fix
            && is_new(&mut told, fix)
        {
            lines.push(format!("{:NAME$}run: {}", "", paint.paint(BOLD, fix)));
        }
    }
    lines.join("\n") + "\n"
}

/// Returns true if this advice is new: each is given once.
fn is_new<'a>(told: &mut Vec<&'a str>, text: &'a str) -> bool {
    let is_new = !told.contains(&text);
    told.push(text);
    is_new
}

fn below(text: &str) -> impl Iterator<Item = String> {
    wrap(text, WIDTH - NAME).map(|line| format!("{:NAME$}{line}", ""))
}

/// Breaks `text` between words, but not inside a command in backquotes.
fn wrap(text: &str, width: usize) -> impl Iterator<Item = String> {
    let mut lines = vec![String::new()];
    let mut is_command = false;
    for word in text.split(' ') {
        let line = lines.last_mut().expect("there is always one");
        let length = line.chars().count() + 1 + word.chars().count();
        if line.is_empty() {
            line.push_str(word);
        } else if length > width && !is_command {
            lines.push(word.to_owned());
        } else {
            *line += &format!(" {word}");
        }
        is_command ^= word.matches('`').count() % 2 == 1;
    }
    lines.into_iter()
}

#[cfg(test)]
mod tests {
    use cowslip::host;

    use super::*;

    #[test]
    fn every_probe_has_its_line() {
        let report = host::report();
        let (plain, colour) = (table(&report, Paint::NEVER), table(&report, Paint::ALWAYS));
        for probe in &report.capabilities {
            let mut told = plain.lines().filter(|line| line.starts_with(probe.name)).peekable();
            assert!(told.peek().is_some(), "{}: {plain}", probe.name);
            assert!(told.all(|line| line.chars().count() <= WIDTH), "{plain}");
        }
        assert!(!plain.contains('\x1b') && colour.contains('\x1b'));
    }

    #[test]
    fn a_command_stays_on_one_line() {
        let lines: Vec<_> = wrap("run the command `echo advise > file` as root", 12).collect();
        assert_eq!(lines, ["run the", "command", "`echo advise > file`", "as root"]);
    }
}
