#![allow(unsafe_code)]
//! Promotion of a live process: the kernel's own sums before and after, and every byte unchanged.
//!
//! The process is this one. Its regions are recognised by address.

mod support;

use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use cowslip::{Arena, Backing};
use cowslip_promote::{
    Action, Decision, Effect, HugeSource, LazyFreeSource, Promoter, Reason, Settings, Target,
};
use cowslip_sys::failpoints::{self, Op};
use cowslip_sys::memory::Advice;
use cowslip_sys::units::{ByteCount, CHUNK_BYTES, VirtRange, page_size_bytes};
use cowslip_sys::{Errno, process};
use support::{Child, Promotion, Regions, alone, unhurried};

/// A way to observe regions.
#[derive(Clone, Copy, PartialEq, Debug)]
enum By {
    Scan,
    /// By `PAGEMAP_SCAN`, without root's page flags.
    ScanAlone,
    /// Without `PAGEMAP_SCAN`, which came with Linux 6.7.
    Entries,
    /// Without either.
    EntriesAlone,
}

const EACH_WAY: [By; 3] = [By::Scan, By::Entries, By::EntriesAlone];

impl By {
    /// Applies to this process until the guards are dropped.
    fn force(self) -> Vec<failpoints::Injection> {
        let always = |op, errno| failpoints::fail(op, 0, u32::MAX, errno);
        let mut rules = Vec::new();
        if matches!(self, Self::Entries | Self::EntriesAlone) {
            rules.push(always(Op::PagemapProbe, Errno::NOTTY));
        }
        if matches!(self, Self::ScanAlone | Self::EntriesAlone) {
            rules.push(always(Op::PageFlags, Errno::ACCESS));
        }
        rules
    }
}

#[test]
fn full_regions_become_huge_the_others_stay_and_no_byte_changes() {
    EACH_WAY.into_iter().for_each(full_regions_become_huge);
}

fn full_regions_become_huge(by: By) {
    let regions = Regions::new(&[512, 480, 461, 460, 100, 0]);
    let _rules = by.force();
    let before = regions.checksum();
    // Reading a page that was never written maps the zero page, which takes no memory.
    let mut promotion = Promotion::from_regions(&regions);
    assert!(promotion.act().is_empty(), "nobody knows yet whether they stay full");
    let outcomes = promotion.act();
    assert_eq!(outcomes.len(), 3, "{by:?}: {outcomes:?}");
    assert!(
        outcomes.iter().all(|outcome| outcome.effect == Effect::Done && outcome.took_ns > 0),
        "{outcomes:?}"
    );
    assert_eq!(regions.in_smaps().0, 3 * CHUNK_BYTES as u64);
    assert_eq!(regions.checksum(), before);
    let left = |number, reason| (number, reason);
    use Reason::{BelowThreshold, Huge};
    let expected = [
        left(0, Huge),
        left(1, Huge),
        left(2, Huge),
        left(3, BelowThreshold),
        left(4, BelowThreshold),
    ];
    let reasons = promotion.reasons();
    assert_eq!(&reasons[..5], expected);
}

#[test]
fn a_huge_page_that_holds_hardly_anything_is_split_and_its_memory_freed() {
    EACH_WAY.into_iter().for_each(sparse_pages_are_split);
}

fn sparse_pages_are_split(by: By) {
    let regions = Regions::new(&[30, 400, 512]);
    let _rules = by.force();
    for number in 0..3 {
        regions.advise(regions.region(number), Advice::Collapse);
    }
    assert_eq!(regions.in_smaps(), (3 * CHUNK_BYTES as u64, 3 * CHUNK_BYTES as u64));
    let before = regions.checksum();
    let mut promotion = Promotion::from_regions(&regions);
    assert_eq!(
        promotion.reasons(),
        [(0, Reason::Filling), (1, Reason::Huge), (2, Reason::Huge)],
        "it may be filling up"
    );
    let outcomes = promotion.act();
    assert_eq!(outcomes.len(), 1, "{outcomes:?}");
    assert_eq!((outcomes[0].action, outcomes[0].effect), (Action::Demote, Effect::Done));
    let (huge, anonymous) = regions.in_smaps();
    assert_eq!(huge, 2 * CHUNK_BYTES as u64);
    let base = anonymous - huge;
    assert_eq!(base, (512 - u64::from(outcomes[0].freed_pages)) * page_size_bytes() as u64);
    if outcomes[0].freed_pages == 0 {
        println!("SKIPPED: free_zero_pages: this kernel keeps the zero pages of what it splits");
    } else {
        assert_eq!(outcomes[0].freed_pages, 482);
    }
    assert_eq!(regions.checksum(), before);
    let left =
        if outcomes[0].freed_pages > 0 { Reason::BelowThreshold } else { Reason::JustReleased };
    assert_eq!(promotion.reasons()[0], (0, left), "and it stays split");
}

