//! What a process of the soak tells the one that started it, in lines: [`Said`].

use std::io::{self, Read, Write};

use cowslip::Error;

/// A line.
pub(crate) enum Said {
    /// Something begins that may take [`LIMIT`](crate::driver::LIMIT) until it says more.
    Begins(String),
    /// It goes on.
    Beat,
    /// So much more was done.
    Did(String, u64),
    /// An operation, and why it was refused.
    Refused(String, String),
    /// Memory of these images was lost, and why: the program was told.
    Told(String, String),
    /// So many words are wrong.
    Wrong(u64, String),
    /// A promise was broken in another way.
    Broken(String),
    /// A generation is what `latest` names.
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
    // In one piece, or not at all.
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

/// Has this process end when the one that started it has.
pub(crate) fn end_with_parent() {
    std::thread::spawn(|| {
        while io::stdin().read(&mut [0]).is_ok_and(|read| read > 0) {}
        std::process::exit(0);
    });
}
