//! Images on disk: exact, whole or absent, and damage is found.

mod support;

use std::ops::ControlFlow;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use cowslip::bytemuck::{Pod, Zeroable};
use cowslip::image::{
    Image, Progress, RestoreOptions, Restored, Root, SaveOptions, Strategy, save,
};
use cowslip::units::{ByteCount, CHUNK_BYTES, VirtRange, page_size_bytes};
use cowslip::{Arena, ErrorKind, Place, Prot};
use support::images::{Folder, patterned, proceed, saved, verify, words};
use support::{Counters, PATIENCE, Scatter, Watchdog, Writers, checksum, pattern};

/// Restores all of it before it is used.
fn restore(image: &Image, place: Place) -> cowslip::Result<Arena> {
    let options = RestoreOptions { place, strategy: Strategy::Eager, ..RestoreOptions::default() };
    image.restore(0, &options, &mut proceed).map(Restored::into_arena)
}

#[test]
fn what_was_frozen_is_restored_and_can_be_saved_again() {
    let folder = Folder::new("images");
    let path = folder.file("image");
    let arena = Arena::new(ByteCount::mib(64)).unwrap();
    let mut slice = patterned(&arena);
    let guard = arena.allocate(ByteCount::mib(1), Prot::NONE).unwrap();
    let content = slice.to_vec();
    let frozen = arena.freeze().unwrap();
    slice.fill(1);
    let mut options = SaveOptions::default();
    let offset_bytes = (slice.range().start - arena.range().start) as u64;
    let root = Root { arena: 0, offset_bytes, length_bytes: slice.range().len as u64 };
    options.roots.insert("table".into(), root.clone());
    options.user.insert("generation".into(), "1".into());
    let first = save(&[&frozen], &path, &options, &mut proceed).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    // Five chunks have content, a sixth in a third of its pages, and the eighth has 1000 words. They lie behind the
    // header's own 2 MiB.
    assert!(first.file_bytes < 7 * CHUNK_BYTES as u64, "{first:?}");

    let image = verify(&path).unwrap();
    assert_eq!(image.description().roots["table"], root);
    assert_eq!(image.description().user["generation"], "1");
    let restored = restore(&image, Place::Anywhere).unwrap();
    assert!(words(&restored, slice.range(), &arena)[..content.len()] == content);
    let there = restored.range().start + (guard.start - arena.range().start);
    assert_eq!(
        restored.raw().parts(VirtRange::new(there, guard.len))[0].2,
        Prot::NONE,
        "guards hold"
    );
    let taken = restore(&image, Place::Original).unwrap_err();
    assert_eq!(taken.kind(), ErrorKind::Busy, "{taken}");

    // Independent of the file: it is frozen and saved over the file that it came from.
    let again = restored.freeze().unwrap();
    let second = saved(&again, &path);
    assert_ne!(first.identity, second.identity);
    let (range, start) = (slice.range(), arena.range().start);
    drop((frozen, slice, arena));
    let original = restore(&verify(&path).unwrap(), Place::Anywhere).unwrap();
    let at = original.range().start + (range.start - start);
    let whole = VirtRange::new(at, range.len);
    assert!(words(&original, whole, &original)[..content.len()] == content);
    assert_eq!(folder.names(), ["image"], "nothing else is left");
}

#[test]
fn pointers_stay_right_at_the_original_addresses() {
    let folder = Folder::new("original");
    let path = folder.file("image");
    // At addresses that no other test of this process uses when they are free for a moment.
    let builder = Arena::builder(ByteCount::mib(16)).at(support::images::ELSEWHERE);
    let arena = builder.build().unwrap();
    let mut slice = arena.slice::<u64>(1000).unwrap();
    slice[7] = &raw const slice[9] as u64;
    slice[9] = 99;
    let (range, pointer) = (arena.range(), slice[7]);
    saved(&arena.freeze().unwrap(), &path);
    drop((slice, arena));
    let restored = restore(&verify(&path).unwrap(), Place::Original).unwrap();
    assert_eq!(restored.range(), range);
    #[allow(unsafe_code)]
    // SAFETY: restored memory, readable.
    let value = unsafe { *(pointer as *const u64) };
    assert_eq!(value, 99);
}

