//! A record of looks and outcomes: JSON Lines, one event a line.

use std::io::{BufRead, Write};

use cowslip_sys::error::{Error, ErrorKind, Result, errno_of};
use cowslip_sys::units::page_size_bytes;
use serde::{Deserialize, Serialize};

use crate::model::{ActionOutcome, Look, Settings};

/// The schema of the lines, named in the first one.
pub const SCHEMA: &str = "cowslip.promote.record/1";

/// One line.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// The first line, and each change of settings; later lines use these settings.
    Start {
        /// [`SCHEMA`]
        schema: String,
        /// Bytes of a base page.
        page_bytes: u64,
        /// The settings in force.
        settings: Settings,
    },
    /// A look.
    Look(Look),
    /// The outcome of an action that followed the previous look.
    Outcome(ActionOutcome),
}

impl Event {
    /// A start with `settings`, which apply to the lines after it.
    pub fn start(settings: &Settings) -> Self {
        Self::Start {
            schema: SCHEMA.to_owned(),
            page_bytes: page_size_bytes() as u64,
            settings: settings.clone(),
        }
    }
}

/// Writes a record.
#[derive(Debug)]
pub struct Recorder<W: Write> {
    to: W,
}

impl<W: Write> Recorder<W> {
    /// Begins a record.
    pub fn start(to: W, settings: &Settings) -> Result<Self> {
        let mut recorder = Self { to };
        recorder.write(&Event::start(settings))?;
        Ok(recorder)
    }

    /// Adds a line. It is completely in the file unless this fails.
    pub fn write(&mut self, event: &Event) -> Result<()> {
        let mut line = serde_json::to_vec(event).expect("an event has a JSON form");
        line.push(b'\n');
        let written = self.to.write_all(&line).and_then(|()| self.to.flush());
        written.map_err(|error| Error::from_errno("write the record", errno_of(&error)))
    }
}

/// Reads a record, line by line. An invalid line is `Corrupt`, with its number; a last line that was cut
/// short, for example because the recorder was killed, is left out.
pub fn read_record(from: impl BufRead) -> impl Iterator<Item = Result<Event>> {
    let mut lines = from.lines().enumerate().peekable();
    std::iter::from_fn(move || {
        let (index, line) = lines.next()?;
        let corrupt = |what: String| {
            Error::new(ErrorKind::Corrupt, "read the record")
                .because(format!("line {}: {what}", index + 1))
        };
        let line = match line {
            Ok(line) => line,
            Err(error) => return Some(Err(corrupt(error.to_string()))),
        };
        match serde_json::from_str(&line) {
            Ok(Event::Start { schema, .. }) if schema != SCHEMA => {
                Some(Err(corrupt(format!("its schema is {schema}, not {SCHEMA}"))))
            }
            Ok(event) if index == 0 && !matches!(event, Event::Start { .. }) => {
                Some(Err(corrupt("it does not begin with a start".to_owned())))
            }
            Ok(event) => Some(Ok(event)),
            Err(error) if error.is_eof() && index > 0 && lines.peek().is_none() => None,
            Err(error) => Some(Err(corrupt(error.to_string()))),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recorded() -> Vec<u8> {
        let mut text = Vec::new();
        let mut recorder = Recorder::start(&mut text, &Settings::default()).unwrap();
        for at_ns in 0..3 {
            recorder.write(&Event::Look(Look { at_ns, ..Look::default() })).unwrap();
        }
        text
    }

    #[test]
    fn what_was_written_is_read_and_a_cut_last_line_is_left_out() {
        let text = recorded();
        let events: Vec<_> = read_record(&text[..]).map(Result::unwrap).collect();
        assert_eq!(events.len(), 4);
        assert!(matches!(&events[3], Event::Look(look) if look.at_ns == 2));
        let cut = &text[..text.len() - 10];
        assert_eq!(read_record(cut).map(Result::unwrap).count(), 3);
    }

    #[test]
    fn what_is_no_record_is_corrupt_with_the_line() {
        let error = |text: &[u8]| read_record(text).find_map(Result::err).unwrap();
        for text in ["nonsense\n", "{}\n", "{\"look\": {}}\n", "{"] {
            let error = error(text.as_bytes());
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
            assert!(error.to_string().contains("line 1"), "{error}");
        }
        let text = String::from_utf8(recorded()).unwrap();
        let other = text.replace(SCHEMA, "cowslip.promote.record/9");
        assert!(error(other.as_bytes()).to_string().contains("record/9"));
        let middle = text.replacen("{\"look\"", "{\"lok\"", 1);
        assert!(error(middle.as_bytes()).to_string().contains("line 2"));
    }
}
