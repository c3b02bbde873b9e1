//! Tables of mappings and callers, as wide as the terminal, for reports and diffs.

use std::io::{self, IsTerminal};
use std::sync::Arc;

use cowslip_report::text::{align, fit, printable};

/// The number of a stack's functions that are shown.
pub(super) const FRAMES: usize = 5;

/// A table: its title, its heads and its rows; nothing without rows.
pub(super) fn table(title: &str, heads: &[&str], rows: Vec<Vec<String>>) -> Vec<String> {
    if rows.is_empty() {
        return Vec::new();
    }
    let heads: Vec<String> = heads.iter().map(|head| (*head).to_owned()).collect();
    let all: Vec<_> = [heads].into_iter().filter(|row| !row.is_empty()).chain(rows).collect();
    let mut lines = vec![title.to_owned()];
    lines.extend(align(&all));
    lines.push(String::new());
    lines
}

/// The innermost functions, after a word or two; nothing without functions.
pub(super) fn callers(before: &str, names: &[Arc<str>]) -> String {
    let shown: Vec<String> = names.iter().take(FRAMES).map(|name| printable(name)).collect();
    let more = if names.len() > FRAMES { " < …" } else { "" };
    if shown.is_empty() { String::new() } else { format!("{before}{}{more}", shown.join(" < ")) }
}

/// The shown part of a line: as much as a terminal has room for, or all of it to a file or a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Extent {
    Terminal,
    Whole,
}

impl Extent {
    pub(super) fn of_stdout() -> Self {
        if io::stdout().is_terminal() { Self::Terminal } else { Self::Whole }
    }

    /// The name, or the end of a path where there is little room.
    pub(super) fn name(self, name: &str) -> String {
        match name.rsplit_once('/') {
            Some((folder, file))
                if self == Self::Terminal && name.starts_with('/') && !folder.is_empty() =>
            {
                format!("…/{file}")
            }
            _ => name.to_owned(),
        }
    }

    /// The lines as one text.
    pub(super) fn text(self, lines: &[String]) -> String {
        let line = |line: &String| match self {
            Self::Terminal => fit(line) + "\n",
            Self::Whole => line.trim_end().to_owned() + "\n",
        };
        lines.iter().map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_terminal_has_lines_and_names_cut() {
        let path = "/usr/lib/x86_64-linux-gnu/libc.so.6";
        assert_eq!(Extent::Terminal.name(path), "…/libc.so.6");
        assert_eq!(Extent::Whole.name(path), path);
        assert_eq!(Extent::Terminal.name("8 MiB anonymous maps"), "8 MiB anonymous maps");
        let long = ["x".repeat(150)];
        assert_eq!(Extent::Whole.text(&long), long[0].clone() + "\n");
        let cut = Extent::Terminal.text(&long);
        assert!(cut.chars().count() == 100 && cut.ends_with("…\n"), "{cut}");
    }
}
