//! Prunes a folder: selects the images that stay.
//!
//! ```text
//!  list ─▶ merge   long chains: one that needs no other beside them, as IDENTITY.cowslip; pointers name that
//!       ─▶ keep    the youngest, what pointers name, and all that these need, now and a while ago
//!       ─▶ delete  the rest
//! ```
//! Present readers may have opened images that were there a while ago, so images needed then are deleted later. An
//! image that is deleted while it is read is an error to the reader, never other bytes.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, SystemTime};

use cowslip::image::{ImageIdentity, ImageSink, MergeOptions, OnProgress, merge_to};
use cowslip::{Error, ErrorKind, Result};
use object_store::ObjectStoreExt;

use crate::attend::attended;
use crate::errors::store_error;
use crate::image::{OpenOptions, name_of, open_location, working_set_of};
use crate::list::{Listed, ListedKind, list_at};
use crate::location::{Location, Purpose};
use crate::pointer::{Pointer, repoint};
use crate::runtime::block_on;
use crate::upload::Upload;

const OPERATION: &str = "prune a folder of images";

/// The selection of the images that stay in a folder.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct PruneOptions {
    /// The number of youngest images that stay.
    pub keep: usize,
    /// Chains of more images than this are merged.
    pub merge: Option<usize>,
    /// Images that were needed this long ago stay.
    pub grace: Duration,
    /// Changes nothing; the result lists the changes.
    pub dry_run: bool,
}

impl PruneOptions {
    /// Keeps this many images, merges none, and deletes images that were not needed an hour ago.
    pub fn keep(keep: usize) -> Self {
        Self { keep, merge: None, grace: Duration::from_secs(3600), dry_run: false }
    }

    /// Merges chains of more images than this.
    #[must_use]
    pub fn merge(self, longest: usize) -> Self {
        Self { merge: Some(longest), ..self }
    }

    /// Deletes images that were not needed this long ago.
    #[must_use]
    pub fn grace(self, grace: Duration) -> Self {
        Self { grace, ..self }
    }

    /// Lists the changes without making them.
    #[must_use]
    pub fn dry_run(self, dry_run: bool) -> Self {
        Self { dry_run, ..self }
    }
}

/// The results of a prune, by names in the folder.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Pruned {
    /// Images that were merged: each name, and that of the replacing image.
    pub merged: Vec<(String, String)>,
    /// Images that were deleted.
    pub deleted: Vec<String>,
    /// Their bytes.
    pub deleted_bytes: u64,
    /// Images that stayed.
    pub kept: Vec<String>,
}

/// Merges and deletes images of a folder, and leaves other objects alone.
///
/// Save onto a parent that stays: one of the youngest, or the target of a pointer. Another might be deleted while the
/// image is sent, which then cannot be opened.
///
/// # Errors
/// The store's; [`ErrorKind::Usage`] if none would be kept, [`ErrorKind::Corrupt`] if an image that is to be merged is
/// damaged, [`ErrorKind::Busy`] if `progress` broke it off.
///
/// ```no_run
/// use std::ops::ControlFlow;
/// use cowslip_remote::{PruneOptions, prune};
///
/// let options = PruneOptions::keep(7).merge(8);
/// prune("s3://bucket/stores/", options, &mut |_| ControlFlow::Continue(()))?;
/// # Ok::<(), cowslip::Error>(())
/// ```
pub fn prune(url: &str, options: PruneOptions, progress: OnProgress<'_>) -> Result<Pruned> {
    if options.keep == 0 {
        return Err(Error::new(ErrorKind::Usage, OPERATION).because("none would be kept"));
    }
    attended(progress, |cancel, progress| {
        prune_at(&Location::parse_for(url, Purpose::Read, cancel)?, options, progress)
    })
}