/// True if the page of memory at an address is part of a huge page, mapped whole or not (`KPF_THP`); `None`
/// for users other than root, and on kernels that do not tell.
fn is_of_a_huge_page(address: usize) -> Option<bool> {
    const FRAME: u64 = (1 << 55) - 1;
    const OF_A_HUGE_PAGE: u64 = 1 << 22;
    let word_of = |path, index: u64| {
        let mut word = [0; 8];
        std::fs::File::open(path).ok()?.read_exact_at(&mut word, index * 8).ok()?;
        Some(u64::from_ne_bytes(word))
    };
    let page = (address / page_size_bytes()) as u64;
    let frame = word_of("/proc/self/pagemap", page)? & FRAME;
    Some(word_of("/proc/kpageflags", frame).filter(|_| frame > 0)? & OF_A_HUGE_PAGE != 0)
}

#[test]
fn a_huge_page_of_which_a_part_was_released_is_given_back_and_no_byte_changes() {
    let regions = Regions::new(&[512, 512]);
    for number in 0..2 {
        regions.advise(regions.region(number), Advice::Collapse);
    }
    let mut promotion = Promotion::from_regions(&regions);
    assert_eq!(promotion.reasons(), [(0, Reason::Huge), (1, Reason::Huge)]);
    let kept = regions.region(0).start;
    let released = VirtRange::between(kept + 200 * page_size_bytes(), regions.region(0).end());
    regions.advise(released, Advice::DontNeed);
    let sum = || (0..200).map(|page| regions.word(0, page).load(Relaxed)).sum::<u64>();
    let before = sum();
    let Some(was_huge) = is_of_a_huge_page(kept) else {
        return println!("SKIPPED: kpageflags: what a page is part of is told to root alone");
    };
    assert!(was_huge, "the kernel holds all of it");

    let outcomes = promotion.act();
    assert_eq!(outcomes.len(), 1, "{outcomes:?}");
    assert_eq!((outcomes[0].action, outcomes[0].effect), (Action::Demote, Effect::Done));
    assert_eq!(is_of_a_huge_page(kept), Some(false));
    assert_eq!(is_of_a_huge_page(regions.region(1).start), Some(true), "the other stays");
    assert_eq!(sum(), before);
    assert_eq!(promotion.reasons(), [(0, Reason::BelowThreshold), (1, Reason::Huge)], "once");
}

#[test]
fn what_was_torn_before_anybody_looked_is_given_back_and_what_was_released_since_is_not_filled() {
    for by in [By::Scan, By::Entries] {
        let regions = Regions::new(&[512, 512]);
        let _forced = by.force();
        regions.advise(regions.region(0), Advice::Collapse);
        let from = |number: usize| regions.region(number).start + 200 * page_size_bytes();
        let release = |number: usize| {
            let released = VirtRange::between(from(number), regions.region(number).end());
            regions.advise(released, Advice::DontNeed);
        };
        release(0);
        let Some(was_huge) = is_of_a_huge_page(regions.region(0).start) else {
            return println!("SKIPPED: kpageflags: what a page is part of is told to root alone");
        };
        assert!(was_huge, "the kernel holds all of it");
        let mut promotion = Promotion::from_regions(&regions);
        assert_eq!(
            promotion.reasons(),
            [(0, Reason::PartiallyMapped), (1, Reason::FirstLook)],
            "{by:?}"
        );
        let decisions = promotion.decide();
        release(1);
        let outcomes: Vec<_> =
            decisions.iter().filter_map(|(_, decision)| promotion.promoter.act(decision)).collect();
        let effects: Vec<_> =
            outcomes.iter().map(|outcome| (outcome.action, outcome.effect)).collect();
        let wanted = [(Action::Demote, Effect::Done), (Action::Promote, Effect::Overtaken)];
        assert_eq!(effects, wanted, "{by:?}");
        assert_eq!(is_of_a_huge_page(regions.region(0).start), Some(false));
        assert_eq!(promotion.reasons(), [(0, Reason::BelowThreshold), (1, Reason::BelowThreshold)]);
        let kept = (0..2).flat_map(|number| (0..200).map(move |page| (number, page)));
        let sum: u64 = kept.map(|(number, page)| regions.word(number, page).load(Relaxed)).sum();
        assert_eq!(sum, 2 * (1..=200).sum::<u64>());
    }
}

