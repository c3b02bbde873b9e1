//! Every step of writing an image fails once, at each place where it is made: either the old or the new image is whole,
//! and nothing else is left; the program is unharmed.
//!
//! Failpoints apply to the whole process: one test at a time.

mod support;

use cowslip::Arena;
use cowslip::freeze_all;
use cowslip::image::{Image, MergeOptions, SaveOptions, merge, save};
use cowslip::units::{ByteCount, CHUNK_BYTES};
use cowslip_sys::Errno;
use cowslip_sys::failpoints::{Injection, Op, fail};
use support::images::{Folder, proceed, verify};
use support::world::{World, explains_itself};
use support::{Watchdog, alone, errnos_of, pattern};

const ALWAYS: u32 = u32::MAX;
/// Only our code distinguishes them.
const ERRNOS: [Errno; 2] = [Errno::NOSPC, Errno::IO];

/// A folder with the image of a world, which is saved again under the rules of a test.
struct Saving {
    folder: Folder,
    options: SaveOptions,
}

impl Saving {
    fn new(name: &str) -> Self {
        Self { folder: Folder::new(name), options: SaveOptions::default() }
    }

    /// Saves again; returns if that failed, and if all rules were spent. In any case the old or the new image is there,
    /// as the result says, whole, and nothing else; the program is unharmed and the arena thawed. With `is_unsure` it
    /// may fail after the new image has its name.
    fn again<const N: usize>(
        &self,
        rules: impl FnOnce() -> [Injection; N],
        is_unsure: bool,
    ) -> (bool, bool) {
        let path = self.folder.file("image");
        let world = World::new();
        // Chunks of zeroes take no write: every save of every world must write the same ones.
        world.wait_written();
        let frozen = freeze_all(&world.arenas()).unwrap();
        let views: Vec<_> = frozen.iter().collect();
        let before = save(&views, &path, &self.options, &mut proceed).unwrap();
        let rules = rules();
        let answer = save(&views, &path, &self.options, &mut proceed);
        let are_spent = rules.iter().all(Injection::is_spent);
        drop(rules);
        let image = verify(&path).expect("whole");
        match &answer {
            Ok(saved) => assert_eq!(image.identity(), saved.identity),
            Err(error) => {
                explains_itself(error);
                assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
                assert_eq!(image.identity() == before.identity, !is_unsure);
            }
        }
        assert_eq!(self.folder.names(), ["image"], "nothing else is left");
        drop(frozen);
        world.check();
        (answer.is_err(), are_spent)
    }
}

/// Every step of saving an image fails once, with and without unnamed files.
#[test]
fn a_save_fails_at_each_step_and_leaves_the_old_image() {
    let _alone = alone();
    let _watchdog = Watchdog::start("a save");
    let saving = Saving::new("steps");
    let mut failures = 0;
    for named in [false, true] {
        for op in [Op::DurableCreate, Op::DurableWrite, Op::DurableSync, Op::DurableRename] {
            let errnos = errnos_of(&ERRNOS);
            for errno in if named { &errnos[..1] } else { errnos } {
                for pass in 0.. {
                    let nameless =
                        named.then(|| fail(Op::DurableNameless, 0, ALWAYS, Errno::OPNOTSUPP));
                    // Only the durability of the name can be unknown.
                    let is_last = op == Op::DurableSync && pass == 1;
                    let (has_failed, _) = saving.again(|| [fail(op, pass, 1, *errno)], is_last);
                    drop(nameless);
                    failures += u32::from(has_failed);
                    if !has_failed {
                        break;
                    }
                }
            }
        }
    }
    // With names and without, at least: creation, five writes, two syncs and a rename.
    assert!(failures >= 2 * (1 + 5 + 2 + 1), "{failures} failures");
}

/// Every write is cut short once: then the rest follows, or the disk is full.
#[test]
fn a_save_goes_on_after_a_short_write_and_ends_when_the_disk_is_full() {
    let _alone = alone();
    let _watchdog = Watchdog::start("short writes");
    let mut saving = Saving::new("short");
    // One thread, so that the next write is the rest of the short one.
    saving.options.threads = 1;
    for pass in 0.. {
        let short = || fail(Op::DurableShort, pass, 1, Errno::NOSPC);
        let (has_failed, was_short) = saving.again(|| [short()], false);
        assert!(!has_failed, "what is left is written");
        if !was_short {
            assert!(pass >= 5, "{pass} writes");
            break;
        }
        let full = || [short(), fail(Op::DurableWrite, pass + 1, 1, Errno::NOSPC)];
        assert_eq!(saving.again(full, false), (true, true));
    }
    // A file system that accepts direct I/O until it sees a direct write.
    for pass in 0..3 {
        let refused = || [fail(Op::DurableDirect, pass, 1, Errno::INVAL)];
        let (has_failed, _) = saving.again(refused, false);
        assert!(!has_failed);
    }
}

/// A chain is merged into itself: either the chain is left, or the single image made from it.
#[test]
fn a_merge_fails_at_each_step_and_leaves_the_chain() {
    let _alone = alone();
    let folder = Folder::new("merge-steps");
    let (first, second) = (folder.file("first"), folder.file("second"));
    let arena = Arena::new(ByteCount::mib(16)).unwrap();
    let mut slice = arena.slice::<u64>(3 * CHUNK_BYTES / 8).unwrap();
    slice.iter_mut().enumerate().for_each(|(i, value)| *value = pattern(i));
    let frozen = arena.freeze().unwrap();
    let mut options = SaveOptions::default();
    save(&[&frozen], &first, &options, &mut proceed).unwrap();
    options.parent = Some(first);
    let mut failures = 0;
    for op in [Op::DurableCreate, Op::DurableWrite, Op::DurableSync, Op::DurableRename] {
        for pass in 0.. {
            save(&[&frozen], &second, &options, &mut proceed).unwrap();
            let chain = Image::open(&second).unwrap();
            let rule = fail(op, pass, 1, Errno::NOSPC);
            let answer = merge(&chain, &second, &MergeOptions::default(), &mut proceed);
            drop(rule);
            let is_last = op == Op::DurableSync && pass == 1;
            let is_merged = answer.is_ok() || is_last && answer.is_err();
            let image = verify(&second).unwrap();
            assert_eq!(image.ancestors().is_empty(), is_merged, "{op:?} {pass}");
            assert!(image.diff(&chain, &mut proceed).unwrap().is_empty());
            assert_eq!(folder.names(), ["first", "second"]);
            match answer {
                Ok(_) => break,
                Err(error) => explains_itself(&error),
            }
            failures += 1;
        }
    }
    assert!(failures > 5 + 2 + 1, "{failures} failures");
}
