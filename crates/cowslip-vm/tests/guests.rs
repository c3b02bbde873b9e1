#![allow(unsafe_code)]
//! Snapshots, clones and roll backs of guest memory that threads write.

mod support;

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use cowslip::image::{Image, RestoreOptions, SaveOptions};
use cowslip::units::{ByteCount, CHUNK_BYTES};
use cowslip::{Arena, Error, ErrorKind, Footprint};
use cowslip_vm::{GuestRam, GuestTemplate, RamRange, Snapshot};
use support::{
    HIGH, LOW, PATIENCE, Processors, REGIONS, check_memory, check_snapshot, content, content_of,
    skip,
};
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryRegion, MemoryRegionAddress};

fn running() -> (GuestRam, Processors) {
    let ram = GuestRam::new(&REGIONS).expect("RAM");
    let processors = Processors::start(ram.memory());
    (ram, processors)
}

fn snapshot(ram: &GuestRam) -> Snapshot {
    ram.snapshot(PATIENCE).expect("a snapshot")
}

/// A file that is removed.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let name = format!("cowslip-vm-{}-{name}.cowslip", std::process::id());
        Self(std::env::temp_dir().join(name))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn kind<T>(result: Result<T, Error>) -> ErrorKind {
    result.map(|_| ()).expect_err("an error").kind()
}

#[test]
fn fifty_snapshots_of_running_processors_are_one_instant_each() {
    let (ram, processors) = running();
    let mut kept = VecDeque::new();
    let mut last = 0;
    for round in 0..50 {
        processors.wait(1_000);
        if round % 2 == 1 {
            ram.prepare_snapshot().expect("a preparation");
        }
        let view = snapshot(&ram);
        let writes = check_snapshot(&view);
        assert!(writes > last, "{writes} after {last}");
        last = writes;
        kept.push_back((view, writes));
        if kept.len() > 3 {
            let (oldest, writes) = kept.pop_front().expect("three");
            assert_eq!(check_snapshot(&oldest), writes, "a view changed");
        }
    }
    assert!(processors.stop() > last);
}

#[test]
fn clones_run_apart_and_go_back_exactly() {
    let (ram, processors) = running();
    processors.wait(20_000);
    let view = snapshot(&ram);
    let wanted = content_of(&view);
    let template = view.into_template().expect("a template");
    let clones: Vec<_> = (0..4).map(|_| GuestRam::clone_of(&template).expect("a clone")).collect();
    for clone in &clones {
        assert!(content(&clone.memory()) == wanted, "a clone differs");
    }
    for _ in 0..2 {
        let all: Vec<_> = clones.iter().map(|clone| Processors::start(clone.memory())).collect();
        all.iter().for_each(|processors| processors.wait(1_000));
        processors.wait(1_000);
        all.into_iter().for_each(|processors| _ = processors.stop());
        for clone in &clones {
            let entropy = clone.entropy();
            assert!(content(&clone.memory()) != wanted);
            // SAFETY: its processors have stopped.
            unsafe { clone.reset() }.expect("a reset");
            assert!(content(&clone.memory()) == wanted, "a clone did not go back");
            assert_ne!(clone.entropy(), entropy);
        }
    }
    processors.stop();
    // Clones need neither the source nor its template.
    drop((ram, template));
    let processors = Processors::start(clones[0].memory());
    processors.wait(1_000);
    processors.stop();
    assert!(content(&clones[1].memory()) == wanted);
}

#[test]
fn ram_of_a_template_is_frozen_in_turn() {
    let (ram, processors) = running();
    processors.wait(10_000);
    let template = snapshot(&ram).into_template().expect("a template");
    let other = GuestRam::from_template(&template).expect("RAM of its own");
    let wanted = content(&other.memory());
    let apart = Processors::start(other.memory());
    apart.wait(10_000);
    let view = snapshot(&other);
    assert!(check_snapshot(&view) > 10_000);
    apart.stop();
    processors.stop();
    drop(ram);
    let clone = GuestRam::clone_of(&template).expect("a clone");
    assert!(content(&clone.memory()) == wanted);
}

#[test]
fn ram_goes_back_and_forward_exactly() {
    let (ram, processors) = running();
    processors.wait(10_000);
    let first = snapshot(&ram);
    processors.wait(10_000);
    let second = snapshot(&ram);
    processors.stop();
    let wanted = [content_of(&first), content_of(&second)];
    for round in 0..6 {
        let (view, wanted) = ([&first, &second][round % 2], &wanted[round % 2]);
        // SAFETY: the processors have stopped.
        unsafe { ram.roll_back(view) }.expect("a roll back");
        assert!(content(&ram.memory()) == *wanted, "round {round}");
        let processors = Processors::start(ram.memory());
        processors.wait(5_000);
        processors.stop();
        assert!(content_of(view) == *wanted, "a view changed");
    }
}

