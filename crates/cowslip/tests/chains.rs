//! Images that need others: compared, merged, compressed, and no larger than the changes.

mod support;

use std::ops::ControlFlow;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use cowslip::image::{
    Compression, Diff, Image, MergeOptions, RestoreOptions, Root, SaveOptions, Saved, Strategy,
    merge, save,
};
use cowslip::units::{ByteCount, CHUNK_BYTES};
use cowslip::{Arena, ErrorKind, Frozen, Place};
use support::images::{Folder, proceed, verify, words};
use support::{Scatter, pattern};

const ALL: [Compression; 4] =
    [Compression::None, Compression::Lz4, Compression::Zstd(1), Compression::Zstd(19)];
const CHUNK_WORDS: usize = CHUNK_BYTES / 8;

/// An arena of 32 MiB that begins with `content`, frozen.
fn frozen(content: &[u64]) -> Frozen {
    let arena = Arena::new(ByteCount::mib(32)).unwrap();
    let mut slice = arena.slice::<u64>(content.len()).unwrap();
    // Zero pages stay holes.
    let pages = slice.chunks_mut(512).zip(content.chunks(512));
    pages.filter(|(_, page)| page.iter().any(|&word| word != 0)).for_each(|(place, page)| {
        place.copy_from_slice(page);
    });
    assert_eq!(slice.range().start, arena.range().start, "at offset 0");
    arena.freeze().unwrap()
}

fn saved(content: &[u64], path: &Path, options: &SaveOptions) -> Saved {
    save(&[&frozen(content)], path, options, &mut proceed).unwrap()
}

/// The content that a program finds after a restore.
fn restored(path: &Path, length: usize) -> Vec<u64> {
    let options = RestoreOptions {
        place: Place::Anywhere,
        strategy: Strategy::Eager,
        ..RestoreOptions::default()
    };
    let arena = verify(path).unwrap().restore(0, &options, &mut proceed).unwrap().into_arena();
    let part = arena.raw().parts(arena.range())[0].0;
    words(&arena, part, &arena)[..length].to_vec()
}

/// Five chunks: of small numbers, of noise, of zeroes, of a few pages, of pages of both kinds.
fn mixture() -> Vec<u64> {
    let mut content = vec![0; 5 * CHUNK_WORDS];
    for (i, word) in content.iter_mut().enumerate() {
        let page = i / 512;
        *word = match i / CHUNK_WORDS {
            0 => i as u64 / 9,
            1 => pattern(i),
            3 if page % 50 == 0 => i as u64,
            4 if page % 2 == 0 => pattern(i),
            4 => 7,
            _ => 0,
        };
    }
    content
}

#[test]
fn what_was_compressed_is_the_same_in_less_room() {
    let folder = Folder::new("compressed");
    let path = folder.file("image");
    let content = mixture();
    let mut lengths = Vec::new();
    for compression in ALL {
        let options = SaveOptions { compression, threads: 3, ..SaveOptions::default() };
        let length = saved(&content, &path, &options).file_bytes;
        let metadata = std::fs::metadata(&path).unwrap();
        assert_eq!(metadata.len(), length);
        // The empty space between aligned chunks takes no room on the disk.
        lengths.push(length.min(metadata.blocks() * 512));
        assert!(restored(&path, content.len()) == content, "{compression}");
    }
    let [plain, lz4, zstd, zstd_more] = lengths[..] else { unreachable!() };
    // The numbers nearly vanish, noise does not.
    assert!(plain > 6 << 20 && lz4 < plain - (2 << 20) && zstd < lz4 && zstd_more < zstd);
    assert!(zstd_more > 3 << 20, "{lengths:?}");
    let options = SaveOptions { compression: Compression::Zstd(23), ..SaveOptions::default() };
    let refused = save(&[&frozen(&content)], &path, &options, &mut proceed).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Usage);
}

#[test]
fn any_flipped_bit_of_a_compressed_image_is_found() {
    let folder = Folder::new("compressed-damage");
    let path = folder.file("image");
    for compression in [Compression::Lz4, Compression::Zstd(3)] {
        let options = SaveOptions { compression, ..SaveOptions::default() };
        let length = saved(&mixture(), &path, &options).file_bytes;
        let whole = std::fs::read(&path).unwrap();
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        let mut scatter = Scatter(5);
        let mut found = 0;
        for _ in 0..200 {
            let mut anywhere = std::iter::repeat_with(|| 4096 + scatter.next() % (length - 4096));
            // Only in a part of the file that holds data.
            let is_used = |at: &u64| {
                whole[*at as usize / 4096 * 4096..].iter().take(4096).any(|&byte| byte != 0)
            };
            let at = anywhere.find(is_used).unwrap();
            let flipped = whole[at as usize] ^ 1 << (scatter.next() % 8);
            file.write_all_at(&[flipped], at).unwrap();
            match verify(&path) {
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
                    found += 1;
                }
                // An unused byte, between the end of a chunk and the next page.
                Ok(_) => assert_eq!(whole[at as usize], 0, "{compression}: byte {at}"),
            }
            file.write_all_at(&whole[at as usize..=at as usize], at).unwrap();
        }
        verify(&path).unwrap();
        assert!(found > 190, "{found}");
    }
}

