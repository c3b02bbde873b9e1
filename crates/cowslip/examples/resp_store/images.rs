//! The files of a store: a chain of images, the newest of which is always FILE.
//!
//! ```text
//!  FILE.4 ◀── FILE.7 ◀── FILE.8 ◀── FILE      a link keeps FILE under a name of its own, then the next
//!  complete   what changed in between          incremental image replaces FILE: at every instant FILE is whole
//! ```
//! When a chain is long, or as big as its first image, a complete image replaces FILE and the others are removed.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use cowslip::Frozen;
use cowslip::image::{Description, Image, Root, SaveOptions, save};

use crate::{Failure, Result};

const PROGRAM: &str = "resp_store/1";
const ROOT: &str = "heap";

/// The state in the newest image.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Mark {
    pub(crate) generation: u64,
    /// The number of changing commands up to then; it has all of them.
    pub(crate) writes: u64,
}

/// An image of the chain.
struct Link {
    generation: u64,
    file_bytes: u64,
}

pub(crate) struct Images {
    file: PathBuf,
    /// The complete image first, FILE last.
    chain: Vec<Link>,
    longest_chain: usize,
    /// Keeps other processes away as long as it is open.
    _lock: File,
}

/// The newest image, and its parts that a restored program needs.
pub(crate) struct Found {
    pub(crate) image: Image,
    pub(crate) mark: Mark,
    pub(crate) root: Root,
}

impl Images {
    /// Looks for the newest image; changes nothing if that fails.
    pub(crate) fn open(file: &Path, longest_chain: usize) -> Result<(Self, Option<Found>)> {
        let lock_file = beside(file, ".lock");
        let during = |error: io::Error| Failure::io(&lock_file, &error);
        let lock = File::options().create(true).append(true).open(&lock_file).map_err(during)?;
        lock.try_lock().map_err(|_| {
            Failure::new(1, format!("{}: another process has it", lock_file.display()))
        })?;
        let mut images =
            Self { file: file.to_owned(), chain: Vec::new(), longest_chain, _lock: lock };
        if !file.try_exists().map_err(|error| Failure::io(file, &error))? {
            let others = images.others().map_err(|error| Failure::io(file, &error))?;
            let Some((Some(_), newest)) = others.iter().max() else { return Ok((images, None)) };
            return Err(Failure::new(
                6,
                format!(
                    "{} is missing, but {} is there: rename that, or move it and those before it away",
                    file.display(),
                    newest.display()
                ),
            ));
        }
        let image = Image::open(file)?;
        images.chain = chain_of(&image)?;
        let root = image.description().roots.get(ROOT).cloned().ok_or_else(|| foreign(&image))?;
        images.remove_unneeded().map_err(|error| Failure::io(file, &error))?;
        let mark = mark(&image)?;
        Ok((images, Some(Found { image, mark, root })))
    }

    /// Saves the frozen memory to FILE; if that fails, FILE is still a whole image.
    pub(crate) fn save(&mut self, frozen: &Frozen, root: Root, mark: Mark) -> Result<()> {
        let saved = self.save_next(frozen, root, mark);
        if saved.is_err() && self.file.exists() {
            // The old one or, if only the last step failed, the new one.
            self.chain = chain_of(&Image::open(&self.file)?)?;
        }
        saved
    }

    fn save_next(&mut self, frozen: &Frozen, root: Root, mark: Mark) -> Result<()> {
        if self.chain.is_empty() {
            return self.save_complete(frozen, root, mark);
        }
        let increments_bytes: u64 = self.chain[1..].iter().map(|link| link.file_bytes).sum();
        let is_due =
            self.chain.len() >= self.longest_chain || increments_bytes > self.chain[0].file_bytes;
        match is_due.then(|| self.save_complete(frozen, root.clone(), mark)) {
            // Not due, or no room for it beside the chain: the changes take less.
            None => self.save_increment(frozen, root, mark),
            Some(Err(failure)) if failure.is_for_lack_of_room => {
                self.save_increment(frozen, root, mark)
            }
            Some(saved) => saved,
        }
    }

