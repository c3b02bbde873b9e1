#![allow(unsafe_code)]
//! Processes that get the descriptors of a template, or of an image that is being loaded, and do
//! what they can with them.

mod support;

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::ops::ControlFlow;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use cowslip::image::{Image, SaveOptions, save};
use cowslip::units::{ByteCount, CHUNK_BYTES};
use cowslip::{Arena, Backing, Inherit, Place, Template};
use cowslip_sys::failpoints::{Op, fail};
use cowslip_sys::memfile::{self, Seals};
use cowslip_sys::memory::{self, Prot, Sharing};
use cowslip_sys::{AsFd, Errno, OwnedFd, socket};
use support::children::{Child, Kind};
use support::{Watchdog, alone, pattern};

const WORDS: usize = 4 << 20 >> 3;

fn patterned(backing: Backing) -> (Arena, cowslip::ArenaSlice<u64>) {
    let arena = Arena::builder(ByteCount::mib(16)).backing(backing).build().unwrap();
    let mut words = arena.slice::<u64>(WORDS).unwrap();
    words.iter_mut().enumerate().for_each(|(i, word)| *word = pattern(i));
    (arena, words)
}

fn is_pattern(words: &[u64]) -> bool {
    words.len() == WORDS && words.iter().enumerate().all(|(i, &word)| word == pattern(i))
}

/// The descriptors that [`Template::send`] sends.
fn files_of(template: &Template) -> Vec<OwnedFd> {
    let (ours, theirs) = UnixStream::pair().unwrap();
    template.send(&ours).unwrap();
    socket::receive(theirs.as_fd(), &mut [0; 4096]).unwrap().1
}

fn received(template: &Template) -> Template {
    let (ours, theirs) = UnixStream::pair().unwrap();
    template.send(&ours).unwrap();
    // SAFETY: this process sent it.
    unsafe { Template::receive(&theirs) }.unwrap()
}

/// Writes to a file in every way, truncates it, makes it longer and seals it. Returns true if one
/// of the first three was possible.
fn attack(file: &OwnedFd) -> bool {
    let mut is_possible = false;
    let itself = format!("/proc/self/fd/{}", file.as_raw_fd());
    let place = memory::reserve(CHUNK_BYTES, CHUNK_BYTES).unwrap();
    let mut opened = vec![File::from(file.try_clone().unwrap())];
    opened.extend(OpenOptions::new().read(true).write(true).open(&itself));
    opened.extend(OpenOptions::new().write(true).truncate(true).open(&itself));
    for mut file in opened {
        is_possible |= file.write_at(b"changed", 0).is_ok() || file.write_all(b"changed").is_ok();
        is_possible |= memfile::punch_hole(file.as_fd(), 0, 4096).is_ok();
        is_possible |= file.set_len(0).is_ok() || file.set_len(1 << 40).is_ok();
        // SAFETY: the place belongs to this function.
        let mapped = unsafe { memory::map_file(place, file.as_fd(), 0, Sharing::Shared, Prot::RW) };
        is_possible |= mapped.is_ok();
        for seal in [Seals::WRITE, Seals::FUTURE_WRITE, Seals::SEAL] {
            let _ = memfile::seal(file.as_fd(), seal);
        }
    }
    // SAFETY: the place belongs to this function.
    unsafe { memory::unmap(place) }.unwrap();
    is_possible
}

/// How receivers are kept from changes: see `cowslip_sys::handed_out`.
const WAYS: [(&str, Backing, bool); 3] = [
    ("a read-only mount, where this user can have one", Backing::Thp, true),
    ("a copy, where this user could have a mount", Backing::Thp, false),
    ("seals", Backing::Base, true),
];