#[test]
fn an_incremental_image_is_no_longer_than_what_changed() {
    let folder = Folder::new("incremental");
    let (first, second) = (folder.file("first"), folder.file("second"));
    let arena = Arena::new(ByteCount::mib(200)).unwrap();
    let mut slice = arena.slice::<u64>(100 * CHUNK_WORDS).unwrap();
    slice.iter_mut().enumerate().for_each(|(i, word)| *word = pattern(i));
    let whole = save(&[&arena.freeze().unwrap()], &first, &SaveOptions::default(), &mut proceed);
    assert_eq!(whole.unwrap().chunks, 100);
    // The same in an arena of its own, with one chunk in a hundred changed.
    let other = Arena::new(ByteCount::mib(200)).unwrap();
    let mut changed = other.slice::<u64>(100 * CHUNK_WORDS).unwrap();
    changed.copy_from_slice(&slice);
    changed[57 * CHUNK_WORDS + 9] += 1;
    drop((slice, arena));
    let options = SaveOptions { parent: Some(first), ..SaveOptions::default() };
    let saved = save(&[&other.freeze().unwrap()], &second, &options, &mut proceed).unwrap();
    assert_eq!((saved.chunks, saved.left_out_chunks), (1, 99));
    let ratio = saved.file_bytes as f64 / CHUNK_BYTES as f64;
    assert!(ratio <= 1.1, "incremental_bytes_over_changed_bytes {ratio}");
}

/// A chain of three, each with another compression; returns the content of the last.
fn chain(folder: &Folder) -> ([PathBuf; 3], Vec<u64>) {
    let paths = ["monday", "tuesday", "wednesday"].map(|name| folder.file(name));
    let mut content = mixture();
    let mut parent = None;
    for (day, path) in paths.iter().enumerate() {
        let compression = ALL[day];
        // A single thread writes the chunks in order.
        let mut options = SaveOptions { parent, compression, threads: 1, ..SaveOptions::default() };
        options.user.insert("day".into(), day.to_string());
        saved(&content, path, &options);
        parent = Some(path.clone());
        if day < 2 {
            // One chunk changes every day, one gets content, one loses all of it.
            content[day] = 1 << 40;
            content[2 * CHUNK_WORDS + 5] = 4;
            content[3 * CHUNK_WORDS..4 * CHUNK_WORDS].fill(0);
        }
    }
    (paths, content)
}

#[test]
fn a_merged_chain_is_its_last_image_and_needs_no_other() {
    let folder = Folder::new("merge");
    let (paths, content) = chain(&folder);
    let [monday, tuesday, wednesday] = &paths;
    let image = Image::open(wednesday).unwrap();
    assert!(image.summary().chunks < 5 && image.ancestors().len() == 2);
    for compression in ALL {
        let merged = folder.file(&format!("merged-{compression}"));
        let options = MergeOptions { compression, threads: 2 };
        let answer = merge(&image, &merged, &options, &mut proceed).unwrap();
        assert_eq!((answer.identity, answer.chunks), (image.identity(), 4));
        let complete = verify(&merged).unwrap();
        assert_eq!((complete.ancestors().len(), complete.summary().parent), (0, None));
        assert_eq!(complete.description().user["day"], "2");
        assert_eq!(complete.summary().created_unix_ns, image.summary().created_unix_ns);
        assert!(image.diff(&complete, &mut proceed).unwrap().is_empty());
        assert!(restored(&merged, content.len()) == content, "{compression}");
    }
    for needed in [monday, tuesday] {
        let refused = merge(&image, needed, &MergeOptions::default(), &mut proceed).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Usage, "{refused}");
    }
    // A child of the last image stays valid when that is merged into itself.
    let thursday = folder.file("thursday");
    let options = SaveOptions { parent: Some(wednesday.clone()), ..SaveOptions::default() };
    assert_eq!(saved(&content, &thursday, &options).chunks, 0);
    merge(&image, wednesday, &MergeOptions::default(), &mut proceed).unwrap();
    std::fs::remove_file(monday).unwrap();
    std::fs::remove_file(tuesday).unwrap();
    assert_eq!(verify(&thursday).unwrap().ancestors().len(), 1);
    assert!(restored(&thursday, content.len()) == content);
}