#[test]
fn no_update_of_a_writer_is_lost_while_its_memory_is_promoted_and_split() {
    let regions = Regions::new(&[512; 8]);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut rounds = 0u64;
            while !stop.load(Relaxed) {
                for number in 0..8 {
                    for page in (0..512).step_by(3) {
                        regions.word(number, page).fetch_add(1, Relaxed);
                    }
                }
                rounds += 1;
            }
            rounds
        });
        let mut promotion = Promotion::from_regions(&regions);
        let mut promoted = 0;
        for _ in 0..4 {
            promotion.act();
            promoted += promotion.act().len();
            let mut cold = Vec::new();
            for number in 0..8 {
                let page = VirtRange::new(regions.region(number).start, page_size_bytes());
                cold.push(page);
            }
            let target = cowslip_sys::target::Target::open(process::pid()).unwrap();
            for page in cold {
                // A page that the writer holds for an instant cannot be split then.
                let _ = target.advise(page, cowslip_sys::target::Advice::Cold);
            }
        }
        stop.store(true, Relaxed);
        let rounds = writer.join().unwrap();
        assert!(promoted >= 8, "{promoted}");
        for (number, page) in (0..8).flat_map(|n| (0..512).map(move |page| (n, page))) {
            let added = if page % 3 == 0 { rounds } else { 0 };
            assert_eq!(regions.word(number, page).load(Relaxed), page as u64 + 1 + added);
        }
    });
}

#[test]
fn what_a_live_child_shares_is_left_alone_until_it_ends() {
    EACH_WAY.into_iter().for_each(what_a_child_shares_is_left_alone);
}

fn what_a_child_shares_is_left_alone(by: By) {
    let regions = Regions::new(&[512, 512]);
    let _rules = by.force();
    let mut promotion = Promotion::from_regions(&regions);
    promotion.reasons();
    let decided = promotion.decide();
    assert!(decided.iter().all(|(_, decision)| decision.reason == Reason::Full), "{decided:?}");

    let child = Child::fork();
    let outcome = promotion.promoter.act(&decided[0].1).unwrap();
    assert_eq!(outcome.effect, Effect::Overtaken, "forked between the look and the act");
    assert_eq!(promotion.reasons(), [(0, Reason::Shared), (1, Reason::Shared)]);
    for page in 0..512 {
        regions.word(0, page).fetch_add(1, Relaxed);
    }
    assert_eq!(promotion.reasons(), [(0, Reason::Full), (1, Reason::Shared)], "its own copies");
    child.end();
    assert_eq!(promotion.reasons(), [(0, Reason::Full), (1, Reason::Full)]);
}

#[test]
fn how_much_is_known_without_page_tables_is_said() {
    let look = |by: By, pages: &[usize], prepare: fn(&Regions)| {
        let regions = Regions::new(pages);
        let _rules = by.force();
        prepare(&regions);
        let mut promotion = Promotion::from_regions(&regions);
        let (look, _) = promotion.promoter.look(0).unwrap();
        let process = &look.processes[0];
        let mine = process.regions.iter().filter(|region| {
            regions.range.covers(VirtRange::new(region.address as usize, CHUNK_BYTES))
        });
        (process.huge_source, mine.map(|region| region.is_huge).collect::<Vec<_>>())
    };
    let has_scan = {
        // Another test may make it fail meanwhile.
        let _alone = alone();
        let pagemap = cowslip_sys::procfs::open_self("pagemap").unwrap();
        cowslip_sys::pagemap::probe_scan(cowslip_sys::AsFd::as_fd(&pagemap)).is_ok()
    };
    let none: fn(&Regions) = |_| ();
    let first: fn(&Regions) = |regions| regions.advise(regions.region(0), Advice::Collapse);
    for by in [By::Scan, By::Entries] {
        let (source, huge) = look(by, &[512, 512, 100], first);
        assert_eq!(huge, [true, false, false], "{by:?}: {source:?}");
        assert_eq!(source == HugeSource::PageTables, has_scan && by == By::Scan, "{source:?}");
    }
    let (source, huge) = look(By::EntriesAlone, &[512, 100], first);
    assert_eq!(huge, [true, false], "as many full regions as huge pages: {source:?}");
    let (source, huge) = look(By::EntriesAlone, &[512, 512, 100], first);
    assert_eq!((source, huge), (HugeSource::Guess, vec![false, false, false]));
    let (_, huge) = look(By::EntriesAlone, &[512, 512], none);
    assert_eq!(huge, [false, false]);
}