fn prune_at(place: &Location, options: PruneOptions, progress: OnProgress<'_>) -> Result<Pruned> {
    let folder = place.for_writing()?;
    let mut listed = list_at(place)?;
    let mut pruned = Pruned::default();
    if let Some(longest) = options.merge {
        for name in Folder::from_listed(&listed, None).longer_chains(longest) {
            let merged = merge_chain(&folder, &name, &listed, options.dry_run, &mut *progress)?;
            pruned.merged.push((name, merged));
        }
        if !pruned.merged.is_empty() && !options.dry_run {
            listed = list_at(place)?;
        }
    }
    let before = SystemTime::now().checked_sub(options.grace).unwrap_or(SystemTime::UNIX_EPOCH);
    let needed =
        [None, Some(before)].map(|at| Folder::from_listed(&listed, at).needed(options.keep));
    for image in listed.iter().filter(|image| matches!(image.kind, ListedKind::Image { .. })) {
        let is_needed = needed.iter().any(|names| names.contains(image.name.as_str()));
        if is_needed || image.modified > before {
            pruned.kept.push(image.name.clone());
            continue;
        }
        if !options.dry_run {
            delete(&folder.within(&image.name))?;
        }
        pruned.deleted_bytes += image.bytes;
        pruned.deleted.push(image.name.clone());
    }
    Ok(pruned)
}

/// Writes one image of a chain beside it, and redirects pointers from the chain to it. Returns its name.
fn merge_chain(
    folder: &Location,
    name: &str,
    listed: &[Listed],
    dry_run: bool,
    progress: OnProgress<'_>,
) -> Result<String> {
    let image = open_location(&folder.within(name), OpenOptions::default())?;
    let merged = name_of(image.identity());
    if dry_run {
        return Ok(merged);
    }
    let to = folder.within(&merged);
    let sink =
        |most_bytes| Upload::begin(&to, most_bytes).map(|upload| upload as Box<dyn ImageSink>);
    merge_to(&image, sink, &MergeOptions::default(), progress)?;
    for pointer in listed {
        if let ListedKind::Pointer(now) = &pointer.kind
            && now.is_of(image.identity())
        {
            repoint(&folder.within(&pointer.name), now, Pointer::from_image(&merged, &image))?;
        }
    }
    Ok(merged)
}

/// Deletes an image, and the recording of its use.
fn delete(image: &Location) -> Result<()> {
    for object in [image, &working_set_of(image)] {
        block_on(object.cancel(), async {
            match object.store().delete(&object.key).await {
                Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
                Err(error) => Err(store_error(OPERATION, &object.name(), &error)),
            }
        })?;
    }
    Ok(())
}

/// A folder, at present or at an earlier time.
struct Folder<'a> {
    /// The youngest first. Among images with one identity, a complete one is first.
    images: Vec<Entry<'a>>,
    by_identity: HashMap<ImageIdentity, usize>,
    pointers: Vec<&'a Pointer>,
}

struct Entry<'a> {
    name: &'a str,
    identity: ImageIdentity,
    parent: Option<ImageIdentity>,
}

impl<'a> Folder<'a> {
    /// A folder with the present images that existed at some time.
    fn from_listed(listed: &'a [Listed], at: Option<SystemTime>) -> Self {
        let mut images = Vec::new();
        let mut pointers = Vec::new();
        for listed in listed {
            match &listed.kind {
                ListedKind::Pointer(pointer) => pointers.push(pointer),
                ListedKind::Image { .. } if at.is_some_and(|at| listed.modified > at) => {}
                ListedKind::Image { identity, parent, created_unix_ns } => {
                    let (name, identity, parent) = (&*listed.name, *identity, *parent);
                    images.push((*created_unix_ns, Entry { name, identity, parent }));
                }
            }
        }
        images.sort_by_key(|(created, image)| {
            (u64::MAX - created, image.parent.is_some(), image.name)
        });
        let images: Vec<Entry<'_>> = images.into_iter().map(|(_, image)| image).collect();
        let mut by_identity = HashMap::new();
        for (place, image) in images.iter().enumerate() {
            by_identity.entry(image.identity).or_insert(place);
        }
        Self { images, by_identity, pointers }
    }