#[test]
fn a_merge_that_finds_damage_or_is_broken_off_leaves_what_was_there() {
    let folder = Folder::new("merge-damage");
    let (paths, content) = chain(&folder);
    let names = folder.names();
    let image = Image::open(&paths[2]).unwrap();
    let options = MergeOptions { threads: 1, ..MergeOptions::default() };
    let mut stop = |_| ControlFlow::Break(());
    let broken = merge(&image, &paths[2], &options, &mut stop).unwrap_err();
    assert_eq!((broken.kind(), folder.names()), (ErrorKind::Busy, names.clone()));
    assert!(restored(&paths[2], content.len()) == content);

    // The chunk of noise, which only the first image has, plain, behind the one of small numbers.
    let at = 5 << 20;
    let first = std::fs::OpenOptions::new().read(true).write(true).open(&paths[0]).unwrap();
    let mut bytes = [0; 2];
    first.read_exact_at(&mut bytes, at).unwrap();
    first.write_all_at(&[bytes[0] ^ 1, bytes[1]], at).unwrap();
    let merged = folder.file("merged");
    let damaged = merge(&image, &merged, &options, &mut proceed).unwrap_err();
    assert_eq!((damaged.kind(), folder.names()), (ErrorKind::Corrupt, names));
    assert!(damaged.to_string().contains(paths[0].to_str().unwrap()), "{damaged}");
}

fn diff(first: &Path, second: &Path) -> Diff {
    let [first, second] = [first, second].map(|path| Image::open(path).unwrap());
    let diff = first.diff(&second, &mut proceed).unwrap();
    assert_eq!(second.diff(&first, &mut proceed).unwrap(), diff, "the other way round");
    diff
}

#[test]
fn a_difference_is_told_to_the_byte() {
    let folder = Folder::new("diff");
    let (first, second) = (folder.file("first"), folder.file("second"));
    let before = mixture();
    let mut after = before.clone();
    // Two neighbouring pages and one apart; a chunk of zeroes gets a byte; the few pages vanish.
    after[0] ^= 0xff;
    after[512] ^= 0xff00ff;
    after[9 * 512 + 3] ^= u64::MAX;
    after[2 * CHUNK_WORDS + 1024] = 1;
    after[3 * CHUNK_WORDS..4 * CHUNK_WORDS].fill(0);
    let root = |pages: std::ops::Range<u64>| Root {
        arena: 0,
        offset_bytes: pages.start * 4096,
        length_bytes: (pages.end - pages.start) * 4096,
    };
    let mut options = SaveOptions::default();
    let roots = [("head", 0..1), ("hole", 2..9), ("tail", 9..10), ("moved", 20..21), ("old", 3..4)];
    options.roots = roots.map(|(name, pages)| (name.into(), root(pages))).into();
    options.user.insert("same".into(), "1".into());
    options.user.insert("other".into(), "1".into());
    saved(&before, &first, &options);
    assert!(diff(&first, &first).is_empty());
    options.roots.insert("moved".into(), root(21..22));
    options.roots.remove("old");
    options.user.insert("other".into(), "2".into());
    options.parent = Some(first.clone());
    saved(&after, &second, &options);

    let found = diff(&first, &second);
    let bytes_of = |words: &[u64]| words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let [before_bytes, after_bytes]: [Vec<u8>; 2] = [bytes_of(&before), bytes_of(&after)];
    let differs = |length: usize| {
        let parts = before_bytes.chunks(length).zip(after_bytes.chunks(length));
        parts.filter(|(before, after)| before != after).count() as u64
    };
    let [arena] = &found.arenas[..] else { panic!("{found:?}") };
    assert_eq!(
        (arena.arena, arena.chunks, arena.pages, arena.bytes),
        (0, differs(CHUNK_BYTES), differs(4096), differs(1))
    );
    let ranges: Vec<_> =
        arena.ranges.iter().map(|range| (range.offset_bytes, range.length_bytes)).collect();
    assert_eq!(ranges[..2], [(0, 8192), (9 * 4096, 4096)]);
    assert_eq!(ranges.iter().map(|range| range.1).sum::<u64>(), arena.pages * 4096);
    let roots: Vec<_> = found.roots.iter().map(String::as_str).collect();
    assert_eq!(roots, ["head", "moved", "old", "tail"]);
    assert_eq!(found.user.into_iter().collect::<Vec<_>>(), ["other"]);
    assert!(!found.has_other_layout);

    // More memory allocated, without content.
    let third = folder.file("third");
    after.resize(6 * CHUNK_WORDS, 0);
    options.parent = None;
    saved(&after, &third, &options);
    let found = diff(&second, &third);
    assert!(found.has_other_layout && found.arenas.is_empty() && !found.is_empty());
}
