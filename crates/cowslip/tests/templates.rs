#![allow(unsafe_code)]
//! Templates and their clones, in this process, in children, and in unrelated processes.

mod support;

use std::collections::HashSet;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cowslip::units::{ByteCount, CHUNK_BYTES, VirtRange, page_size_bytes};
use cowslip::{
    Arena, ArenaSlice, Backing, ErrorKind, Inherit, Place, Prot, Template, TemplateClone,
    TemplateServer,
};
use cowslip_sys::{AsFd, OwnedFd, socket};
use support::children::{kill, plain_fork, wait_for_ever};
use support::{
    PATIENCE, Scatter, Watchdog, alone, huge_mapped_bytes, pattern, scaled, skip, smaps_bytes,
    status_of,
};

const SIZE: ByteCount = ByteCount::mib(32);
/// By this time an allowed thaw has long begun.
const TOO_EARLY: Duration = Duration::from_millis(300);

/// An arena with a pattern in it.
fn patterned(backing: Backing) -> (Arena, ArenaSlice<u64>) {
    let arena = Arena::builder(ByteCount::mib(64)).backing(backing).build().unwrap();
    let mut words = arena.slice::<u64>(SIZE.0 as usize / 8).unwrap();
    words.iter_mut().enumerate().for_each(|(i, word)| *word = pattern(i));
    (arena, words)
}

fn is_pattern(words: &[u64]) -> bool {
    words.iter().enumerate().all(|(i, &word)| word == pattern(i))
}

/// Writes to `count` pages at random; returns the number of different ones.
fn write_pages(words: &mut [u64], count: usize, scatter: &mut Scatter) -> usize {
    let in_page = page_size_bytes() / 8;
    let places = (0..count).map(|_| scatter.next() as usize % (words.len() / in_page));
    let pages: HashSet<_> = places.collect();
    pages.iter().for_each(|page| words[page * in_page + page % in_page] = 0);
    pages.len()
}

fn kernel_is_at_least(wanted: (u32, u32)) -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(['.', '-']).map(|number| number.parse().unwrap_or(0));
    (numbers.next().unwrap(), numbers.next().unwrap()) >= wanted
}

/// Each freeze has other chunks in another file. A clone maps them from there; a process that gets the template, and an
/// arena that is made of it, have them in one file.
#[test]
fn templates_of_memory_in_several_files_are_exact_here_and_elsewhere() {
    let _alone = alone();
    let _watchdog = Watchdog::start("several templates");
    let (arena, mut words) = patterned(Backing::Thp);
    let chunk_words = CHUNK_BYTES / 8;
    let mut templates = Vec::new();
    for round in 0..6 {
        if round > 0 {
            let written = (0..words.len() / chunk_words).filter(|chunk| chunk % 4 == round % 4);
            written.for_each(|chunk| words[chunk * chunk_words + round] = round as u64);
        }
        let template = match arena.freeze_timeout(Duration::ZERO) {
            Ok(frozen) => frozen.into_template().unwrap(),
            Err(error) if error.kind() == ErrorKind::Busy && round > 0 => {
                return skip("userfaultfd", "one view at a time");
            }
            Err(error) => panic!("{error}"),
        };
        templates.push((template, words.to_vec()));
    }
    for (template, then) in &templates {
        let mut clone = template.map(Place::Anywhere).unwrap();
        assert!(clone.slice(&words)[..] == then[..]);
        clone.slice_mut(&words).iter_mut().step_by(512).for_each(|word| *word = 0);
        clone.reset().unwrap();
        assert!(clone.slice(&words)[..] == then[..], "after a reset");

        let (ours, theirs) = UnixStream::pair().unwrap();
        template.send(&ours).unwrap();
        // SAFETY: the sender is this process.
        let received = unsafe { Template::receive(&theirs) }.unwrap();
        assert!(received.map(Place::Anywhere).unwrap().slice(&words)[..] == then[..], "sent");

        let again = template.restore(template.arena_builder(Place::Anywhere).unwrap()).unwrap();
        let place = template.range_in(&again, words.value_range());
        // SAFETY: no other slice has this memory.
        let restored = unsafe { again.adopt_slice::<u64>(place) }.unwrap();
        assert!(restored[..] == then[..], "an arena of its own");
    }
    let kept: Vec<_> = templates
        .iter()
        .map(|(template, then)| (template.map(Place::Anywhere).unwrap(), then.clone()))
        .collect();
    drop(templates);
    words.fill(0);
    for (clone, then) in &kept {
        assert!(clone.slice(&words)[..] == then[..], "after the template, and later writes");
    }
    drop(kept);
    assert!(arena.wait_live(PATIENCE));
    assert!(words.iter().all(|word| *word == 0));
}