#[test]
fn a_slice_of_structs_keeps_its_length() {
    #[derive(Clone, Copy, PartialEq, Debug, Pod, Zeroable)]
    #[bytemuck(crate = "cowslip::bytemuck")]
    #[repr(C)]
    struct Slot([u64; 3]);

    const SLOTS: usize = 1000;
    let folder = Folder::new("structs");
    let path = folder.file("image");
    let arena = Arena::new(ByteCount::mib(8)).unwrap();
    let mut slots = arena.slice::<Slot>(SLOTS).unwrap();
    slots[SLOTS - 1] = Slot([1, 2, 3]);
    let roots = [("slots".to_owned(), slots.root(0))].into();
    let options = SaveOptions { roots, ..SaveOptions::default() };
    save(&[&arena.freeze().unwrap()], &path, &options, &mut proceed).unwrap();

    let image = Image::open(&path).unwrap();
    let restored = image.restore(0, &RestoreOptions::default(), &mut proceed).unwrap();
    let range = restored.root("slots").unwrap();
    #[allow(unsafe_code)]
    // SAFETY: no other slice has this memory; each one is dropped before the next.
    let adopt = |len| unsafe {
        let range = VirtRange::new(range.start, len);
        restored.arena().adopt_slice::<Slot>(range).map(|found| {
            let found = std::mem::ManuallyDrop::new(found);
            (found.len(), found[SLOTS - 1])
        })
    };
    assert_eq!(adopt(range.len).unwrap(), (SLOTS, Slot([1, 2, 3])));
    // Roots of whole pages, as older images have them.
    assert_eq!(adopt(slots.range().len).unwrap().0, slots.range().len / size_of::<Slot>());
    for wrong in [range.len - 1, range.len + (1 << 20), usize::MAX - range.len, usize::MAX] {
        assert_eq!(adopt(wrong).unwrap_err().kind(), ErrorKind::Usage, "{wrong}");
    }
}

#[test]
fn an_image_shows_one_instant_while_threads_write() {
    let _watchdog = Watchdog::start("saving under writers");
    let folder = Folder::new("instant");
    let path = folder.file("image");
    let arena = Arena::new(ByteCount::mib(64)).unwrap();
    let counters = Counters::new(&arena, ByteCount::mib(24));
    let writers = Writers::start(&counters, 2);
    for _ in 0..5 {
        let frozen = arena.freeze_timeout(PATIENCE).unwrap();
        let seen = checksum(frozen.slice(counters.slice()));
        saved(&frozen, &path);
        drop(frozen);
        let restored = restore(&verify(&path).unwrap(), Place::Anywhere).unwrap();
        let restored = words(&restored, counters.slice().range(), &arena);
        assert_eq!(checksum(&restored[..counters.len()]), seen);
        if !arena.raw().start_service() {
            break; // nothing thaws it for the next freeze
        }
    }
    let written = writers.stop();
    assert_eq!(counters.sum(), written, "no update is lost");
}

#[test]
fn an_incremental_image_holds_what_changed_and_needs_its_parents() {
    let folder = Folder::new("chain");
    let names = ["monday", "tuesday", "wednesday"].map(|name| folder.file(name));
    let arena = Arena::new(ByteCount::mib(64)).unwrap();
    let mut slice = patterned(&arena);
    let mut parent = None;
    for (day, path) in names.iter().enumerate() {
        let frozen = arena.freeze_timeout(PATIENCE).unwrap();
        let options = SaveOptions { parent: parent.take(), ..SaveOptions::default() };
        let saved = save(&[&frozen], path, &options, &mut proceed).unwrap();
        drop(frozen);
        if !arena.raw().start_service() {
            return support::skip("userfaultfd", "nothing thaws it for the next freeze");
        }
        assert!(day == 0 || saved.chunks <= 2, "{saved:?}");
        parent = Some(path.clone());
        // One chunk gets content, one becomes zeroes; the changes of the last day are not saved.
        slice[3 * CHUNK_BYTES / 8 + day] = 1;
        slice[5 * CHUNK_BYTES / 8..6 * CHUNK_BYTES / 8].fill(0);
    }
    let image = verify(&names[2]).unwrap();
    assert_eq!(image.ancestors().len(), 2);
    let frozen = arena.freeze_timeout(PATIENCE).unwrap();
    let options = SaveOptions { parent: Some(names[2].clone()), ..SaveOptions::default() };
    for needed in &names {
        let refused = save(&[&frozen], needed, &options, &mut proceed).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Usage, "{refused}");
    }
    std::fs::create_dir(folder.file("other")).unwrap();
    let away = folder.file("other").join("thursday");
    let refused = save(&[&frozen], &away, &options, &mut proceed).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Usage, "{refused}");
    // The same folder under another name is accepted.
    let beside = folder.file("other").join("..").join("thursday");
    save(&[&frozen], &beside, &options, &mut proceed).unwrap();
    assert_eq!(verify(&beside).unwrap().ancestors().len(), 3);
    drop(frozen);
    let restored = restore(&image, Place::Anywhere).unwrap();
    slice[3 * CHUNK_BYTES / 8 + 2] = pattern(3 * CHUNK_BYTES / 8 + 2);
    assert!(words(&restored, slice.range(), &arena)[..slice.len()] == slice[..]);

    std::fs::rename(&names[1], folder.file("elsewhere")).unwrap();
    let missing = Image::open(&names[2]).unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::Corrupt, "{missing}");
    std::fs::copy(&names[0], &names[1]).unwrap();
    let another = Image::open(&names[2]).unwrap_err();
    assert!(another.to_string().contains("its parent is"), "{another}");

    let other = Arena::new(ByteCount::mib(32)).unwrap();
    let options = SaveOptions { parent: Some(names[0].clone()), ..SaveOptions::default() };
    let frozen = other.freeze().unwrap();
    let refused = save(&[&frozen], &folder.file("x"), &options, &mut proceed).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Usage);
}

