//! The changes of series as lines of text.

use cowslip_report::text::printable;

use super::{Found, HistoryArgs, sentences};

pub(super) fn render(found: &[Found], args: &HistoryArgs) -> String {
    let mut lines = Vec::new();
    for one in found {
        let history = &one.history;
        if !lines.is_empty() {
            lines.push(String::new());
        }
        let mark = if one.fails { "worse: " } else { "" };
        lines.push(format!(
            "{}: {mark}{}",
            printable(&history.name),
            sentences::verdict(one, args)
        ));
        for (index, group) in history.groups.iter().enumerate() {
            lines.push(match index {
                0 => {
                    let machine = sentences::machine(&group.machine);
                    format!("  {}, on {machine}", sentences::headline(history))
                }
                _ => format!("  not compared with those: {}", sentences::apart(history, group)),
            });
            let changes = group.changes.iter().rev();
            let sentences = changes.map(|change| sentences::sentence(history, group, change));
            lines.extend(sentences.map(|sentence| format!("    {sentence}")));
            if index == 0 {
                let notes = sentences::notes(history, group, args.alpha);
                lines.extend(notes.iter().map(|note| format!("  note: {note}")));
            }
        }
    }
    lines.iter().map(|line| format!("{line}\n")).collect()
}
