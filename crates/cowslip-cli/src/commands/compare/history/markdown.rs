//! The changes of series as Markdown, for comments on a change.

use cowslip_report::text::printable;

use super::{Found, HistoryArgs, said};
use crate::commands::compare::result::format;

pub(super) fn render(found: &[Found], args: &HistoryArgs) -> String {
    let mut text = String::from("### Performance history\n\n");
    for one in found {
        let mark = if one.fails { "**worse**: " } else { "" };
        let name = escaped(&one.history.name);
        text += &format!("- {name}: {mark}{}\n", escaped(&said::verdict(one, args)));
    }
    let mut rows = String::new();
    for one in found {
        let history = &one.history;
        for group in &history.groups {
            for change in group.changes.iter().rev() {
                let cells = [
                    escaped(&history.name),
                    escaped(&said::commits(group, change).unwrap_or_default()),
                    escaped(&said::entry(&group.points[change.at])),
                    change.change.map_or("–".to_owned(), |it| format::percent(it.value)),
                    said::interval(change).unwrap_or_else(|| "–".to_owned()),
                    format::p(change.p),
                    escaped(&said::facts(change).join("; ")),
                ];
                rows += &format!("| {} |\n", cells.join(" | "));
            }
        }
    }
    if !rows.is_empty() {
        text += "\n| series | commits | since | step | 95 % interval | p | with it |\n";
        text += "| --- | --- | --- | ---: | --- | ---: | --- |\n";
        text += &rows;
    }
    for one in found {
        let history = &one.history;
        let name = escaped(&history.name);
        for note in said::notes(history, &history.groups[0], args.alpha) {
            text += &format!("\n{name}: {}.\n", escaped(&note));
        }
        for group in &history.groups[1..] {
            let apart = escaped(&said::apart(history, group));
            text += &format!("\n{name}: not compared with those: {apart}.\n");
        }
    }
    text
}

/// Text that Markdown shows as it is.
fn escaped(text: &str) -> String {
    let mut all = String::new();
    for it in printable(text).chars() {
        match it {
            '<' => all += "&lt;",
            '&' => all += "&amp;",
            '\\' | '|' | '*' | '_' | '`' | '[' | ']' | '#' | '@' => {
                all.push('\\');
                all.push(it);
            }
            _ => all.push(it),
        }
    }
    all
}
