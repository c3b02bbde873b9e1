//! Checks the store while no writer runs: it has complete images, a `latest` that names one, and nothing
//! else.

use std::collections::HashSet;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cowslip_remote::ListedKind;

use crate::faults::Faults;
use crate::judge::Judge;
use crate::pattern::{CHUNK_WORDS, CHUNKS, History};
use crate::reader::generation_of;
use crate::server::BUCKET;
use crate::store::{FOLDER, LATEST, url};

/// Data that a killed writer sent may still arrive meanwhile.
const ATTEMPTS: usize = 3;
/// The age from which unknown parts are leftovers.
const OLD: Duration = Duration::from_secs(60);

/// Checks the store, without the proxy.
pub(crate) struct Checker {
    root: PathBuf,
    seed: u64,
    /// Images that were already verified.
    verified: HashSet<String>,
    /// Writers that were killed.
    pub(crate) killed: HashSet<u32>,
    nameless: usize,
}

impl Checker {
    pub(crate) fn new(root: &Path, seed: u64) -> Self {
        let root = root.to_owned();
        Self { root, seed, verified: HashSet::new(), killed: HashSet::new(), nameless: 0 }
    }

    /// Checks everything, when the writer is dead. `latest` named at least the generation `published`.
    pub(crate) fn check(&mut self, published: Option<u32>, faults: &Faults, judge: &mut Judge) {
        self.leftovers(faults, judge);
        let mut why = String::new();
        for _ in 0..ATTEMPTS {
            match self.images(judge).and_then(|()| self.latest(published, judge)) {
                Ok(()) => {
                    judge.did("store_checks", 1);
                    return;
                }
                Err(error) => why = error,
            }
            std::thread::sleep(Duration::from_secs(2));
        }
        judge.broken("store", &why);
    }

    /// Each object is a complete image, with the images that it needs, or names one, or is advice.
    fn images(&mut self, judge: &mut Judge) -> Result<(), String> {
        let listed = cowslip_remote::list(&url("")).map_err(|error| format!("list: {error}"))?;
        let folder = self.root.join(BUCKET).join(FOLDER);
        for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let is_known =
                name.ends_with(".working-set") || listed.iter().any(|object| object.name == name);
            if !is_known && folder.join(&name).exists() {
                return Err(format!("{name} is no image"));
            }
        }
        let mut seen = HashSet::new();
        for one in &listed {
            let ListedKind::Image { identity, .. } = &one.kind else { continue };
            let key = format!("{} {identity}", one.name);
            let is_known = self.verified.contains(&key);
            let opened = cowslip_remote::open(&url(&one.name));
            let verified = opened.and_then(|image| match is_known {
                true => Ok(()),
                false => image.verify(&mut |_| ControlFlow::Continue(())),
            });
            if let Err(error) = verified {
                return Err(format!("{} is not whole: {error}", one.name));
            }
            judge.did("images_verified", u64::from(!is_known));
            seen.insert(key);
        }
        self.verified = seen;
        Ok(())
    }

    /// `latest` names an image of the last published generation, or of a later one, with every word right.
    fn latest(&self, published: Option<u32>, judge: &mut Judge) -> Result<(), String> {
        let said = |error: cowslip::Error| format!("latest: {error}");
        let latest = cowslip_remote::read_latest(&url(LATEST)).map_err(said)?;
        let Some(latest) = latest else {
            return match published {
                Some(_) => Err("latest is gone".into()),
                None => Ok(()),
            };
        };
        let image = cowslip_remote::open(&url(LATEST)).map_err(said)?;
        if image.identity().to_string() != latest.identity {
            return Err(format!("latest changed from {} while nobody saves", latest.image));
        }
        let generation = generation_of(&image).map_err(said)?;
        if published.is_some_and(|published| generation < published) {
            return Err(format!("latest is {generation}, {published:?} was published"));
        }
        let history = History::at(self.seed, generation);
        let mut bytes = vec![0; CHUNK_WORDS * 8];
        for chunk in 0..CHUNKS {
            image.read_chunk(0, chunk as u32, &mut bytes).map_err(said)?;
            let words = bytes.chunks_exact(8);
            let words: Vec<_> =
                words.map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect();
            if let Err(wrong) = history.check(chunk * CHUNK_WORDS, &words) {
                judge.wrong("store", wrong.words as u64, &format!("in latest: {wrong}"));
            }
        }
        judge.did("bytes", (CHUNKS * CHUNK_WORDS * 8) as u64);
        Ok(())
    }

    /// Unfinished uploads may only be those of killed writers. Removes them, like a store's rule.
    fn leftovers(&mut self, faults: &Faults, judge: &mut Judge) {
        let entries: Vec<_> =
            std::fs::read_dir(&self.root).into_iter().flatten().flatten().collect();
        for entry in &entries {
            let name = entry.file_name().to_string_lossy().into_owned();
            let is_old = || entry.metadata().is_ok_and(|metadata| age(&metadata) > OLD);
            let part = name.strip_prefix(".upload_id-").and_then(|rest| rest.split_once(".part-"));
            if let Some((upload, _)) = part {
                if is_old() && !self.root.join(format!(".upload-{upload}.json")).exists() {
                    judge.did("orphaned_parts", 1);
                    let _ = std::fs::remove_file(entry.path());
                }
                continue;
            }
            let upload = name.strip_prefix(".upload-").and_then(|rest| rest.strip_suffix(".json"));
            let Some(upload) = upload else { continue };
            match faults.may_be_left(upload, &self.killed) {
                Some(true) => judge.did("uploads_left_by_kill", 1),
                Some(false) => judge.broken("store", &format!("upload {upload} is left over")),
                None => {
                    self.nameless += 1;
                    judge.did("uploads_left_unnamed", 1);
                    if self.nameless > faults.lost_uploads() + self.killed.len() {
                        judge.broken("store", "an upload is left over to which nothing was sent");
                    }
                }
            }
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

fn age(metadata: &std::fs::Metadata) -> Duration {
    metadata.modified().ok().and_then(|time| time.elapsed().ok()).unwrap_or_default()
}