#[test]
fn pages_that_were_only_read_are_not_taken_for_a_childs() {
    for by in EACH_WAY {
        let regions = Regions::new(&[500]);
        let _rules = by.force();
        regions.advise(regions.range, Advice::NoHugePage);
        assert_eq!((500..512).map(|page| regions.word(0, page).load(Relaxed)).sum::<u64>(), 0);
        let mut promotion = Promotion::from_regions(&regions);
        promotion.reasons();
        assert_eq!(promotion.reasons(), [(0, Reason::Full)], "{by:?}");
        let (look, _) = promotion.promoter.look(0).unwrap();
        let address = regions.range.start as u64;
        let seen =
            look.processes[0].regions.iter().find(|region| region.address == address).unwrap();
        assert_eq!((seen.pages, seen.zero_pages, seen.shared_pages), (500, 12, 0), "{by:?}");
    }
}

#[test]
fn what_was_lazily_freed_is_not_made_huge_and_what_is_written_again_is() {
    for by in [By::Scan, By::ScanAlone, By::Entries, By::EntriesAlone] {
        let regions = Regions::new(&[512, 512, 512]);
        let _rules = by.force();
        let is_told = is_of_a_huge_page(regions.range.start).is_some();
        let sees_frames = is_told && matches!(by, By::Scan | By::Entries);
        let mut promotion = Promotion::from_regions(&regions);
        promotion.reasons();
        let decided = promotion.decide();
        assert!(
            decided.iter().all(|(_, decision)| decision.reason == Reason::Full),
            "{by:?}: {decided:?}"
        );

        let some = VirtRange::new(regions.region(1).start, 100 * page_size_bytes());
        regions.advise(regions.region(0), Advice::Free);
        regions.advise(some, Advice::Free);
        // The sums of a look are used for as long as reading them takes.
        (0..4).for_each(|_| _ = regions.in_smaps());
        let outcome = promotion.promoter.act(&decided[0].1).unwrap();
        assert_eq!(outcome.effect, Effect::Overtaken, "{by:?}: freed between look and act");
        let left = Reason::LazilyFreed;
        let third = if sees_frames { Reason::Full } else { left };
        assert_eq!(promotion.reasons(), [(0, left), (1, left), (2, third)], "{by:?}");
        let (look, _) = promotion.promoter.look(0).unwrap();
        let seen = &look.processes[0];
        let source = if sees_frames { LazyFreeSource::Frames } else { LazyFreeSource::Mappings };
        assert_eq!(seen.lazy_free_source, source, "{by:?}");
        assert!(seen.lazily_freed_bytes >= 500 * page_size_bytes() as u64, "{by:?}: {seen:?}");

        for (number, page) in (0..2).flat_map(|number| (0..512).map(move |page| (number, page))) {
            regions.word(number, page).store(page as u64 + 1, Relaxed);
        }
        let before = regions.checksum();
        assert_eq!(promotion.act().len(), 3, "{by:?}: all of it is in use again");
        assert_eq!(regions.in_smaps().0, 3 * CHUNK_BYTES as u64, "{by:?}");
        assert_eq!(regions.checksum(), before);
    }
}