#[test]
fn i2_clones_are_exact_and_everybody_writes_for_himself() {
    let _alone = alone();
    let _watchdog = Watchdog::start("clones");
    for backing in [Backing::Thp, Backing::Base] {
        let (arena, mut words) = patterned(backing);
        let template = arena.freeze().unwrap().into_template().unwrap();
        let mut clones: Vec<_> = (0..3).map(|_| template.map(Place::Anywhere).unwrap()).collect();
        words.fill(1);
        for (i, clone) in clones.iter_mut().enumerate() {
            assert!(is_pattern(clone.slice(&words)), "clone {i} before its write");
            clone.slice_mut(&words).fill(10 + i as u64);
        }
        for (i, clone) in clones.iter().enumerate() {
            assert!(clone.slice(&words).iter().all(|&word| word == 10 + i as u64));
        }
        assert!(words.iter().all(|&word| word == 1));
        let late = template.map(Place::Anywhere).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| assert!(is_pattern(late.slice(&words))));
            assert!(is_pattern(late.slice(&words)));
        });
        for clone in &mut clones {
            clone.reset().unwrap();
            assert!(is_pattern(clone.slice(&words)));
        }
        assert!(words.iter().all(|&word| word == 1));
    }
}

#[test]
fn a_reset_drops_what_was_written_and_keeps_the_huge_mappings() {
    let _alone = alone();
    let _watchdog = Watchdog::start("resets");
    for backing in [Backing::Thp, Backing::Base] {
        let (arena, words) = patterned(backing);
        let template = arena.freeze().unwrap().into_template().unwrap();
        let mut clone = template.map(Place::Anywhere).unwrap();
        let range = clone.range();
        let mut scatter = Scatter(0x7e3a);
        assert!(is_pattern(clone.slice(&words)));
        for round in 0..scaled(40) {
            let pages = write_pages(clone.slice_mut(&words), 1 + round % 9, &mut scatter);
            let written = (pages * page_size_bytes()) as u64;
            assert_eq!(smaps_bytes(range, "Anonymous"), written, "round {round}");
            clone.reset().unwrap();
            assert_eq!(smaps_bytes(range, "Anonymous"), 0, "round {round}");
            if arena.pages().is_huge() && kernel_is_at_least((6, 14)) {
                let kept = huge_mapped_bytes(range);
                assert!(kept >= SIZE.0 - (pages * CHUNK_BYTES) as u64, "only {kept} bytes kept");
            }
            assert!(is_pattern(clone.slice(&words)), "round {round}");
            if arena.pages().is_huge() {
                assert_eq!(huge_mapped_bytes(range), SIZE.0, "round {round}");
            }
        }
        if backing == Backing::Thp && !arena.pages().is_huge() {
            skip("huge", "this process gets no huge pages");
        }
        clone.slice_mut(&words).fill(0);
        clone.reset().unwrap();
        assert_eq!(smaps_bytes(range, "Anonymous"), 0);
        assert!(is_pattern(clone.slice(&words)));
    }
}