    fn save_complete(&mut self, frozen: &Frozen, root: Root, mark: Mark) -> Result<()> {
        let saved = save(&[frozen], &self.file, &options(None, root, mark), &mut proceed)?;
        self.chain.clear();
        self.chain.push(Link { generation: mark.generation, file_bytes: saved.file_bytes });
        // The save has succeeded, even if the others remain; they are searched for again next time.
        let _ = self.remove_unneeded();
        Ok(())
    }

    fn save_increment(&mut self, frozen: &Frozen, root: Root, mark: Mark) -> Result<()> {
        let head = self.chain.last().expect("a chain to add to");
        let parent = beside(&self.file, &format!(".{}", head.generation));
        self.link(&parent).map_err(|error| Failure::io(&parent, &error))?;
        let options = options(Some(parent), root, mark);
        let saved = save(&[frozen], &self.file, &options, &mut proceed)?;
        self.chain.push(Link { generation: mark.generation, file_bytes: saved.file_bytes });
        Ok(())
    }

    /// Gives FILE a second name that survives a crash of the machine.
    fn link(&self, name: &Path) -> io::Result<()> {
        match fs::remove_file(name) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => fs::hard_link(&self.file, name)?,
        }
        File::open(folder_of(&self.file))?.sync_all()
    }

    /// Removes images that the chain no longer needs, and leftovers of killed saves.
    fn remove_unneeded(&self) -> io::Result<()> {
        let needed = &self.chain[..self.chain.len() - 1];
        for (generation, path) in self.others()? {
            if !needed.iter().any(|link| Some(link.generation) == generation) {
                fs::remove_file(path)?;
            }
        }
        Ok(())
    }

    /// `FILE.<generation>`; and `.FILE.<process>`, the name that an image has just before it becomes FILE.
    fn others(&self) -> io::Result<Vec<(Option<u64>, PathBuf)>> {
        let folder = folder_of(&self.file);
        let name = self.file.file_name().expect("the name of a file").as_encoded_bytes();
        let mut others = Vec::new();
        for entry in fs::read_dir(folder)? {
            let other = entry?.file_name();
            let (is_hidden, rest) = match other.as_encoded_bytes() {
                [b'.', rest @ ..] if name[0] != b'.' => (true, rest),
                rest => (false, rest),
            };
            let number = rest.strip_prefix(name).and_then(|rest| rest.strip_prefix(b"."));
            let number = number.and_then(|digits| str::from_utf8(digits).ok()?.parse().ok());
            if let Some(number) = number {
                others.push(((!is_hidden).then_some(number), folder.join(other)));
            }
        }
        Ok(others)
    }
}

fn options(parent: Option<PathBuf>, root: Root, mark: Mark) -> SaveOptions {
    let user = [
        ("program", PROGRAM.to_owned()),
        ("generation", mark.generation.to_string()),
        ("writes", mark.writes.to_string()),
    ];
    SaveOptions {
        parent,
        // The other processors belong to the server.
        threads: 1,
        roots: BTreeMap::from([(ROOT.to_owned(), root)]),
        user: user.map(|(name, value)| (name.to_owned(), value)).into(),
        ..SaveOptions::default()
    }
}

/// The images that FILE needs, and FILE.
fn chain_of(image: &Image) -> Result<Vec<Link>> {
    let chain = image.ancestors().iter().rev().chain([image]);
    let link = |image: &Image| {
        let file_bytes = image.summary().file_bytes;
        mark(image).map(|mark| Link { generation: mark.generation, file_bytes })
    };
    chain.map(link).collect()
}

fn mark(image: &Image) -> Result<Mark> {
    let Description { user, .. } = image.description();
    let number = |name| user.get(name).and_then(|value: &String| value.parse().ok());
    match (user.get("program"), number("generation"), number("writes")) {
        (Some(program), Some(generation), Some(writes)) if program == PROGRAM => {
            Ok(Mark { generation, writes })
        }
        _ => Err(foreign(image)),
    }
}

fn foreign(image: &Image) -> Failure {
    Failure::new(6, format!("{}: an image of another program", image.path().display()))
}

fn beside(file: &Path, ending: &str) -> PathBuf {
    let mut name = OsString::from(file);
    name.push(ending);
    name.into()
}

fn folder_of(file: &Path) -> &Path {
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
    folder.unwrap_or(Path::new("."))
}

fn proceed(_: cowslip::image::Progress) -> std::ops::ControlFlow<()> {
    std::ops::ControlFlow::Continue(())
}