#[test]
fn images_have_one_instant_and_only_the_changes() {
    let (full, part) = (Scratch::new("full"), Scratch::new("part"));
    let (ram, processors) = running();
    let is_tracking = ram.track_changes(true);
    processors.wait(10_000);
    let mut proceed = |_| ControlFlow::Continue(());
    let first = snapshot(&ram);
    let saved = first.save(&full.0, &SaveOptions::default(), &mut proceed).expect("an image");
    processors.wait(1_000);
    processors.stop();
    drop(first);
    // One page of one chunk differs.
    let memory = ram.memory();
    let before = content(&memory);
    let options = SaveOptions { parent: Some(full.0.clone()), ..SaveOptions::default() };
    snapshot(&ram).save(&part.0, &options, &mut proceed).expect("an image");
    memory.write_slice(b"changed", GuestAddress((4 << 30) + 64)).expect("RAM");
    let options = SaveOptions { parent: Some(part.0.clone()), ..SaveOptions::default() };
    let third = Scratch::new("third");
    let changes = snapshot(&ram).save(&third.0, &options, &mut proceed).expect("an image");
    assert_eq!(changes.chunks, 1, "{changes:?}");
    assert!(saved.chunks >= (LOW + HIGH) / CHUNK_BYTES as u64);
    if is_tracking {
        assert!(changes.read_chunks < saved.chunks / 2, "{changes:?}");
    } else {
        skip("pagemap_scan", "changes are found by reading");
    }

    let restore = |file: &Scratch| {
        let image = Image::open(&file.0).expect("an image");
        let options = RestoreOptions::default();
        GuestRam::restore(&image, &options, &mut |_| ControlFlow::Continue(())).expect("RAM")
    };
    let (old, loading) = restore(&full);
    // Used while it is being restored.
    let processors = Processors::start(old.memory());
    processors.wait(5_000);
    processors.stop();
    assert!(loading.wait(PATIENCE).expect("a restore"));
    drop(loading);
    check_snapshot(&snapshot(&old));
    let (new, _loading) = restore(&third);
    assert_eq!(new.memory().num_regions(), 2);
    let mut wanted = before;
    wanted[LOW as usize + 64..][..7].copy_from_slice(b"changed");
    assert!(content(&new.memory()) == wanted);
}

#[test]
fn balloons_and_unplugged_memory_are_given_back() {
    let arena = Arena::new(ByteCount::mib(48)).expect("an arena");
    let mut ram = GuestRam::in_arena(arena, &REGIONS).expect("RAM");
    let memory = ram.memory();
    memory.write_slice(&[7; 64 << 10], GuestAddress(LOW - (64 << 10))).expect("RAM");
    memory.write_slice(&[8; 4096], GuestAddress(4 << 30)).expect("RAM");
    let view = snapshot(&ram);
    let at = GuestAddress(LOW - (32 << 10));
    // SAFETY: nothing else uses it.
    unsafe { ram.discard(at, 32 << 10) }.expect("a balloon");
    let mut bytes = vec![1; 64 << 10];
    memory.read_slice(&mut bytes, GuestAddress(LOW - (64 << 10))).expect("RAM");
    assert!(bytes[..32 << 10] == [7; 32 << 10] && bytes[32 << 10..] == [0; 32 << 10]);
    view.read(&mut bytes, GuestAddress(LOW - (64 << 10))).expect("a view");
    assert!(bytes == [7; 64 << 10]);

    let plugged = GuestAddress(8 << 30);
    ram.plug(plugged, 16 << 20).expect("room");
    assert_eq!(kind(ram.plug(GuestAddress(16 << 30), 16 << 20)), ErrorKind::OutOfMemory);
    // SAFETY: nothing else uses it.
    assert_eq!(kind(unsafe { ram.roll_back(&view) }), ErrorKind::Usage);
    let more = ram.memory();
    more.write_slice(b"plugged", plugged).expect("RAM");
    assert!(memory.write_slice(b"plugged", plugged).is_err(), "a collection of before");
    let used = ram.arena().metrics().used_bytes;
    ram.unplug(plugged).expect("a region");
    assert_eq!(ram.arena().metrics().used_bytes, used, "a collection has it");
    drop(more);
    assert_eq!(ram.arena().metrics().used_bytes, used - (16 << 20));
    // SAFETY: nothing else uses it.
    unsafe { ram.roll_back(&view) }.expect("the regions of then");
    memory.read_slice(&mut bytes, GuestAddress(LOW - (64 << 10))).expect("RAM");
    assert!(bytes == [7; 64 << 10]);
    drop(view);
    ram.plug(plugged, 16 << 20).expect("room");
    let mut bytes = [1; 7];
    ram.memory().read_slice(&mut bytes, plugged).expect("RAM");
    assert_eq!(bytes, [0; 7], "plugged memory is zeroed");
}

#[test]
fn snapshots_wait_for_memory_that_a_device_writes() {
    let (ram, processors) = running();
    let held = ram.hold_for_io(GuestAddress(1 << 20), 1 << 20).expect("a hold");
    let refused = ram.snapshot(Duration::ZERO);
    assert_eq!(kind(refused), ErrorKind::Busy);
    processors.wait(1_000);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| snapshot(&ram));
        processors.wait(1_000);
        drop(held);
        check_snapshot(&waits.join().expect("a snapshot"));
    });
    processors.stop();
}

