//! The terminal of `cowslip promote top`: a screen of its own while the table is live, and keys.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use cowslip_sys::AsFd;
use cowslip_sys::terminal::{self, KeyByKey};

use crate::commands::signals::Signals;

const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";
const HOME: &str = "\x1b[H";
const CLEAR_TO_LINE_END: &str = "\x1b[K";
const CLEAR_BELOW: &str = "\x1b[J";

/// Columns and lines of a terminal that does not report its size, such as one on a serial line.
const UNKNOWN_SIZE: (usize, usize) = (80, 24);

/// Restores the terminal when dropped.
pub(super) struct Screen {
    /// `None` if standard input is no terminal: then there are no keys.
    keys: Option<KeyByKey>,
}

impl Screen {
    pub(super) fn enter() -> io::Result<Self> {
        let stdin = io::stdin();
        let keys = match stdin.is_terminal() {
            true => Some(KeyByKey::enter(stdin.as_fd().try_clone_to_owned()?)?),
            false => None,
        };
        let screen = Self { keys };
        screen.write(ENTER)?;
        Ok(screen)
    }

    /// Shows as many of the lines as fit.
    pub(super) fn draw(&self, lines: &[String]) -> io::Result<()> {
        let (columns, rows) = match terminal::size(io::stdout().as_fd())? {
            (0, _) | (_, 0) => UNKNOWN_SIZE,
            size => size,
        };
        let mut text = HOME.to_owned();
        for (row, line) in lines.iter().take(rows).enumerate() {
            text.push_str(if row == 0 { "" } else { "\r\n" });
            text.extend(line.chars().take(columns));
            text.push_str(CLEAR_TO_LINE_END);
        }
        text.push_str(CLEAR_BELOW);
        self.write(&text)
    }

    /// Waits for a key, at most this long, or until a signal comes.
    pub(super) fn key(&mut self, signals: &mut Signals, time: Duration) -> io::Result<Option<u8>> {
        let Some(keys) = &self.keys else {
            signals.wait(time)?;
            return Ok(None);
        };
        if !signals.wait_or(time, &[keys.fd()])? {
            return Ok(None);
        }
        // The terminal has gone: the view is no longer visible.
        Ok(Some(keys.key()?.unwrap_or(b'q')))
    }

    fn write(&self, text: &str) -> io::Result<()> {
        let mut out = io::stdout().lock();
        out.write_all(text.as_bytes())?;
        out.flush()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = self.write(LEAVE);
    }
}
