//! Series in a folder: one file of JSON Lines each, which is replaced as a whole.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cowslip_sys::atomic_file;

use super::entry::{Entry, SCHEMA};
use crate::{Error, Result};

const EXTENSION: &str = "jsonl";
/// The interval of looks at a lock that another process has.
const NAP: Duration = Duration::from_millis(20);
/// File systems allow 255 bytes for a name, and the temporary name is longer.
const LONGEST_NAME: usize = 200;

/// A folder of series.
#[derive(Clone, Debug)]
pub struct Store {
    folder: PathBuf,
}

/// A series and its entries, in the order in which they were added.
#[derive(Clone, PartialEq, Debug)]
pub struct Series {
    /// Its name.
    pub name: String,
    /// Never empty.
    pub entries: Vec<Entry>,
}

impl Store {
    /// The series in `folder`, which need not exist yet.
    pub fn new(folder: &Path) -> Self {
        Self { folder: folder.to_owned() }
    }

    /// The file of a series. Bytes of its name other than letters, digits, `-`, `_` and inner dots are written as
    /// `%2F`.
    ///
    /// # Errors
    /// The name is empty or too long.
    pub fn file(&self, name: &str) -> Result<PathBuf> {
        let mut file = String::new();
        for (index, byte) in name.bytes().enumerate() {
            match byte {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' => file.push(byte.into()),
                b'.' if index > 0 => file.push('.'),
                _ => file += &format!("%{byte:02X}"),
            }
        }
        match file.len() {
            1..=LONGEST_NAME => Ok(self.folder.join(format!("{file}.{EXTENSION}"))),
            _ => Err(Error::usage(format!(
                "a name of 1 to {LONGEST_NAME} bytes is wanted: {name:?}"
            ))),
        }
    }

    /// Adds an entry at the end, and returns its number, from 1. Writers of one folder wait for each other, unless
    /// `stops`. After a crash the file is the old one or the new one.
    ///
    /// # Errors
    /// The file system's; a damaged file is not touched. Interrupted if it stopped.
    pub fn append(&self, name: &str, entry: &Entry, stops: &dyn Fn() -> bool) -> Result<usize> {
        let file = self.file(name)?;
        let failed = |error| Error::io("add to", &file, &error);
        fs::create_dir_all(&self.folder).map_err(failed)?;
        let folder = File::open(&self.folder).map_err(failed)?;
        while let Err(error) = folder.try_lock() {
            match error {
                TryLockError::WouldBlock if stops() => {
                    return Err(failed(io::ErrorKind::Interrupted.into()));
                }
                // No call waits for a lock and for an interrupt.
                TryLockError::WouldBlock => std::thread::sleep(NAP),
                TryLockError::Error(error) => return Err(failed(error)),
            }
        }
        let old = read(&file)?.unwrap_or_default();
        let number = entries(&old).map_err(|error| error.on(&file))?.len() + 1;
        let mut text = whole_lines(&old);
        text += &serde_json::to_string(entry).map_err(|error| failed(error.into()))?;
        text.push('\n');
        atomic_file::replace(&file, text.as_bytes(), 0o666).map_err(failed)?;
        Ok(number)
    }

    /// The series called `name`, and those called `name/…`, in the order of their names.
    ///
    /// # Errors
    /// There is no such series, or one of them cannot be read.
    pub fn read(&self, name: &str) -> Result<Vec<Series>> {
        let names = self.names()?;
        let family = format!("{name}/");
        let is_wanted = |series: &&String| *series == name || series.starts_with(&family);
        let all: Vec<Series> =
            names.iter().filter(is_wanted).map(|name| self.series(name)).collect::<Result<_>>()?;
        if all.is_empty() {
            let why = match names.as_slice() {
                [] => "it has no series".to_owned(),
                names => format!("it has no series called {name}, but {}", names.join(", ")),
            };
            return Err(Error::usage(why).on(&self.folder));
        }
        Ok(all)
    }

    fn series(&self, name: &str) -> Result<Series> {
        let file = self.file(name)?;
        let text = read(&file)?.unwrap_or_default();
        let entries = entries(&text).map_err(|error| error.on(&file))?;
        match entries.is_empty() {
            true => Err(Error::corrupt("it has no entry").on(&file)),
            false => Ok(Series { name: name.to_owned(), entries }),
        }
    }

    /// The names of all series, in order.
    fn names(&self) -> Result<Vec<String>> {
        let failed = |error| Error::io("read the directory", &self.folder, &error);
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.folder).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            let name = path.file_stem().and_then(|stem| decoded(stem.to_str()?));
            // Files that this did not name are none of its series.
            names.extend(name.filter(|name| self.file(name).is_ok_and(|file| file == path)));
        }
        names.sort();
        Ok(names)
    }
}

/// The name in the form of [`Store::file`]; `None` for another form.
fn decoded(stem: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = stem.bytes();
    while let Some(byte) = rest.next() {
        match byte {
            b'%' => {
                let code = [rest.next()?, rest.next()?];
                bytes.push(u8::from_str_radix(str::from_utf8(&code).ok()?, 16).ok()?);
            }
            _ => bytes.push(byte),
        }
    }
    String::from_utf8(bytes).ok()
}

/// The text of a file; `None` if there is none.
fn read(file: &Path) -> Result<Option<String>> {
    match fs::read_to_string(file) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            Err(Error::corrupt("it is no text").on(file))
        }
        Err(error) => Err(Error::io("read", file, &error)),
    }
}

/// The entries of a text. A last line that was cut short is ignored.
fn entries(text: &str) -> Result<Vec<Entry>> {
    let mut all = Vec::new();
    for (index, line) in text.split_inclusive('\n').enumerate() {
        match serde_json::from_str::<Entry>(line) {
            _ if line.trim().is_empty() => {}
            Ok(entry) if entry.schema == SCHEMA => all.push(entry),
            Ok(entry) => {
                let why = format!("its schema is {}, not {SCHEMA}", entry.schema);
                return Err(Error::corrupt(format!("line {}: {why}", index + 1)));
            }
            Err(error) if error.is_eof() && !line.ends_with('\n') => {}
            Err(error) => return Err(Error::corrupt(format!("line {}: {error}", index + 1))),
        }
    }
    Ok(all)
}

/// The text without a last line that was cut short, and with an end of a whole last line.
fn whole_lines(text: &str) -> String {
    let (lines, rest) = text.split_at(text.rfind('\n').map_or(0, |end| end + 1));
    match serde_json::from_str::<Entry>(rest) {
        Ok(_) => format!("{text}\n"),
        Err(_) => lines.to_owned(),
    }
}