#[test]
fn what_is_copied_shared_or_fresh_is_as_declared() {
    let _alone = alone();
    let _watchdog = Watchdog::start("regions");
    let arena = Arena::new(ByteCount::mib(64)).unwrap();
    let new = |words| arena.slice::<u64>(words).unwrap();
    let (mut copied, mut shared, mut fresh) = (new(1 << 18), new(3000), new(1 << 18));
    copied.fill(1);
    shared.fill(2);
    fresh.fill(3);
    let template = arena
        .freeze()
        .unwrap()
        .template()
        .region(fresh.range(), Inherit::Fresh)
        .region(shared.range(), Inherit::Shared)
        .build()
        .unwrap();
    let kind_at = |start| {
        let mut regions = template.regions().iter();
        regions.find(|region| region.range().contains(start)).unwrap().inherit()
    };
    assert_eq!(kind_at(copied.range().start), Inherit::Copied);
    assert_eq!(kind_at(fresh.range().start), Inherit::Fresh);
    assert_eq!(kind_at(shared.range().start), Inherit::Shared);
    assert_eq!(kind_at(shared.range().end() - 1), Inherit::Shared);
    assert!(template.regions().windows(2).all(|w| w[0].range().end() <= w[1].range().start));

    shared.fill(4);
    let mut one = template.map(Place::Anywhere).unwrap();
    let other = template.map(Place::Anywhere).unwrap();
    assert!(one.shared_words(shared.range()).iter().take(3000).all(|w| w.load(Relaxed) == 2));
    one.shared_words(shared.range())[7].store(70, Relaxed);
    one.slice_mut(&fresh).fill(5);
    one.slice_mut(&copied)[7] = 6;
    assert_eq!(other.shared_words(shared.range())[7].load(Relaxed), 70);
    assert!(other.slice(&fresh).iter().all(|&word| word == 0));
    one.reset().unwrap();
    assert_eq!(one.shared_words(shared.range())[7].load(Relaxed), 70, "a reset keeps it");
    assert!(one.slice(&fresh).iter().all(|&word| word == 0));
    assert!(one.slice(&copied).iter().all(|&word| word == 1));
    assert!(shared.iter().all(|&word| word == 4), "the arena has no part in it");

    let mut worker = Worker::start();
    template.send(&worker.socket).unwrap();
    worker.place(shared.range());
    assert_eq!(worker.ask(b'S'), 70, "another process shares it");
    assert_eq!(one.shared_words(shared.range())[7].load(Relaxed), 71);
    let refused =
        |touch: &dyn Fn()| std::panic::catch_unwind(std::panic::AssertUnwindSafe(touch)).is_err();
    assert!(refused(&|| _ = one.slice(&shared)), "plain references to shared memory");
    assert!(refused(&|| _ = one.shared_words(copied.range())));
}

#[test]
fn nonsense_is_refused_by_the_builder() {
    let _alone = alone();
    let arena = Arena::new(ByteCount::mib(16)).unwrap();
    let empty = arena.freeze().unwrap().into_template().unwrap_err();
    assert_eq!(empty.kind(), ErrorKind::Usage, "{empty}");
    if !arena.raw().start_service() {
        skip("userfaultfd", "nothing is thawed in the background");
        return;
    }
    let words = arena.slice::<u64>(1 << 16).unwrap();
    let range = words.range();
    for bad in [
        VirtRange::new(range.start + 1, page_size_bytes()),
        VirtRange::new(range.start, 100),
        VirtRange::new(range.start - CHUNK_BYTES, CHUNK_BYTES),
    ] {
        let refused = arena
            .freeze_timeout(PATIENCE)
            .unwrap()
            .template()
            .region(bad, Inherit::Fresh)
            .build()
            .unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Usage, "{refused}");
    }
}

