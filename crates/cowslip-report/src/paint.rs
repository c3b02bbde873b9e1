//! Colours of text, for terminals that want them.

use std::env;
use std::io::{self, IsTerminal};

use anstyle::{AnsiColor, Style};

/// Heads of tables, and commands to run.
pub const BOLD: Style = Style::new().bold();
/// Explanations.
pub const DIM: Style = Style::new().dimmed();
/// Working or kept things.
pub const GOOD: Style = AnsiColor::Green.on_default();
/// Missing things that are not needed.
pub const WARN: Style = AnsiColor::Yellow.on_default();
/// Missing or missed things.
pub const BAD: Style = AnsiColor::Red.on_default().bold();

/// The choice of text with or without colours.
#[derive(Clone, Copy, Debug)]
pub struct Paint(bool);

impl Paint {
    /// Text without colours.
    pub const NEVER: Self = Self(false);
    /// Text with colours.
    pub const ALWAYS: Self = Self(true);

    /// Colours if standard output is a terminal, unless `NO_COLOR` is set or `TERM` is `dumb`.
    pub fn of_stdout() -> Self {
        let is_plain = env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
            || env::var_os("TERM").is_some_and(|value| value == "dumb");
        Self(io::stdout().is_terminal() && !is_plain)
    }

    /// Returns `text` in that style, if there are colours.
    pub fn paint(self, style: Style, text: &str) -> String {
        if self.0 { format!("{style}{text}{style:#}") } else { text.to_owned() }
    }
}
