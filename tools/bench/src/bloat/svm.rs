//! A support vector machine: LIBLINEAR trains on a collection of documents made here, of which each has a hundred words
//! with their weights.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::Path;

use super::job::{Job, Outcome};
use super::settings::System;
use super::{Bench, Options, Result};
use crate::demo::redis::value::Random;
use crate::error::during;
use crate::interrupt::Interrupt;
use crate::program::Folder;

pub(super) const NAME: &str = "svm";

const WORDS: u64 = 100;
/// Memory of a word of a document.
const WORD_BYTES: u64 = 16;
const WRITE: &str = "write documents";

pub(super) fn measure(bench: &mut Bench<'_>, options: &Options, system: &System) -> Result<()> {
    let bytes = options.working_bytes() as u64;
    let folder = Folder::new("bloat-svm")?;
    let [documents, model] = ["documents", "model"].map(|name| folder.path().join(name));
    bench.progress.phase("svm: writing documents");
    write(&documents, bytes / WORDS / WORD_BYTES, bench.stop)?;
    let job = Job {
        name: NAME,
        bytes,
        folder: &folder,
        // The dual solver, which visits documents at random, and a cost of errors with which it converges.
        words: ["liblinear-train", "-q", "-c", "0.001"]
            .map(str::to_owned)
            .into_iter()
            .chain([&documents, &model].map(|path| path.display().to_string()))
            .collect(),
        needs: "apt-get install liblinear-tools",
        result: &|_| {
            let content = fs::read(&model).map_err(during("read the model"))?;
            Ok(Outcome { content, wrong: 0, figures: Vec::new() })
        },
    };
    job.measure(bench, options.runs, system)
}

/// Writes documents in one of two classes. As in texts, a word is the rarer the higher its number.
fn write(path: &Path, documents: u64, stop: &Interrupt) -> Result<()> {
    let mut file = BufWriter::new(File::create(path).map_err(during(WRITE))?);
    let mut random = Random(1);
    let vocabulary = documents as f64;
    let mut words = Vec::new();
    for _ in 0..documents {
        stop.check()?;
        let class = ["-1", "+1"][(random.next() % 2) as usize];
        let mut word = || vocabulary.powf(random.next() as f64 / u64::MAX as f64) as u64;
        words.clear();
        words.extend((0..WORDS).map(|_| word()));
        words.sort_unstable();
        words.dedup();
        write!(file, "{class}").map_err(during(WRITE))?;
        for word in &words {
            write!(file, " {word}:{}", 1 + word % 9).map_err(during(WRITE))?;
        }
        writeln!(file).map_err(during(WRITE))?;
    }
    file.flush().map_err(during(WRITE))
}
