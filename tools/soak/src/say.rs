//! Messages of a process of the soak to its parent, in lines: [`Said`].

use std::io::{self, Read, Write};

use cowslip::Error;

/// A message.
pub(crate) enum Said {
    /// An operation begins that may take [`LIMIT`](crate::driver::LIMIT) until its next message.
    Begins(String),
    /// The operation continues.
    Beat,
    /// The number of times that something more was done.
    Did(String, u64),
    /// An operation, and the reason for its refusal.
    Refused(String, String),
    /// Lost memory of these images, and the reason: the program was told.
    Told(String, String),
    /// The number of wrong words.
    Wrong(u64, String),
    /// A promise was broken in another way.
    Broken(String),
    /// `latest` names this generation.
    Published(u32),
}

impl Said {
    pub(crate) fn parse(line: &str) -> Option<Self> {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let (first, second) = rest.split_once(' ').unwrap_or((rest, ""));
        let two = || (first.to_owned(), second.to_owned());
        Some(match word {
            "begins" => Self::Begins(rest.into()),
            "beat" => Self::Beat,
            "did" => Self::Did(first.into(), second.parse().ok()?),
            "refused" => Self::Refused(two().0, two().1),
            "told" => Self::Told(two().0, two().1),
            "wrong" => Self::Wrong(first.parse().ok()?, second.into()),
            "broken" => Self::Broken(rest.into()),
            "published" => Self::Published(rest.parse().ok()?),
            _ => return None,
        })
    }
}

fn say(line: std::fmt::Arguments<'_>) {
    let line = line.to_string().replace('\n', " ") + "\n";
    // A line is written completely, or not at all.
    if io::stdout().lock().write_all(line.as_bytes()).is_err() {
        std::process::exit(0);
    }
}

pub(crate) fn begins(operation: &str) {
    say(format_args!("begins {operation}"));
}

pub(crate) fn beat() {
    say(format_args!("beat"));
}

pub(crate) fn did(what: &str, count: u64) {
    say(format_args!("did {what} {count}"));
}

pub(crate) fn refused(operation: &str, error: &Error) {
    say(format_args!("refused {operation} {:?}: {error}", error.kind()));
}

pub(crate) fn told(images: &str, error: &Error) {
    say(format_args!("told {images} {:?}: {error}", error.kind()));
}

pub(crate) fn wrong(words: usize, what: &str) {
    say(format_args!("wrong {words} {what}"));
}

pub(crate) fn broken(what: &str) {
    say(format_args!("broken {what}"));
}

pub(crate) fn published(generation: u32) {
    say(format_args!("published {generation}"));
}

/// Ends this process when its parent has ended.
pub(crate) fn end_with_parent() {
    std::thread::spawn(|| {
        while io::stdin().read(&mut [0]).is_ok_and(|read| read > 0) {}
        std::process::exit(0);
    });
}