    /// An image and the images that it needs, as far as they are there.
    fn chain(&self, identity: ImageIdentity) -> Vec<&Entry<'a>> {
        let mut chain: Vec<&Entry<'_>> = Vec::new();
        let mut next = Some(identity);
        while let Some(place) = next.and_then(|identity| self.by_identity.get(&identity)) {
            let image = &self.images[*place];
            if chain.len() > self.images.len() {
                break;
            }
            chain.push(image);
            next = image.parent;
        }
        chain
    }

    /// The names that may not be deleted.
    fn needed(&self, keep: usize) -> HashSet<&'a str> {
        let mut youngest = Vec::new();
        for image in &self.images {
            if !youngest.contains(&image.identity) && youngest.len() < keep {
                youngest.push(image.identity);
            }
        }
        let named = self
            .images
            .iter()
            .filter(|image| self.pointers.iter().any(|by| by.is_of(image.identity)));
        youngest.extend(named.map(|image| image.identity));
        let chains = youngest.iter().flat_map(|&identity| self.chain(identity));
        let by_name = self.pointers.iter().map(|pointer| pointer.image.as_str());
        chains.map(|image| image.name).chain(by_name).collect()
    }

    /// Images that are no parent, with chains longer than `longest`.
    fn longer_chains(&self, longest: usize) -> Vec<String> {
        let parents: HashSet<_> = self.images.iter().filter_map(|image| image.parent).collect();
        let tips = self.images.iter().filter(|image| !parents.contains(&image.identity));
        let long = tips.filter(|image| self.chain(image.identity).len() > longest);
        long.map(|image| image.name.to_owned()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(name: &str, number: u8, parent: Option<u8>, age_s: u64) -> Listed {
        let id = |number| ImageIdentity([number; 16]);
        let kind = ListedKind::Image {
            identity: id(number),
            parent: parent.map(id),
            created_unix_ns: number.into(),
        };
        let modified = SystemTime::UNIX_EPOCH + Duration::from_secs(1000 - age_s);
        Listed { name: name.into(), bytes: 1, modified, kind }
    }

    fn needed(listed: &[Listed], at: Option<u64>, keep: usize) -> Vec<String> {
        let at = at.map(|at| SystemTime::UNIX_EPOCH + Duration::from_secs(at));
        let folder = Folder::from_listed(listed, at);
        let mut names: Vec<_> = folder.needed(keep).into_iter().map(str::to_owned).collect();
        names.sort();
        names
    }

    #[test]
    fn the_youngest_stay_with_what_they_need() {
        let listed = [
            image("a", 1, None, 90),
            image("b", 2, Some(1), 80),
            image("c", 3, None, 70),
            image("d", 4, Some(2), 60),
        ];
        assert_eq!(needed(&listed, None, 1), ["a", "b", "d"]);
        assert_eq!(needed(&listed, None, 2), ["a", "b", "c", "d"]);
        assert_eq!(needed(&listed, Some(935), 1), ["c"], "before d was there");
    }

    #[test]
    fn what_was_merged_needs_no_chain_but_for_those_who_opened_it() {
        let listed =
            [image("a", 1, None, 90), image("b", 2, Some(1), 80), image("b merged", 2, None, 10)];
        assert_eq!(needed(&listed, None, 1), ["b merged"]);
        assert_eq!(needed(&listed, Some(980), 1), ["a", "b"]);
    }

    #[test]
    fn the_ends_of_long_chains_are_merged_and_circles_end() {
        let listed = [
            image("a", 1, None, 90),
            image("b", 2, Some(1), 80),
            image("c", 3, Some(2), 70),
            image("d", 4, Some(1), 60),
        ];
        let folder = Folder::from_listed(&listed, None);
        assert_eq!(folder.longer_chains(2), ["c"]);
        assert!(folder.longer_chains(3).is_empty());
        let circle = [image("a", 1, Some(2), 90), image("b", 2, Some(1), 80)];
        assert_eq!(needed(&circle, None, 1), ["a", "b"]);
    }
}
