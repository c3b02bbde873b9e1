//! What a report and a diff have in common.

use std::sync::Arc;

use crate::output::text::{align, fit, printable};

/// Functions of a stack that are shown.
const FRAMES: usize = 5;

/// A table: what it is about, its heads and its rows; nothing without rows.
pub(super) fn table(title: &str, heads: &[&str], rows: Vec<Vec<String>>) -> Vec<String> {
    if rows.is_empty() {
        return Vec::new();
    }
    let heads: Vec<String> = heads.iter().map(|head| (*head).to_owned()).collect();
    let all: Vec<_> = [heads].into_iter().filter(|it| !it.is_empty()).chain(rows).collect();
    let mut lines = vec![title.to_owned()];
    lines.extend(align(&all));
    lines.push(String::new());
    lines
}

/// The innermost functions, after a word or two; nothing of nobody.
pub(super) fn callers(before: &str, names: &[Arc<str>]) -> String {
    let shown: Vec<String> = names.iter().take(FRAMES).map(|name| printable(name)).collect();
    let more = if names.len() > FRAMES { " < …" } else { "" };
    if shown.is_empty() { String::new() } else { format!("{before}{}{more}", shown.join(" < ")) }
}

/// The lines as one text.
pub(super) fn joined(lines: &[String]) -> String {
    lines.iter().map(|line| fit(line) + "\n").collect()
}
