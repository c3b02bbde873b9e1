//! Progress of a long run, shown on standard error.

use std::io::{self, IsTerminal, Write};

use indicatif::{ProgressBar, ProgressFinish, ProgressStyle};

const SPINNER: &str = "{spinner} {msg} {elapsed}";
const BAR: &str = "{msg} {wide_bar} {pos}/{len} {eta}";
const BYTES: &str =
    "{msg} {wide_bar} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} {eta}";

/// A spinner or bar on a terminal, one plain line per phase elsewhere.
///
/// It redraws only on a call: a thread of its own would disturb the measurement.
#[derive(Debug)]
pub struct Progress {
    terminal: bool,
    has_lines: bool,
    /// Prefix of the name of each phase.
    stage: String,
    bar: ProgressBar,
}

impl Default for Progress {
    fn default() -> Self {
        Self::new()
    }
}

impl Progress {
    /// A spinner or bar if standard error is a terminal that can show one, else lines.
    pub fn new() -> Self {
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        let terminal = io::stderr().is_terminal() && !dumb;
        Self { terminal, has_lines: true, stage: String::new(), bar: ProgressBar::hidden() }
    }

    /// For work of a few seconds: shows nothing except on a terminal.
    pub fn brief() -> Self {
        Self { has_lines: false, ..Self::new() }
    }

    /// Puts the progress of the whole, such as `[2/6]`, before the name of each further phase.
    pub fn stage(&mut self, stage: &str) {
        self.stage = format!("{stage} ");
    }

    /// Ends the phase before and begins the one called `name`.
    pub fn phase(&mut self, name: &str) {
        let name = &format!("{}{name}", self.stage);
        self.bar.finish_and_clear();
        if !self.terminal {
            if self.has_lines {
                // A reader that went away is no error.
                let _ = io::stderr().write_all(format!("{name}\n").as_bytes());
            }
            return;
        }
        self.bar = ProgressBar::no_length()
            .with_style(style(SPINNER))
            .with_message(name.to_owned())
            .with_finish(ProgressFinish::AndClear);
        self.bar.tick();
    }

    /// Gives the phase another name, on a terminal.
    pub fn rename(&mut self, name: &str) {
        self.bar.set_message(format!("{}{name}", self.stage));
    }

    /// `position` of `length` steps of this phase are done.
    pub fn set(&self, position: u64, length: u64) {
        self.advance(BAR, position, length);
    }

    /// Like [`Self::set`], in bytes, with their rate.
    pub fn set_bytes(&self, position: u64, length: u64) {
        self.advance(BYTES, position, length);
    }

    fn advance(&self, template: &str, position: u64, length: u64) {
        if self.bar.length() != Some(length) {
            self.bar.set_style(style(template));
            self.bar.set_length(length);
        }
        self.bar.set_position(position);
    }

    /// Ends the last phase; nothing stays on the terminal.
    pub fn finish(self) {
        self.bar.finish_and_clear();
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).expect("the templates are constants")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_templates_parse_and_phases_follow_each_other() {
        let mut progress = Progress { terminal: true, ..Progress::new() };
        progress.stage("[1/2]");
        progress.phase("filling");
        progress.set(1, 2);
        progress.phase("saving");
        progress.set_bytes(2, 2);
        progress.finish();
    }
}