#[test]
fn an_arena_is_made_huge_while_it_is_live_and_left_alone_while_it_is_frozen() {
    for by in [By::Scan, By::EntriesAlone] {
        let _alone = alone();
        let _rules = by.force();
        let builder = Arena::builder(ByteCount::mib(64)).backing(Backing::Base);
        let arena = builder.build().unwrap();
        let mut slice = arena.slice::<u64>(4 * CHUNK_BYTES / 8).unwrap();
        slice.iter_mut().enumerate().for_each(|(index, word)| *word = index as u64);
        let mut promoter = Promoter::new(Settings { settle_ms: 0, ..unhurried() }).unwrap();
        promoter.add(Target::open(process::pid(), 1).unwrap());
        let start = slice.as_ptr() as u64;
        let decide = |promoter: &mut Promoter| -> Vec<Decision> {
            let (look, _) = promoter.look(0).unwrap();
            let decisions = promoter.decide(&look);
            let end = start + 4 * CHUNK_BYTES as u64;
            decisions
                .into_iter()
                .filter(|decision| (start..end).contains(&decision.address))
                .collect()
        };
        decide(&mut promoter);
        let wanted = decide(&mut promoter);
        assert_eq!(wanted.len(), 4, "{by:?}");
        assert!(
            wanted.iter().all(|decision| decision.reason == Reason::Full),
            "{by:?}: {wanted:?}"
        );

        let frozen = arena.freeze().unwrap();
        assert_eq!(promoter.act(&wanted[0]).unwrap().effect, Effect::Overtaken);
        slice[7] = 4711;
        assert_eq!(frozen.slice(&slice)[7], 7);
        let left: Vec<Reason> =
            decide(&mut promoter).iter().map(|decision| decision.reason).collect();
        // At least the written one is mapped; the others may be mapped again already.
        let is_left_alone = !left.is_empty() && left.iter().all(|reason| *reason == Reason::Frozen);
        assert!(is_left_alone, "{by:?}: {left:?}");
        drop(frozen);
        while arena.metrics().frozen_chunks > 0 {
            std::thread::yield_now();
        }

        // A thawed page is mapped again at its next use.
        let is_whole = |slice: &[u64]| {
            let wanted = |index| if index == 7 { 4711 } else { index as u64 };
            slice.iter().enumerate().all(|(index, word)| *word == wanted(index))
        };
        assert!(is_whole(&slice), "{by:?}");
        let (mut decided, began) = (decide(&mut promoter), std::time::Instant::now());
        while decided.len() != 4 || decided.iter().any(|decision| decision.reason != Reason::Full) {
            assert!(began.elapsed() < Duration::from_secs(30), "{by:?}: {decided:?}");
            decided = decide(&mut promoter);
        }
        for decision in &decided {
            let outcome = promoter.act(decision).unwrap();
            assert_eq!(outcome.effect, Effect::Done, "{by:?}: {outcome:?}");
        }
        let target = Target::open(process::pid(), 1).unwrap();
        assert_eq!(target.coverage().unwrap().arena_huge_bytes, 4 * CHUNK_BYTES as u64, "{by:?}");
        assert!(decide(&mut promoter).iter().all(|decision| decision.reason == Reason::Huge));
        assert!(is_whole(&slice), "{by:?}");
    }
}

#[test]
fn what_was_just_released_is_not_filled_again() {
    let regions = Regions::new(&[512]);
    let mut promotion = Promotion::from_regions(&regions);
    promotion.reasons();
    assert_eq!(promotion.reasons(), [(0, Reason::Full)]);
    let first = VirtRange::new(regions.range.start, 20 * page_size_bytes());
    regions.advise(first, Advice::DontNeed);
    assert_eq!(promotion.reasons(), [(0, Reason::JustReleased)]);
}

#[test]
fn refusals_of_the_kernel_are_told_apart() {
    let after = |errno| {
        let regions = Regions::new(&[512, 512]);
        let mut promotion = Promotion::from_regions(&regions);
        promotion.reasons();
        let decided = promotion.decide();
        let rule = failpoints::fail(Op::ProcessMadvise, 0, 1, errno);
        let outcome = promotion.promoter.act(&decided[0].1).unwrap();
        assert!(rule.is_spent());
        assert_eq!(outcome.effect, Effect::Refused(errno.raw_os_error()));
        let (refused, _) = decided[0];
        let reasons = promotion.reasons();
        (reasons[refused].1, reasons[1 - refused].1)
    };
    assert_eq!(after(Errno::AGAIN), (Reason::RetryLater, Reason::Full));
    assert_eq!(after(Errno::INVAL), (Reason::GivenUp, Reason::Full));
    assert_eq!(after(Errno::NOMEM), (Reason::BackingOff, Reason::BackingOff));
}

#[test]
fn a_huge_page_that_is_refused_is_asked_for_again_at_once() {
    let after = |refusals| {
        let regions = Regions::new(&[512]);
        let mut promotion = Promotion::from_regions(&regions);
        promotion.reasons();
        let decided = promotion.decide();
        let rule = failpoints::fail(Op::Madvise, 0, refusals, Errno::NOMEM);
        let outcome = promotion.promoter.act(&decided[0].1).unwrap();
        assert!(rule.is_spent());
        outcome.effect
    };
    assert_eq!(after(64), Effect::Done);
    assert_eq!(after(65), Effect::Refused(Errno::NOMEM.raw_os_error()));
}

#[test]
fn memory_that_must_not_be_huge_is_given_up() {
    let regions = Regions::new(&[512]);
    regions.advise(regions.range, Advice::NoHugePage);
    let mut promotion = Promotion::from_regions(&regions);
    promotion.reasons();
    let outcomes = promotion.act();
    assert_eq!(outcomes[0].effect, Effect::Refused(Errno::INVAL.raw_os_error()));
    assert_eq!(promotion.reasons(), [(0, Reason::GivenUp)]);
}