#[test]
fn protections_go_with_the_template() {
    let _alone = alone();
    let _watchdog = Watchdog::start("protections");
    let (arena, words) = patterned(Backing::Thp);
    let page = page_size_bytes();
    let part = |pages: usize| VirtRange::new(words.range().start + pages * page, page);
    let (constant, guard) = (part(5), part(600));
    // SAFETY: no thread writes the one, or touches the other.
    unsafe {
        arena.protect(constant, Prot::READ).unwrap();
        arena.protect(guard, Prot::NONE).unwrap();
    }
    let template = arena.freeze().unwrap().into_template().unwrap();
    let has =
        |range, prot| template.regions().iter().any(|r| r.range() == range && r.prot() == prot);
    assert!(has(constant, Prot::READ) && has(guard, Prot::NONE));
    let mut clone = template.map(Place::Anywhere).unwrap();
    assert_eq!(clone.values::<u64>(constant)[3], pattern(5 * page / 8 + 3));
    for (range, write) in [(constant, true), (guard, false)] {
        for reset in [false, true] {
            if reset {
                clone.reset().unwrap();
            }
            let place = clone.address(range.start) as *mut u64;
            let child = match plain_fork() {
                0 => {
                    // SAFETY: the kernel ends this process, or the test fails.
                    unsafe {
                        if write {
                            place.write(1)
                        } else {
                            std::hint::black_box(place.read_volatile());
                        }
                    };
                    cowslip_sys::process::exit_now(0)
                }
                child => child,
            };
            assert_eq!(status_of(child) & 0x7f, libc::SIGSEGV, "{range}");
        }
    }
    let clone = Mutex::new(clone);
    let write = || _ = clone.lock().unwrap().values_mut::<u64>(constant);
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(write)).is_err());
}

#[test]
fn a_clone_goes_to_the_original_addresses_if_they_are_free() {
    let _alone = alone();
    let (arena, words) = patterned(Backing::Thp);
    let template = arena.freeze().unwrap().into_template().unwrap();
    let taken = template.map(Place::Original).unwrap_err();
    assert_eq!(taken.kind(), ErrorKind::Busy, "{taken}");
    let range = words.range();
    let mut worker = Worker::start();
    template.send(&worker.socket).unwrap();
    worker.place(range);
    assert_eq!(worker.ask(b'O'), range.start as u64);
    drop((words, arena));
    let clone = template.map(Place::Original).expect("the arena has ended, the template has not");
    assert_eq!(clone.address(range.start), range.start);
    assert!(is_pattern(clone.values(range)));
}

#[test]
fn i2_unrelated_processes_have_clones_of_their_own() {
    let _alone = alone();
    let _watchdog = Watchdog::start("unrelated processes");
    let (arena, mut words) = patterned(Backing::Thp);
    let template = arena.freeze().unwrap().into_template().unwrap();
    let mut workers: Vec<_> = (0..3).map(|_| Worker::start()).collect();
    for worker in &mut workers {
        template.send(&worker.socket).unwrap();
        worker.place(words.range());
    }
    words.fill(1);
    for round in 0..3 {
        for worker in &mut workers {
            assert_eq!(worker.ask(b'c'), 1, "round {round}");
            assert!(worker.ask(b'w') > 0);
            assert_eq!(worker.ask(b'c'), 0);
        }
        for worker in &mut workers {
            assert_eq!(worker.ask(b'r'), 0, "no private page after a reset");
            assert_eq!(worker.ask(b'c'), 1, "round {round}");
        }
    }
    assert!(words.iter().all(|&word| word == 1));
}

#[test]
fn i2_the_arena_is_thawed_after_the_last_clone_whatever_its_end() {
    let _alone = alone();
    let _watchdog = Watchdog::start("the last clone");
    let (arena, mut words) = patterned(Backing::Thp);
    if !arena.raw().start_service() {
        skip("userfaultfd", "nothing is thawed in the background");
        return;
    }
    let template = arena.freeze().unwrap().into_template().unwrap();
    let clone = template.map(Place::Anywhere).unwrap();
    let (mut worker, mut other) = (Worker::start(), Worker::start());
    for worker in [&mut worker, &mut other] {
        template.send(&worker.socket).unwrap();
        worker.place(words.range());
    }
    let grandchild = Doomed(i32::try_from(worker.ask(b'f')).unwrap());
    words.fill(9);
    let is_held = || !support::wait_unread(&arena, TOO_EARLY);
    assert!(arena.freeze().unwrap().slice(&words).iter().all(|&word| word == 9));
    drop(template);
    assert!(is_held() && is_pattern(clone.slice(&words)), "a clone in this process");
    drop(clone);
    assert!(is_held(), "processes");
    other.end();
    assert!(is_held(), "a process");
    assert_eq!(worker.ask(b'c'), 1);
    worker.kill();
    assert!(is_held(), "a child of a process that was killed");
    grandchild.kill();
    assert!(arena.wait_live(PATIENCE), "{:?}", arena.metrics());
    assert!(words.iter().all(|&word| word == 9));
    let again = arena.freeze().unwrap().into_template().unwrap();
    assert!(again.map(Place::Anywhere).unwrap().slice(&words).iter().all(|&word| word == 9));
    drop(again);
    assert!(arena.wait_live(PATIENCE));
}