#[test]
fn any_flipped_bit_and_any_missing_end_is_found() {
    let folder = Folder::new("damage");
    let path = folder.file("image");
    let arena = Arena::new(ByteCount::mib(16)).unwrap();
    let mut slice = arena.slice::<u64>(5 * CHUNK_BYTES / 16).unwrap();
    let mut scatter = Scatter(3);
    slice.iter_mut().for_each(|value| *value = scatter.next());
    // One thread writes chunks in order, so that none of the places below lies between two parts.
    let options = SaveOptions { threads: 1, ..SaveOptions::default() };
    let frozen = arena.freeze().unwrap();
    let length = save(&[&frozen], &path, &options, &mut proceed).unwrap().file_bytes;
    let file = std::fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let flip = |at: u64, bit: u8| {
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ 1 << bit], at).unwrap();
    };
    let whole = std::fs::read(&path).unwrap();
    let is_nobodys = |at: u64| {
        let page = whole.chunks(4096).nth(at as usize / 4096).unwrap();
        (256..4096).contains(&at) || page.iter().all(|&byte| byte == 0)
    };
    for round in 0..200 {
        // A few in the header and the index, the rest anywhere; bytes between the parts are unused.
        let at = match round {
            0..20 => scatter.next() % 256,
            20..40 => length - 1 - scatter.next() % 192,
            _ => scatter.next() % length,
        };
        if is_nobodys(at) {
            continue;
        }
        let bit = (scatter.next() % 8) as u8;
        flip(at, bit);
        let found = verify(&path).map(|_| ()).unwrap_err();
        assert_eq!(found.kind(), ErrorKind::Corrupt, "bit {bit} of byte {at}: {found}");
        assert!(found.to_string().contains(path.to_str().unwrap()), "{found}");
        flip(at, bit);
    }
    verify(&path).expect("whole again");
    for cut in [length - 1, length / 2, 255, 7, 0] {
        file.set_len(cut).unwrap();
        assert_eq!(Image::open(&path).unwrap_err().kind(), ErrorKind::Corrupt, "cut at {cut}");
    }
}

/// Saves for ever, with new content each time, until it is killed.
#[test]
fn saver() {
    let Some(path) = std::env::var_os("COWSLIP_TEST_IMAGE").map(PathBuf::from) else { return };
    let arena = Arena::new(ByteCount::mib(16)).unwrap();
    let mut slice = arena.slice::<u64>(4 * CHUNK_BYTES / 8).unwrap();
    for round in 1.. {
        slice.fill(round);
        let frozen = arena.freeze_timeout(PATIENCE).unwrap();
        saved(&frozen, &path);
    }
}

#[test]
fn kill_9_leaves_the_last_image_whole_at_every_instant() {
    let folder = Folder::new("kill");
    let path = folder.file("image");
    let arena = Arena::new(ByteCount::mib(8)).unwrap();
    if !arena.raw().start_service() {
        return support::skip("userfaultfd", "the saver cannot freeze twice");
    }
    let mut scatter = Scatter(11);
    let this = std::env::current_exe().unwrap();
    for _ in 0..support::scaled(20) {
        let mut saver = Command::new(&this);
        saver.args(["--exact", "saver", "--test-threads=1"]).env("COWSLIP_TEST_IMAGE", &path);
        let mut saver = saver.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        support::eventually("a first image", || {
            path.exists() || saver.try_wait().unwrap().is_some()
        });
        let first = verify(&path).expect("whole").identity();
        // The kill comes somewhere in the middle of a later save.
        let another = || verify(&path).expect("whole at every instant").identity() != first;
        support::eventually("another image", another);
        (0..scatter.next() % 50_000).for_each(|_| std::hint::spin_loop());
        saver.kill().unwrap();
        saver.wait().unwrap();
        let image = verify(&path).expect("whole after kill -9");
        let restored = restore(&image, Place::Anywhere).unwrap();
        let piece = &image.description().arenas[0].pieces[0];
        let start = restored.range().start + piece.offset_bytes as usize;
        let range = VirtRange::new(start, 4 * CHUNK_BYTES);
        let words = words(&restored, range, &restored);
        assert!(words[0] > 0 && words.iter().all(|&word| word == words[0]), "of one instant");
        std::fs::remove_file(&path).unwrap();
    }
}