#[test]
fn huge_pages_stay_through_ten_snapshots() {
    let (ram, processors) = running();
    if !ram.arena().pages().is_huge() {
        processors.stop();
        return skip("huge", "no huge pages for arenas");
    }
    for _ in 0..10 {
        processors.wait(3_000);
        check_snapshot(&snapshot(&ram));
    }
    processors.stop();
    assert!(ram.arena().wait_live(PATIENCE), "{:?}", ram.arena().metrics());
    let deadline = Instant::now() + PATIENCE;
    loop {
        // Memory that was split is collapsed in the background; a touch maps it.
        check_memory(&ram.memory());
        let smaps = std::fs::read_to_string("/proc/self/smaps").expect("smaps");
        let pid = std::process::id() as i32;
        let footprint = Footprint::measure(pid, &smaps, &ram.arena().metrics());
        if footprint.huge_mapped_bytes as f64 >= 0.99 * (LOW + HIGH) as f64 {
            break;
        }
        assert!(Instant::now() < deadline, "{footprint:?}");
    }
}

#[test]
fn regions_are_memory_of_their_own_bounds() {
    let ram = GuestRam::new(&REGIONS).expect("RAM");
    let memory = ram.memory();
    let low = memory.find_region(GuestAddress(0)).expect("a region");
    assert_eq!((low.len(), low.last_addr().0), (LOW, LOW - 1));
    assert!(low.file_offset().is_none(), "no descriptor for other processes");
    assert!(low.get_host_address(MemoryRegionAddress(LOW - 1)).is_ok());
    assert!(low.get_host_address(MemoryRegionAddress(LOW)).is_err());
    assert!(low.get_slice(MemoryRegionAddress(LOW - 1), 2).is_err());
    assert!(low.get_slice(MemoryRegionAddress(u64::MAX), 1).is_err());
    assert!(low.get_slice(MemoryRegionAddress(1), usize::MAX).is_err());
    assert!(memory.write_slice(&[1; 2], GuestAddress(LOW - 1)).is_err());
    let view = snapshot(&ram);
    assert_eq!(kind(view.read(&mut [0; 2], GuestAddress(LOW - 1))), ErrorKind::Usage);
    assert_eq!(kind(view.read(&mut [0; 2], GuestAddress(u64::MAX))), ErrorKind::Usage);
    assert_eq!(kind(ram.hold_for_io(GuestAddress(LOW), 1)), ErrorKind::Usage);
    // SAFETY: it is refused.
    assert_eq!(kind(unsafe { ram.discard(GuestAddress(100), 4096) }), ErrorKind::Usage);
    assert!(low.range().host.start.is_multiple_of(CHUNK_BYTES));
    fn is_shared(_: impl Send + Sync + Clone) {}
    is_shared(memory.clone());
}

#[test]
fn places_that_are_no_ram_are_refused() {
    let at = GuestAddress;
    let wrong: [&[(GuestAddress, u64)]; 6] = [
        &[],
        &[(at(0), 0)],
        &[(at(0), 100)],
        &[(at(7), 4096)],
        &[(at(0), 8192), (at(4096), 4096)],
        &[(at(u64::MAX - 4095), 8192)],
    ];
    for regions in wrong {
        let arena = Arena::new(ByteCount::mib(4)).expect("an arena");
        assert_eq!(kind(GuestRam::in_arena(arena, regions)), ErrorKind::Usage, "{regions:?}");
    }
    let mut ram = GuestRam::new(&[(at(0), 2 << 20)]).expect("RAM");
    assert_eq!(kind(ram.unplug(at(0))), ErrorKind::Usage);
    assert_eq!(kind(ram.unplug(at(4096))), ErrorKind::Usage);
    let view = snapshot(&ram);
    let good = view.regions().to_vec();
    let template = view.into_template().expect("a template").template().clone();
    let moved = |by: usize| {
        let shift = |mut region: RamRange| {
            region.host.start += by;
            region
        };
        good.iter().copied().map(shift).collect::<Vec<_>>()
    };
    assert_eq!(kind(GuestTemplate::new(template.clone(), moved(4096))), ErrorKind::Usage);
    assert_eq!(kind(GuestTemplate::new(template.clone(), Vec::new())), ErrorKind::Usage);
    assert!(GuestTemplate::new(template, moved(0)).is_ok());

    let none = Scratch::new("none");
    let arena = Arena::new(ByteCount::mib(4)).expect("an arena");
    let view = arena.freeze().expect("a view");
    let mut proceed = |_| ControlFlow::Continue(());
    cowslip::image::save(&[&view], &none.0, &SaveOptions::default(), &mut proceed).expect("saved");
    let image = Image::open(&none.0).expect("an image");
    let restored = GuestRam::restore(&image, &RestoreOptions::default(), &mut proceed);
    assert_eq!(kind(restored), ErrorKind::Usage);
}