#[test]
fn i2_a_fork_of_a_clone_is_a_clone() {
    let _alone = alone();
    let _watchdog = Watchdog::start("a fork of a clone");
    let (arena, mut words) = patterned(Backing::Thp);
    if !arena.raw().start_service() {
        skip("userfaultfd", "nothing is thawed in the background");
        return;
    }
    let template = arena.freeze().unwrap().into_template().unwrap();
    let mut clone = template.map(Place::Anywhere).unwrap();
    let seed = Arc::new(Mutex::new(Vec::new()));
    let seeds = Arc::clone(&seed);
    clone.on_renewal(move |_, identity| seeds.lock().unwrap().push(*identity.entropy()));
    clone.slice_mut(&words)[5] = 55;
    let (mut ours, mut theirs) = UnixStream::pair().unwrap();
    let child = match plain_fork() {
        0 => {
            let before = clone.identity().number();
            let inherited = clone.slice(&words)[5] == 55 && clone.slice(&words)[6] == pattern(6);
            clone.slice_mut(&words)[6] = 66;
            let mut hear = || theirs.read_exact(&mut [0]).is_ok();
            let heard = hear();
            clone.after_fork().unwrap();
            let renewed = clone.identity().number() != before && seed.lock().unwrap().len() == 2;
            let kept = clone.slice(&words)[5] == 55 && clone.slice(&words)[6] == 66;
            clone.reset().unwrap();
            let is_right = inherited && heard && renewed && kept && is_pattern(clone.slice(&words));
            // The template works for more clones here, too.
            let again = template.map(Place::Anywhere).unwrap();
            let is_right = is_right && is_pattern(again.slice(&words));
            theirs.write_all(&[u8::from(is_right)]).unwrap();
            theirs.write_all(clone.identity().entropy()).unwrap();
            wait_for_ever()
        }
        child => Doomed(child),
    };
    clone.slice_mut(&words)[6] = 77;
    words.fill(3);
    ours.write_all(&[1]).unwrap();
    let mut answer = [0; 33];
    ours.read_exact(&mut answer).unwrap();
    assert_eq!(answer[0], 1);
    assert_ne!(&answer[1..], clone.identity().entropy());
    assert_eq!((clone.slice(&words)[5], clone.slice(&words)[6]), (55, 77));
    drop((clone, template));
    assert!(!support::wait_unread(&arena, TOO_EARLY), "the child reads the base");
    let pid = child.0;
    child.kill();
    assert_eq!(status_of(pid), libc::SIGKILL);
    assert!(arena.wait_live(PATIENCE));
    assert!(words.iter().all(|&word| word == 3));
}

#[test]
fn a_child_of_fork_that_holds_a_template_keeps_the_base() {
    let _alone = alone();
    let _watchdog = Watchdog::start("cowslip::fork beside a template");
    let (arena, mut words) = patterned(Backing::Thp);
    if !arena.raw().start_service() {
        skip("userfaultfd", "nothing is thawed in the background");
        return;
    }
    let template = arena.freeze().unwrap().into_template().unwrap();
    words[1] = 11;
    let (mut ours, mut theirs) = UnixStream::pair().unwrap();
    let child = support::fork_child(&[&arena], || {
        theirs.read_exact(&mut [0]).unwrap();
        let clone = template.map(Place::Anywhere).unwrap();
        words[1] == 11 && words[2] == pattern(2) && is_pattern(clone.slice(&words))
    })
    .unwrap();
    words.fill(4);
    drop(template);
    assert!(!support::wait_unread(&arena, TOO_EARLY));
    ours.write_all(&[1]).unwrap();
    assert_eq!(status_of(child), 0);
    assert!(arena.wait_live(PATIENCE));
    assert!(words.iter().all(|&word| word == 4));
}

