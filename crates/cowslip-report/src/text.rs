//! Columns and lines of plain text.

/// The longest line.
pub const WIDTH: usize = 99;
/// The space before each column.
pub const INDENT: &str = "  ";
const NAME_WIDTH: usize = 24;

/// Aligns rows of cells as indented lines of equal width.
pub fn align(rows: &[Vec<String>]) -> Vec<String> {
    let columns = rows.first().map_or(0, Vec::len);
    let widths: Vec<usize> =
        (0..columns).map(|column| widest(rows.iter().map(|row| &row[column]))).collect();
    let pad = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{INDENT}{cell:<width$}"));
        cells.collect()
    };
    rows.iter().map(pad).collect()
}

/// The width of the widest cell.
pub fn widest<'a>(cells: impl IntoIterator<Item = &'a String>) -> usize {
    cells.into_iter().map(|cell| width(cell)).max().unwrap_or(0)
}

/// The number of columns that a text takes.
pub fn width(text: &str) -> usize {
    text.chars().count()
}

/// A name that can neither break a column nor command the terminal.
pub fn clip(name: &str) -> String {
    let name = printable(name);
    if width(&name) <= NAME_WIDTH {
        return name;
    }
    name.chars().take(NAME_WIDTH - 1).chain(['…']).collect()
}

/// A number of things; `one` is the word for one of them.
pub fn count(number: usize, one: &str) -> String {
    let plural = match one.strip_suffix("ss") {
        _ if number == 1 => "",
        Some(_) => "es",
        None => "s",
    };
    format!("{number} {one}{plural}")
}

/// Cuts a line to the longest width.
pub fn fit(line: &str) -> String {
    let line = line.trim_end();
    match width(line) <= WIDTH {
        true => line.to_owned(),
        false => line.chars().take(WIDTH - 1).chain(['…']).collect(),
    }
}

/// Replaces control characters, which could command the terminal.
pub fn printable(text: &str) -> String {
    text.chars()
        .map(|character| if character.is_control() { '\u{fffd}' } else { character })
        .collect()
}

/// Breaks `text` between words; the lines after the first begin with `indent` spaces.
pub fn wrap(text: &str, indent: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in printable(text).split(' ') {
        let line = lines.last_mut().expect("there is always one");
        if width(line) + width(word) >= WIDTH && width(line) > indent {
            lines.push(" ".repeat(indent) + word + " ");
        } else {
            line.push_str(word);
            line.push(' ');
        }
    }
    lines.iter().map(|line| line.trim_end().to_owned()).collect()
}
