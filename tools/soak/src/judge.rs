//! The actions that were done, and the promises that were broken.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::faults::Faults;
use crate::server::BUCKET;
use crate::store::FOLDER;

/// The place of the identity in an image's header (docs/image-format.md).
const IDENTITY: std::ops::Range<usize> = 16..32;
/// The most messages of a kind that are printed.
const MOST_SHOWN: u64 = 5;

#[derive(Default)]
pub(crate) struct Judge {
    pub(crate) did: BTreeMap<String, u64>,
    refused: BTreeMap<String, u64>,
    pub(crate) wrong_words: u64,
    pub(crate) hangs: u64,
    /// Memory that was lost without notice, or for no reason.
    pub(crate) untold: u64,
    /// Errors of the store: incomplete objects, missing published ones, leftovers.
    pub(crate) broken: u64,
    told: u64,
}

impl Judge {
    pub(crate) fn is_good(&self) -> bool {
        self.wrong_words + self.hangs + self.untold + self.broken == 0
    }

    pub(crate) fn did(&mut self, what: &str, count: u64) {
        *self.did.entry(what.to_owned()).or_default() += count;
    }

    fn count(&self, what: &str) -> u64 {
        self.did.get(what).copied().unwrap_or(0)
    }

    /// An operation was refused, which is reported and permitted.
    pub(crate) fn refused(&mut self, who: &str, operation: &str, why: &str) {
        let kind = why.split_once(':').map_or(why, |(kind, _)| kind);
        let count = self.refused.entry(format!("{operation} {kind}")).or_default();
        *count += 1;
        if *count <= MOST_SHOWN {
            println!("  {who}: {operation} was refused: {why}");
        }
    }

    pub(crate) fn wrong(&mut self, who: &str, words: u64, what: &str) {
        self.wrong_words += words;
        println!("WRONG: {who}: {what}");
    }

    pub(crate) fn hang(&mut self, who: &str, operation: &str, stacks: &str) {
        self.hangs += 1;
        println!("HANG: {who}: {operation}\n{stacks}");
    }

    pub(crate) fn untold(&mut self, who: &str, what: &str) {
        self.untold += 1;
        println!("UNTOLD: {who}: {what}");
    }

    pub(crate) fn broken(&mut self, who: &str, what: &str) {
        match what.strip_prefix("untold: ") {
            Some(what) => self.untold(who, what),
            None => {
                self.broken += 1;
                println!("BROKEN: {who}: {what}");
            }
        }
    }

    /// A process was told that memory is lost: one of its images must have been removed or replaced, or have
    /// appeared to be.
    pub(crate) fn told(
        &mut self,
        who: &str,
        (images, why): (&str, &str),
        since: Instant,
        root: &Path,
        faults: &Faults,
    ) {
        self.told += 1;
        let is_lost = |image: &str| {
            let (name, identity) = image.split_once('=').unwrap_or((image, ""));
            identity_of(&root.join(BUCKET).join(FOLDER).join(name)).as_deref() != Some(identity)
                || faults.had_other_tag(name, since)
        };
        if !images.split(',').any(is_lost) {
            self.untold(who, &format!("memory was lost for no reason: {images}: {why}"));
        } else if self.told <= MOST_SHOWN {
            println!("  {who}: was told of lost memory: {why}");
        }
    }

    pub(crate) fn line(&self, elapsed: Duration, faults: &Faults, memory_kib: u64) -> String {
        let seconds = elapsed.as_secs();
        let injected: u64 = faults.counts().values().sum();
        format!(
            "{:02}:{:02}:{:02} {} saves, {} restores, {:.1} GB checked, {} kills, {injected} faults, {} told of \
             lost memory; {} MiB; {} wrong words, {} hangs, {} untold, {} broken",
            seconds / 3600,
            seconds / 60 % 60,
            seconds % 60,
            self.count("saves"),
            self.count("restores"),
            self.count("bytes") as f64 / 1e9,
            self.count("kills"),
            self.told,
            memory_kib >> 10,
            self.wrong_words,
            self.hangs,
            self.untold,
            self.broken,
        )
    }

    /// The final report.
    pub(crate) fn all(&self, seed: u64, faults: &Faults) -> String {
        let mut text = format!("seed {seed}\n");
        let mut row = |name: &str, counts: String| {
            writeln!(text, "{name:<10} {counts}").expect("memory takes it");
        };
        let list = |counts: &BTreeMap<String, u64>| {
            let all = counts.iter().map(|(what, count)| format!("{what} {count}"));
            all.collect::<Vec<_>>().join(", ")
        };
        row("done", list(&self.did));
        row("refused", list(&self.refused));
        let counts = faults.counts().into_iter().map(|(kind, count)| (kind.to_owned(), count));
        row("faults", list(&counts.collect()));
        row("told", self.told.to_string());
        row("wrong", format!("{} words", self.wrong_words));
        row("hangs", self.hangs.to_string());
        row("untold", self.untold.to_string());
        row("broken", self.broken.to_string());
        text
    }
}

/// The identity of the image in an object.
fn identity_of(object: &Path) -> Option<String> {
    use std::io::Read;
    let mut head = [0; IDENTITY.end];
    std::fs::File::open(object).ok()?.read_exact(&mut head).ok()?;
    Some(head[IDENTITY].iter().map(|byte| format!("{byte:02x}")).collect())
}
