//! The report as text, on a terminal or in a log.

use std::io;

use super::groups::{Group, Line, heading, published, summaries};
use super::results::{Ratio, Report};
use cowslip_report::text::{INDENT, WIDTH, align, clip, printable, widest, width, wrap};
use cowslip_report::{BAD, BOLD, DIM, GOOD, Paint};
use cowslip_report::{sink, units};

const UNFIT: &str =
    "‡ measured while the host was unfit: it took processor time, or free memory back";
/// Prints `report` to standard output, in colour if that is a terminal that wants it.
///
/// # Errors
/// Like [`sink::print`].
pub fn print(report: &Report) -> io::Result<()> {
    sink::print(&render(report, Paint::of_stdout()))
}

fn render(report: &Report, paint: Paint) -> String {
    let groups = summaries(report);
    let mut lines = Vec::new();
    for group in &groups {
        push_group(&mut lines, group, paint);
    }
    if !report.ratios.is_empty() {
        push_ratios(&mut lines, &report.ratios, paint);
    }
    if report.rows.iter().any(|row| published(&row.system)) {
        lines.push("† published figures, not measured here".to_owned());
    }
    let unfit_lines = groups.iter().flat_map(|group| &group.lines).any(Line::unfit);
    if unfit_lines || report.ratios.iter().any(|ratio| ratio.host_fit == Some(false)) {
        lines.push(UNFIT.to_owned());
    }
    for note in &report.notes {
        lines.extend(wrap(&format!("note: {note}"), INDENT.len()));
    }
    lines.push(summary(&groups, &report.ratios));
    lines.join("\n") + "\n"
}

fn push_group(lines: &mut Vec<String>, group: &Group<'_>, paint: Paint) {
    let names = align(&names(group));
    let columns = columns(group);
    let mut end = width(&names[0]);
    let ends = columns.iter().map(|cells| {
        end += column_width(cells);
        end
    });
    let fitting = ends.take_while(|end| *end <= WIDTH).count();

    let mut title = paint.paint(BOLD, &clip(group.metric));
    if fitting < columns.len() {
        title += &format!(" ({} more columns in --json)", columns.len() - fitting);
    }
    lines.push(title);
    let texts = names.iter().enumerate().map(|(index, names)| {
        let cells = columns[..fitting].iter().map(|column| {
            let width = column_width(column);
            format!("{:>width$}", column[index])
        });
        names.to_owned() + &cells.collect::<String>()
    });
    let mut texts = texts.collect::<Vec<_>>().into_iter();
    lines.extend(texts.next().map(|heads| paint.paint(DIM, &heads)));
    for ((line, text), names) in group.lines.iter().zip(texts).zip(&names[1..]) {
        if line.measured() {
            lines.push(text);
        }
        if let Some(why) = line.skipped {
            let text = format!("{}  skipped: {why}", names.trim_end());
            let wrapped = wrap(&text, 2 * INDENT.len());
            lines.extend(wrapped.iter().map(|text| paint.paint(DIM, text)));
        }
    }
    lines.push(String::new());
}

/// The left part of the heading and of each line: the measured things.
fn names(group: &Group<'_>) -> Vec<Vec<String>> {
    let name = |line: &Line<'_>| {
        let published = if published(line.system) { " †" } else { "" };
        let unfit = if line.unfit() { " ‡" } else { "" };
        let size = line.size_bytes.map(units::size).unwrap_or_default();
        [clip(line.system) + published + unfit, size, clip(line.variant.unwrap_or_default())]
    };
    let heads = ["system", "size", "variant"].map(str::to_owned);
    let used = [true, group.has_size(), group.has_variant()];
    let pick = |cells: [String; 3]| {
        cells.into_iter().zip(used).filter_map(|(cell, used)| used.then_some(cell)).collect()
    };
    [heads].into_iter().chain(group.lines.iter().map(name)).map(pick).collect()
}

/// The right part, column by column with its heading: the results.
fn columns(group: &Group<'_>) -> Vec<Vec<String>> {
    let stats = group.stats.iter().filter(|stat| **stat != "mean" || group.stats.len() == 1);
    let of_stat = stats.map(|stat| {
        let cell = |line: &Line<'_>| line.human(stat).unwrap_or_else(|| "–".to_owned());
        column(heading(stat), group.lines.iter().map(cell))
    });
    let n = |line: &Line<'_>| line.n().map_or("–".to_owned(), |n| n.to_string());
    let of_n = group.has_n().then(|| column("n", group.lines.iter().map(n)));
    of_stat.chain(of_n).collect()
}

fn column(heading: &str, cells: impl Iterator<Item = String>) -> Vec<String> {
    [heading.to_owned()].into_iter().chain(cells).collect()
}

fn column_width(cells: &[String]) -> usize {
    INDENT.len() + widest(cells).max(7)
}

fn push_ratios(lines: &mut Vec<String>, ratios: &[Ratio], paint: Paint) {
    lines.push(paint.paint(BOLD, "ratios"));
    let cells: Vec<_> = ratios
        .iter()
        .map(|ratio| {
            let value = ratio.value.map_or("–".to_owned(), |value| units::digits(value, 4));
            let unfit = if ratio.host_fit == Some(false) { " ‡" } else { "" };
            vec![printable(&ratio.name) + unfit, value, ratio.bound()]
        })
        .collect();
    for (ratio, text) in ratios.iter().zip(align(&cells)) {
        let code = match ratio.holds {
            Some(true) => GOOD,
            Some(false) => BAD,
            None => DIM,
        };
        let line = format!("{text}  {}", paint.paint(code, ratio.verdict()));
        lines.push(line.trim_end().to_owned());
    }
    lines.push(String::new());
}

fn summary(groups: &[Group<'_>], ratios: &[Ratio]) -> String {
    let lines = || groups.iter().flat_map(|group| &group.lines);
    let measured = lines().filter(|line| line.measured()).count();
    let skipped = lines().filter(|line| line.skipped.is_some()).count();
    let promises = ratios.iter().filter(|ratio| ratio.holds.is_some()).count();
    let kept = ratios.iter().filter(|ratio| ratio.holds == Some(true)).count();
    let mut text = format!("{measured} measured, {skipped} skipped");
    if promises > 0 {
        text += &format!("; {kept} of {promises} promises hold");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::example;
    use crate::report::results::Row;

    #[test]
    fn the_example_as_text() {
        let text = render(&example::report(), Paint::NEVER);
        assert_eq!(text, include_str!("example.txt"), "\n{text}");
    }

    #[test]
    fn hostile_and_endless_text_stays_in_its_column() {
        let mut report = example::report();
        report.skip("a\x1b[31m\nb", "pause", "word ".repeat(60));
        for column in 0..20 {
            let stat = format!("column {column}");
            report.row(Row::new(&"r".repeat(200), "pause", &stat, 1.0, "count"));
        }
        let text = render(&report, Paint::NEVER);
        assert!(!text.contains('\x1b') && text.contains("more columns in --json"), "{text}");
        assert!(text.lines().all(|line| width(line) < 100), "{text}");
        assert!(render(&report, Paint::ALWAYS).contains("\x1b[1m\x1b[31mMISSED\x1b[0m"));
    }
}
