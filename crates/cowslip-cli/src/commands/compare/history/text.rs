//! The changes of series as lines of text.

use cowslip_report::text::printable;

use super::{Found, HistoryArgs, said};

pub(super) fn render(found: &[Found], args: &HistoryArgs) -> String {
    let mut lines = Vec::new();
    for one in found {
        let history = &one.history;
        if !lines.is_empty() {
            lines.push(String::new());
        }
        let mark = if one.fails { "worse: " } else { "" };
        lines.push(format!("{}: {mark}{}", printable(&history.name), said::verdict(one, args)));
        for (index, group) in history.groups.iter().enumerate() {
            lines.push(match index {
                0 => {
                    let machine = said::machine(&group.machine);
                    format!("  {}, on {machine}", said::headline(history))
                }
                _ => format!("  not compared with those: {}", said::apart(history, group)),
            });
            let changes = group.changes.iter().rev();
            lines.extend(changes.map(|it| format!("    {}", said::sentence(history, group, it))));
            if index == 0 {
                let notes = said::notes(history, group, args.alpha);
                lines.extend(notes.iter().map(|note| format!("  note: {note}")));
            }
        }
    }
    lines.iter().map(|line| format!("{line}\n")).collect()
}