#[test]
fn no_two_clones_are_the_same() {
    let _alone = alone();
    let (arena, words) = patterned(Backing::Thp);
    let template = arena.freeze().unwrap().into_template().unwrap();
    let mut numbers = HashSet::new();
    let seen = Arc::new(Mutex::new(HashSet::new()));
    let runs = Arc::new(Mutex::new(0));
    for _ in 0..4 {
        let mut clone = template.map(Place::Anywhere).unwrap();
        let (all, count, first) = (Arc::clone(&seen), Arc::clone(&runs), words.range());
        clone.on_renewal(move |clone, identity| {
            assert!(all.lock().unwrap().insert(*identity.entropy()));
            *count.lock().unwrap() += 1;
            clone.values_mut::<u64>(first)[0] = identity.number();
        });
        for _ in 0..50 {
            assert!(numbers.insert(clone.identity().number()));
            assert_eq!(clone.slice(&words)[0], clone.identity().number());
            assert_eq!(clone.identity().pid(), std::process::id() as i32);
            clone.reset().unwrap();
        }
    }
    let mut worker = Worker::start();
    template.send(&worker.socket).unwrap();
    worker.place(words.range());
    for _ in 0..10 {
        assert!(numbers.insert(worker.ask(b'i')), "a number of another process");
        worker.ask(b'r');
    }
    assert_eq!(*runs.lock().unwrap(), 4 * 51);
    assert_eq!(seen.lock().unwrap().len(), 4 * 51);
    assert!(!seen.lock().unwrap().contains(&[0; 32]));
}

#[test]
fn i2_without_userfaultfd_the_base_is_kept_too() {
    let _alone = alone();
    let arena = Arena::builder(ByteCount::mib(16)).userfaultfd(false).build().unwrap();
    let mut words = arena.slice::<u64>(1 << 18).unwrap();
    words.fill(1);
    let template = arena.freeze().unwrap().into_template().unwrap();
    let clone = template.map(Place::Anywhere).unwrap();
    words.fill(2);
    drop(template);
    // SAFETY: no thread stores to the arena, here and below.
    assert_eq!(unsafe { arena.thaw_exclusive() }.unwrap_err().kind(), ErrorKind::Busy);
    assert!(clone.slice(&words).iter().all(|&word| word == 1));
    drop(clone);
    // SAFETY: as above.
    unsafe { arena.thaw_exclusive() }.unwrap();
    assert!(words.iter().all(|&word| word == 2));
}

/// The message that [`Template::send`] sends.
fn message_of(template: &Template) -> (Vec<u8>, Vec<OwnedFd>) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    template.send(&ours).unwrap();
    let mut message = vec![0; 4096];
    let (len, files) = socket::receive(theirs.as_fd(), &mut message).unwrap();
    message.truncate(len);
    (message, files)
}

fn receive_altered(message: &[u8], files: &[OwnedFd]) -> cowslip::Result<Template> {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let files: Vec<_> = files.iter().map(AsFd::as_fd).collect();
    if !message.is_empty() {
        assert_eq!(socket::send(ours.as_fd(), message, &files).unwrap(), message.len());
    }
    drop(ours);
    // SAFETY: the message is a template, or is refused.
    unsafe { Template::receive(&theirs) }
}