#[test]
fn i2_what_a_receiver_does_changes_nothing_that_others_see() {
    let _alone = alone();
    let _watchdog = Watchdog::start("receivers");
    for (way, backing, clones_mount) in WAYS {
        let _rule = (!clones_mount).then(|| fail(Op::MountClone, 0, u32::MAX, Errno::INVAL));
        let (arena, mut words) = patterned(backing);
        // Each of its tokens is sealed by a receiver.
        for round in 0..6 {
            let template = arena.freeze().unwrap().into_template().unwrap();
            let before = received(&template);
            for file in files_of(&template) {
                let is_token = memfile::len_bytes(file.as_fd()).unwrap() < CHUNK_BYTES as u64;
                assert!(!attack(&file) || is_token, "{way}, round {round}: the base changed");
                assert!(memfile::len_bytes(file.as_fd()).unwrap() > 0, "{way}, round {round}");
            }
            let after = received(&template);
            words[round] = 0;
            let restored = before.restore(before.arena_builder(Place::Anywhere).unwrap()).unwrap();
            let there = before.range_in(&restored, words.range());
            // SAFETY: no other code knows of this memory.
            let there = unsafe { restored.adopt_slice::<u64>(there) }.unwrap();
            for template in [&template, &before, &after] {
                let clone = template.map(Place::Anywhere).unwrap();
                assert!(is_pattern(clone.slice(&words)), "{way}, round {round}");
            }
            assert!(is_pattern(&there), "{way}, round {round}");
            words[round] = pattern(round);
            let child = Child::fork(&arena, Kind::Checks, || is_pattern(&words)).unwrap();
            assert!(child.ends_right(), "{way}, round {round}");
            drop(template);
            // The base stays for those that are left, whatever was done to the token.
            arena.wait_live(Duration::from_millis(20));
            words.fill(7);
            let clone = after.map(Place::Anywhere).unwrap();
            assert!(is_pattern(clone.slice(&words)), "{way}, round {round}");
            words.iter_mut().enumerate().for_each(|(i, word)| *word = pattern(i));
        }
    }
}

/// Memory that clones share is written by all, but keeps its length.
#[test]
fn shared_memory_keeps_its_length() {
    let _alone = alone();
    let (arena, words) = patterned(Backing::Base);
    let frozen = arena.freeze().unwrap();
    let template = frozen.template().region(words.range(), Inherit::Shared).build().unwrap();
    let shared = File::from(files_of(&template).pop().unwrap());
    assert!(shared.set_len(0).is_err() && shared.set_len(1 << 40).is_err());
}

#[test]
fn what_a_borrower_does_changes_nothing_that_others_get() {
    let _alone = alone();
    let _watchdog = Watchdog::start("borrowers");
    let path = std::env::temp_dir().join(format!("cowslip-borrowers-{}", std::process::id()));
    let (arena, words) = patterned(Backing::Thp);
    let mut proceed = |_| ControlFlow::Continue(());
    let view = arena.freeze().unwrap();
    save(&[&view], &path, &SaveOptions::default(), &mut proceed).unwrap();
    for clones_mount in [true, false] {
        let _rule = (!clones_mount).then(|| fail(Op::MountClone, 0, u32::MAX, Errno::INVAL));
        let loading = Image::open(&path).unwrap().load(0).unwrap();
        std::thread::scope(|scope| {
            let (ours, theirs) = UnixStream::pair().unwrap();
            let loading = &loading;
            scope.spawn(move || loading.lend(&theirs).unwrap());
            let file = socket::receive(ours.as_fd(), &mut [0]).unwrap().1.pop().unwrap();
            let asks = |chunk: u64| {
                (&ours).write_all(&chunk.to_le_bytes()).unwrap();
                let mut answer = [0; 8];
                std::io::Read::read_exact(&mut &ours, &mut answer).unwrap();
                u64::from_le_bytes(answer)
            };
            let mut content = vec![0; CHUNK_BYTES];
            for round in 0..40 {
                assert_eq!(asks(round % 2), 0);
                memfile::read_exact_at(file.as_fd(), &mut content, round % 2 * CHUNK_BYTES as u64)
                    .unwrap();
                let first = (round % 2) as usize * CHUNK_BYTES / 8;
                let word = |i: usize| u64::from_le_bytes(content[i * 8..][..8].try_into().unwrap());
                assert!((0..CHUNK_BYTES / 8).all(|i| word(i) == pattern(first + i)));
            }
            attack(&file);
            asks(0);
        });
        let template = loading.finish().unwrap();
        drop(loading);
        let clone = received(&template).map(Place::Anywhere).unwrap();
        let there = template.regions()[0].range();
        assert!(is_pattern(&clone.values::<u64>(there)[..WORDS]));
    }
    drop((view, words));
    std::fs::remove_file(&path).unwrap();
}