#[test]
fn a_save_that_is_broken_off_leaves_what_was_there() {
    let folder = Folder::new("cancel");
    let path = folder.file("image");
    let arena = Arena::new(ByteCount::mib(32)).unwrap();
    let mut slice = patterned(&arena);
    let frozen = arena.freeze().unwrap();
    let before = saved(&frozen, &path);
    slice.fill(3);
    let mut calls = 0;
    let mut stop_at_third = |progress: Progress| {
        assert!(progress.done_bytes <= progress.total_bytes);
        calls += 1;
        if calls == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let options = SaveOptions::default();
    let broken = save(&[&frozen], &path, &options, &mut stop_at_third).unwrap_err();
    assert_eq!((broken.kind(), calls), (ErrorKind::Busy, 3));
    assert_eq!(verify(&path).unwrap().identity(), before.identity);
    assert_eq!(folder.names(), ["image"]);
    let nowhere =
        save(&[&frozen], Path::new("/nowhere/image"), &options, &mut proceed).unwrap_err();
    assert!(nowhere.to_string().contains("/nowhere/image"), "{nowhere}");
}

#[test]
fn a_save_takes_no_memory_for_what_was_never_touched() {
    let folder = Folder::new("holes");
    let path = folder.file("image");
    let arena = Arena::new(ByteCount::mib(64)).unwrap();
    let mut slice = arena.slice::<u64>(16 * CHUNK_BYTES / 8).unwrap();
    slice[5 * CHUNK_BYTES / 8 + 7] = 1;
    let frozen = arena.freeze().unwrap();
    let saved = saved(&frozen, &path);
    assert_eq!((saved.chunks, saved.left_out_chunks), (1, 15));
    drop(frozen);
    if !arena.wait_live(PATIENCE) {
        return support::skip("userfaultfd", "nothing thaws it to be looked at");
    }
    // True for each page that the file behind it has.
    let mut present = vec![0u8; slice.range().len / page_size_bytes()];
    #[allow(unsafe_code)]
    // SAFETY: the range is mapped and page-aligned, and there is a byte for each of its pages.
    let answer = unsafe {
        libc::mincore(slice.range().start as *mut _, slice.range().len, present.as_mut_ptr())
    };
    assert_eq!(answer, 0);
    let pages = present.iter().filter(|&&page| page & 1 != 0).count();
    assert!(pages <= CHUNK_BYTES / page_size_bytes(), "{pages} pages are there");
}

/// A tmpfs that is unmounted when this value is dropped.
struct Disk(PathBuf);

impl Disk {
    fn new(size: &str, at: PathBuf) -> Option<Self> {
        std::fs::create_dir(&at).unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", size, "tmpfs"]).arg(&at).stderr(Stdio::null());
        mount.status().is_ok_and(|status| status.success()).then(|| Self(at))
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

#[test]
fn a_disk_that_is_full_keeps_the_old_image_and_gives_its_room_back() {
    let folder = Folder::new("full");
    let Some(disk) = Disk::new("size=9m", folder.file("disk")) else {
        return support::skip("root", "no file system can be mounted");
    };
    let path = disk.0.join("image");
    let arena = Arena::new(ByteCount::mib(32)).unwrap();
    let mut slice = arena.slice::<u64>(8 * CHUNK_BYTES / 8).unwrap();
    slice[..3 * CHUNK_BYTES / 8].iter_mut().enumerate().for_each(|(i, word)| *word = pattern(i));
    let small = saved(&arena.freeze().unwrap(), &path);
    let large = Arena::new(ByteCount::mib(32)).unwrap();
    let mut content = large.slice::<u64>(slice.len()).unwrap();
    content.fill(3);
    for _ in 0..3 {
        let frozen = large.freeze_timeout(PATIENCE).unwrap();
        let full = save(&[&frozen], &path, &SaveOptions::default(), &mut proceed).unwrap_err();
        assert_eq!(full.errno(), Some(libc::ENOSPC), "{full}");
        assert_eq!(verify(&path).unwrap().identity(), small.identity);
        assert_eq!(std::fs::read_dir(&disk.0).unwrap().count(), 1, "nothing else is left");
        // The partly written image is gone: there is room again.
        std::fs::write(disk.0.join("other"), vec![1; 2 << 20]).unwrap();
        std::fs::remove_file(disk.0.join("other")).unwrap();
        drop(frozen);
        if !large.raw().start_service() {
            break; // nothing thaws it for the next freeze
        }
    }
}