#[test]
fn a_malformed_message_is_refused() {
    let _alone = alone();
    let _watchdog = Watchdog::start("malformed messages");
    let (arena, words) = patterned(Backing::Thp);
    let template = arena.freeze().unwrap().into_template().unwrap();
    let (message, mut files) = message_of(&template);
    let received = receive_altered(&message, &files).unwrap();
    assert_eq!(received.regions(), template.regions());
    assert!(is_pattern(received.map(Place::Anywhere).unwrap().slice(&words)));

    let kind = |message: &[u8], files: &[OwnedFd]| {
        receive_altered(message, files).map(|_| ()).unwrap_err().kind()
    };
    assert_eq!(kind(&[], &files), ErrorKind::Vanished);
    assert_eq!(kind(b"GET / HTTP/1.0\r\n\r\n", &[]), ErrorKind::Corrupt);
    for len in [1, 7, 8, 40, message.len() - 1] {
        assert_eq!(kind(&message[..len], &files), ErrorKind::Corrupt, "{len} bytes");
    }
    let altered = |word: usize, value: u64| {
        let mut message = message.clone();
        message[word * 8..][..8].copy_from_slice(&value.to_le_bytes());
        message
    };
    assert_eq!(kind(&altered(1, 2), &files), ErrorKind::Unsupported, "another version");
    let far = words.range().start as u64 + (1 << 40);
    for (word, value) in [
        (0, 0),
        (2, 2),
        (3, 1),
        (3, 0),
        (5, 1),
        (7, 1),
        (10, 0),
        (10, u64::MAX),
        (10, 2),
        (11, 1),
        (11, far),
        (12, !0xfff),
        (12, 0),
        (12, 1 << 40),
        (13, 1 << 8),
        (14, 1),
        (14, 3),
    ] {
        let said = receive_altered(&altered(word, value), &files).map(|_| ()).unwrap_err();
        assert_eq!(said.kind(), ErrorKind::Corrupt, "word {word} = {value:#x}: {said}");
    }
    files.swap(0, 1);
    assert_eq!(kind(&message, &files), ErrorKind::Corrupt, "the wrong way round");
    files.swap(0, 1);
    assert_eq!(kind(&message, &files[..1]), ErrorKind::Corrupt, "one missing");
    assert_eq!(kind(&message, &[]), ErrorKind::Corrupt);
    files.push(std::fs::File::open("/dev/null").unwrap().into());
    assert_eq!(kind(&message, &files), ErrorKind::Corrupt, "one too many");
}

#[test]
fn i2_a_template_that_comes_too_late_is_refused() {
    let _alone = alone();
    let _watchdog = Watchdog::start("a template that comes too late");
    let (arena, mut words) = patterned(Backing::Thp);
    if !arena.raw().start_service() {
        skip("userfaultfd", "nothing is thawed in the background");
        return;
    }
    let template = arena.freeze().unwrap().into_template().unwrap();
    let (ours, theirs) = UnixStream::pair().unwrap();
    template.send(&ours).unwrap();
    drop(template);
    assert!(arena.wait_live(PATIENCE), "descriptors in a socket keep nothing");
    words.fill(1);
    // SAFETY: this process sent it.
    let refused = unsafe { Template::receive(&theirs) }.map(|_| ()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Vanished, "{refused}");
}

/// A process that waits to be killed, even if the test fails.
struct Doomed(i32);

impl Doomed {
    fn kill(self) {
        kill(self.0);
        std::mem::forget(self);
    }
}

impl Drop for Doomed {
    fn drop(&mut self) {
        // SAFETY: kill(2) of a process that the test started.
        unsafe { libc::kill(self.0, libc::SIGKILL) };
    }
}

const WORKER: &str = "COWSLIP_TEST_WORKER";

/// An unrelated process: this program, started anew.
struct Worker {
    process: Child,
    socket: UnixStream,
}

impl Worker {
    fn start() -> Self {
        let (socket, theirs) = UnixStream::pair().unwrap();
        let process = Command::new(std::env::current_exe().unwrap())
            .args(["worker", "--exact", "--nocapture"])
            .env(WORKER, "1")
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        Self { process, socket }
    }

    /// Tells it the place of its words in the template.
    fn place(&mut self, range: VirtRange) {
        let place = [range.start as u64, range.len as u64].map(u64::to_le_bytes).concat();
        self.socket.write_all(&place).unwrap();
        assert_eq!(self.answer(), 1, "it has the template");
    }

    fn ask(&mut self, question: u8) -> u64 {
        self.socket.write_all(&[question]).unwrap();
        self.answer()
    }

    fn answer(&mut self) -> u64 {
        let mut answer = [0; 8];
        self.socket.read_exact(&mut answer).expect("the worker lives");
        u64::from_le_bytes(answer)
    }

    fn end(mut self) {
        self.socket.write_all(b"q").unwrap();
        assert!(self.process.wait().unwrap().success());
    }

    fn kill(mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Not a test: the program of a [`Worker`].
#[test]
fn worker() {
    if std::env::var_os(WORKER).is_none() {
        return;
    }
    let mut socket = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned().unwrap());
    // SAFETY: the test that started this process sends it.
    let template = unsafe { Template::receive(&socket) }.unwrap();
    let mut place = [0; 16];
    socket.read_exact(&mut place).unwrap();
    let [start, len] = [0, 8].map(|i| u64::from_le_bytes(place[i..][..8].try_into().unwrap()));
    let range = VirtRange::new(start as usize, len as usize);
    let mut clone = template.map(Place::Anywhere).unwrap();
    let mut scatter = Scatter(u64::from(std::process::id()));
    let mut answer = 1_u64;
    loop {
        socket.write_all(&answer.to_le_bytes()).unwrap();
        let mut question = [0];
        socket.read_exact(&mut question).unwrap();
        answer = match question[0] {
            b'q' => return,
            b'O' => {
                let original = template.map(Place::Original).unwrap();
                assert!(is_pattern(original.values(range)));
                original.address(range.start) as u64
            }
            question => answer_to(question, &mut clone, range, &mut scatter),
        };
    }
}

fn answer_to(
    question: u8,
    clone: &mut TemplateClone,
    range: VirtRange,
    scatter: &mut Scatter,
) -> u64 {
    match question {
        b'c' => u64::from(is_pattern(clone.values(range))),
        b'w' => write_pages(clone.values_mut(range), 20, scatter) as u64,
        b'r' => {
            clone.reset().unwrap();
            smaps_bytes(clone.range(), "Anonymous")
        }
        b'i' => clone.identity().number(),
        b'S' => clone.shared_words(range)[7].fetch_add(1, Relaxed),
        b'f' => match plain_fork() {
            0 => wait_for_ever(),
            child => child as u64,
        },
        _ => panic!("an unknown question"),
    }
}

#[test]
fn a_server_gives_nothing_to_another_user() {
    const NOBODY: libc::c_long = 65534;
    // SAFETY: the call touches no memory.
    if unsafe { libc::geteuid() } != 0 {
        return skip("root", "only root can act as another user");
    }
    let _alone = alone();
    let (arena, words) = patterned(Backing::Base);
    let path = std::env::temp_dir().join(format!("cowslip-server-{}", std::process::id()));
    let server =
        TemplateServer::start(arena.freeze().unwrap().into_template().unwrap(), &path).unwrap();
    // Opens the socket to all users, so that only the check of the peer's user is left.
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o666);
    std::fs::set_permissions(&path, open).unwrap();

    let connected = std::thread::spawn({
        let path = path.clone();
        move || {
            // SAFETY: the bare call changes only the user of this thread, which ends soon.
            assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, -1, NOBODY, -1) }, 0);
            UnixStream::connect(path).unwrap()
        }
    });
    let mut refused = connected.join().unwrap();
    refused.set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!(refused.read(&mut [0; 8]).unwrap(), 0, "closed without a byte");

    let socket = UnixStream::connect(&path).unwrap();
    // SAFETY: the server is ours.
    let template = unsafe { Template::receive(&socket) }.unwrap();
    assert!(template.regions()[0].range().len >= words.len() * 8);
    drop((socket, server));
}
