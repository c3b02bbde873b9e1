//! The mapping and the kind of each fault are those of a model of every page, or were worked out by hand.

#[path = "support/replay.rs"]
mod replay;
mod support;

use std::collections::BTreeMap;

use cowslip_sys::units::VirtRange;
use cowslip_trace::attribute::{Attribution, Attributor, FaultKind, HugeFit, MappingId, Place};
use cowslip_trace::model::{Access, Event, EventKind, Fault, Header, Machine, Map, Severity};
use replay::Model;
use support::Scatter;

const MIB: usize = 1 << 20;
const START: usize = 0x7f00_0000_0000;

/// The header of a trace with all events, on a machine without huge pages.
fn plain() -> Header {
    let never = |setting: &str| (setting.to_owned(), "always [never]".to_owned());
    let thp = ["enabled", "shmem_enabled"].map(never).into();
    let machine = Machine { thp, ..Machine::default() };
    Header { machine, sources: vec!["syscalls:sys_exit_munmap".into()], ..Header::default() }
}

#[test]
fn random_histories_are_told_as_a_model_of_every_page_tells_them() {
    for seed in 0..12 {
        let mut scatter = Scatter(seed);
        let mut model = Model::new();
        let mut attributor = Attributor::new(&plain());
        let mut maps: BTreeMap<usize, MappingId> = BTreeMap::new();
        for step in 0..6_000 {
            let (event, expected) = model.next(&mut scatter);
            let before = attributor.mappings().len();
            let told = attributor.observe(&event);
            if let EventKind::Map(_) = event.what {
                maps.insert(maps.len() + 1, MappingId(before as u32));
            }
            let Some(expected) = expected else { continue };
            let told = told.expect("a fault");
            let at = || format!("seed {seed}, step {step}: {event:?} {expected:?}");
            assert_eq!((told.kind, told.fit), (expected.kind, expected.fit), "{}", at());
            let origin = told.mapping.map(|id| origin(&attributor, id));
            assert_eq!(origin, expected.map.map(|map| maps[&map]), "{}", at());
        }
        check_spans(attributor, &model, &maps);
    }
}

/// The mapping from which forks inherited it.
fn origin(attributor: &Attributor, mut id: MappingId) -> MappingId {
    while let Some(parents) = attributor.mappings()[id.0 as usize].inherited_from {
        id = parents;
    }
    id
}

/// The spans that have not ended are the present mappings.
fn check_spans(attributor: Attributor, model: &Model, maps: &BTreeMap<usize, MappingId>) {
    let (mappings, spans) = attributor.finish();
    let mut mapped = BTreeMap::new();
    for span in spans.iter().filter(|span| span.ended_ns.is_none()) {
        let mapping = &mappings[span.mapping.0 as usize];
        for page in (span.range.start..span.range.end()).step_by(4096) {
            if mapping.pid == 1 {
                let page = page as u64 / replay::PAGE;
                assert_eq!(mapped.insert(page, span.mapping), None, "two spans at {page:#x}");
            }
        }
    }
    let expected: BTreeMap<_, _> =
        model.processes[&1].0.iter().map(|(page, state)| (*page, maps[&state.map])).collect();
    assert_eq!(mapped, expected);
}

/// Events, a microsecond apart, of process 7 unless another is given.
struct Story {
    attributor: Attributor,
    now_ns: u64,
}

impl Story {
    fn new(header: &Header) -> Self {
        Self { attributor: Attributor::new(header), now_ns: 0 }
    }

    fn in_process(&mut self, pid: u32, what: EventKind) -> Option<Attribution> {
        self.now_ns += 1_000;
        self.attributor.observe(&Event { time_ns: self.now_ns, pid, tid: pid, what })
    }

    fn then(&mut self, what: EventKind) -> &mut Self {
        self.in_process(7, what);
        self
    }

    fn map(&mut self, start: usize, len: usize) -> &mut Self {
        let (protection, flags) = (3, 0x22);
        let range = VirtRange::new(start, len);
        self.then(EventKind::Map(Map { range, protection, flags, ..Map::default() }))
    }

    fn old(&mut self, start: usize, len: usize) -> &mut Self {
        let (protection, flags, is_old) = (3, 0x22, true);
        let range = VirtRange::new(start, len);
        self.then(EventKind::Map(Map { range, protection, flags, is_old, ..Map::default() }))
    }

    fn fork(&mut self) -> &mut Self {
        self.then(EventKind::Fork { child_pid: 8, child_tid: 8 })
    }

    fn fault(&mut self, fault: Fault) -> Attribution {
        self.in_process(7, EventKind::Fault(fault)).expect("a fault")
    }

    fn kind(&mut self, fault: Fault) -> FaultKind {
        self.fault(fault).kind
    }
}

fn at(address: usize) -> Fault {
    Fault { severity: Some(Severity::Minor), ..Fault::at(address as u64, 0) }
}

fn write(address: usize) -> Fault {
    Fault { access: Some(Access::Write), ..at(address) }
}

fn major(address: usize) -> Fault {
    Fault { severity: Some(Severity::Major), ..at(address) }
}

fn present(address: usize) -> Fault {
    Fault { was_present: Some(true), ..write(address) }
}

/// Huge pages may come, and a fault need not tell that it brought one.
fn with_huge_pages() -> Header {
    Header { sources: plain().sources, ..Header::default() }
}

#[test]
fn a_huge_page_is_there_after_the_fault_that_says_so() {
    let mut story = Story::new(&with_huge_pages());
    story.map(START, 4 * MIB);
    let huge = Fault { huge: Some(true), ..write(START + 0x5000) };
    assert_eq!(story.fault(huge).fit, Some(HugeFit::First));
    story.fork();
    assert_eq!(story.kind(write(START + 0x9000)), FaultKind::CowAfterFork);
    assert_eq!(story.kind(write(START + 2 * MIB)), FaultKind::FirstTouch, "the next huge page");
}

#[test]
fn what_may_have_come_with_a_huge_page_is_unknown_after_a_fork() {
    let mut story = Story::new(&with_huge_pages());
    story.map(START, 4 * MIB);
    story.kind(write(START));
    story.kind(write(START + 2 * MIB));
    story.kind(write(START + 2 * MIB + 0x1000));
    story.fork();
    assert_eq!(story.kind(write(START)), FaultKind::CowAfterFork, "seen before");
    assert_eq!(story.kind(write(START + 0x3000)), FaultKind::Unknown);
    assert_eq!(
        story.kind(present(START + 0x4000)),
        FaultKind::CowAfterFork,
        "it says that it was there"
    );
    let second = START + 2 * MIB;
    assert_eq!(story.kind(write(second + 0x3000)), FaultKind::FirstTouch, "two faults: base pages");
}

#[test]
fn memory_older_than_the_trace_is_not_guessed_at() {
    let mut story = Story::new(&plain());
    story.old(START, MIB);
    assert_eq!(story.kind(write(START)), FaultKind::Unknown);
    assert_eq!(story.kind(major(START + 0x1000)), FaultKind::Unknown);
    assert_eq!(story.kind(present(START + 0x2000)), FaultKind::Unknown);
    story.fork();
    assert_eq!(story.kind(present(START + 0x3000)), FaultKind::CowAfterFork);
    let range = VirtRange::new(START, MIB);
    story.then(EventKind::Advise { range, advice: 4 });
    assert_eq!(story.kind(write(START + 0x4000)), FaultKind::Refault);
    story.map(START, MIB);
    assert_eq!(story.kind(write(START + 0x4000)), FaultKind::FirstTouch);
}

#[test]
fn what_was_mapped_before_events_were_lost_is_old() {
    let mut story = Story::new(&plain());
    story.map(START, MIB).then(EventKind::Lost { count: 3 });
    assert_eq!(story.kind(write(START)), FaultKind::Unknown);
    story.map(START + MIB, MIB);
    assert_eq!(story.kind(write(START + MIB)), FaultKind::FirstTouch);
}

#[test]
fn major_faults_are_swap_or_files() {
    let mut story = Story::new(&plain());
    story.map(START, MIB);
    assert_eq!(story.kind(major(START)), FaultKind::Unknown, "nothing could have been swapped out");
    story.kind(write(START + 0x1000));
    assert_eq!(story.kind(major(START + 0x1000)), FaultKind::SwapIn);
    let name = Some("/data".into());
    let (range, flags) = (VirtRange::new(START + MIB, MIB), 1);
    story.then(EventKind::Map(Map { range, flags, name, ..Map::default() }));
    assert_eq!(story.kind(major(START + MIB)), FaultKind::FileRead);
    assert_eq!(story.kind(at(START + MIB + 0x1000)), FaultKind::FileMapped);
}

#[test]
fn without_unmaps_a_repeated_fault_is_unknown() {
    let mut story = Story::new(&Header { sources: Vec::new(), ..plain() });
    story.map(START, MIB);
    assert_eq!(story.kind(at(START)), FaultKind::FirstTouch);
    assert_eq!(story.kind(at(START)), FaultKind::Unknown);
    let mut story = Story::new(&plain());
    story.map(START, MIB).kind(at(START));
    assert_eq!(story.kind(at(START)), FaultKind::Repeated);
}

#[test]
fn the_heap_grows_and_shrinks_and_stays_one_mapping() {
    let mut story = Story::new(&plain());
    let heap = START as u64;
    story.then(EventKind::Break { end: heap }).then(EventKind::Break { end: heap + 0x3000 });
    let first = story.fault(at(START + 0x1000));
    story.then(EventKind::Break { end: heap + 0x8000 });
    let second = story.fault(at(START + 0x7000));
    assert_eq!((first.mapping, first.kind), (second.mapping, FaultKind::FirstTouch));
    let id = first.mapping.unwrap().0 as usize;
    assert_eq!(story.attributor.mappings()[id].place, Place::Heap);
    story.then(EventKind::Break { end: heap + 0x1001 });
    assert_eq!(story.fault(at(START + 0x7000)).mapping, None);
    assert_eq!(
        story.kind(at(START + 0x1000)),
        FaultKind::Repeated,
        "the page of the end is still there"
    );
    story.then(EventKind::Break { end: heap + 0x8000 });
    assert_eq!(story.kind(at(START + 0x7000)), FaultKind::FirstTouch);
}

#[test]
fn a_stack_grows_down_to_what_was_touched() {
    let mut story = Story::new(&plain());
    let (range, flags, name) = (VirtRange::new(START, 0x3000), 2, Some("[stack]".into()));
    story.then(EventKind::Map(Map { range, flags, name, ..Map::default() }));
    let below = story.fault(write(START - 0x5008));
    assert_eq!(below.kind, FaultKind::FirstTouch);
    let stack = &story.attributor.mappings()[below.mapping.unwrap().0 as usize];
    assert_eq!((&stack.place, stack.length_bytes), (&Place::Stack, 0x9000));
    assert_eq!(story.fault(write(START - 9 * MIB)).mapping, None, "beyond the usual limit");
}

#[test]
fn an_exec_leaves_nothing_and_an_exit_neither() {
    let mut story = Story::new(&plain());
    story.map(START, MIB).fork();
    story.in_process(8, EventKind::Exec { name: "other".into() });
    let fault = EventKind::Fault(write(START));
    assert_eq!(story.in_process(8, fault.clone()).unwrap().mapping, None);
    assert!(story.fault(write(START)).mapping.is_some(), "the parent goes on");
    story.then(EventKind::Exit);
    assert_eq!(story.in_process(7, fault).unwrap().mapping, None);
    let (_, spans) = story.attributor.finish();
    assert!(spans.iter().all(|span| span.ended_ns.is_some()));
}

#[test]
fn neighbours_that_are_alike_make_room_for_a_huge_page() {
    let mut story = Story::new(&plain());
    story.map(START, MIB).map(START + MIB, MIB);
    assert_eq!(story.fault(write(START + MIB)).fit, Some(HugeFit::First));
    assert_eq!(story.fault(write(START)).fit, Some(HugeFit::Further));
    let far = START + 16 * MIB;
    let (range, protection, flags) = (VirtRange::new(far + MIB, MIB), 1, 0x22);
    story.map(far, MIB).then(EventKind::Map(Map { range, protection, flags, ..Map::default() }));
    assert_eq!(story.fault(write(far)).fit, Some(HugeFit::No), "the neighbour is read-only");
}

#[test]
fn memory_for_which_huge_pages_were_refused_has_no_room_for_them() {
    let mut story = Story::new(&with_huge_pages());
    story.map(START, 4 * MIB);
    let range = VirtRange::new(START, 2 * MIB);
    story.then(EventKind::Advise { range, advice: 15 });
    assert_eq!(story.fault(write(START + 0x1000)).fit, Some(HugeFit::Refused));
    assert_eq!(story.fault(write(START + 3 * MIB)).fit, Some(HugeFit::First));
}

#[test]
fn populated_memory_is_there_without_a_fault() {
    let mut story = Story::new(&plain());
    let (range, protection, flags) = (VirtRange::new(START, MIB), 3, 0x8022);
    story.then(EventKind::Map(Map { range, protection, flags, ..Map::default() })).fork();
    assert_eq!(story.kind(write(START + 0x7000)), FaultKind::CowAfterFork);
}

/// If each page were noted by itself, this would take hours and all of the memory.
#[test]
fn pages_are_known_however_many_come_at_once() {
    const MANY: usize = 1 << 45;
    let mut story = Story::new(&plain());
    let (protection, flags) = (3, 0x8022);
    for times in 0..1000 {
        let from = VirtRange::new(START - MANY + times * 4096, MANY - times * 4096);
        let to = VirtRange::new(START, from.len);
        story.then(EventKind::Map(Map { range: from, protection, flags, ..Map::default() }));
        story.then(EventKind::Remap { from, to, kept: false });
    }
    story.fork();
    assert_eq!(story.kind(write(START + MANY / 2)), FaultKind::CowAfterFork);
    story.then(EventKind::Advise { range: VirtRange::new(START, MANY / 4), advice: 4 });
    assert_eq!(story.kind(write(START + MANY / 8)), FaultKind::Refault);
    assert_eq!(story.kind(write(START + MANY / 3)), FaultKind::CowAfterFork);
}

/// If each child had all of its parent's areas, this would take a terabyte.
#[test]
fn of_too_many_children_nothing_is_known() {
    let mut story = Story::new(&plain());
    for nth in 0..100_000 {
        story.map(START + nth * 8192, 4096);
    }
    let child = |pid| EventKind::Fork { child_pid: pid, child_tid: pid };
    let fault = || EventKind::Fault(write(START));
    let knows = |attribution: Option<Attribution>| attribution.unwrap().mapping.is_some();
    (10..100_000).for_each(|pid| _ = story.then(child(pid)));
    assert!(knows(story.in_process(10, fault())), "the first ones are as always");
    assert!(!knows(story.in_process(99_999, fault())));
    (10..100_000).for_each(|pid| _ = story.in_process(pid, EventKind::Exit));
    story.then(child(8));
    assert!(knows(story.in_process(8, fault())), "there is room again");
}

#[test]
fn nonsense_is_survived() {
    for seed in 0..40 {
        let mut scatter = Scatter(seed);
        let mut attributor = Attributor::new(&with_huge_pages());
        for event in scatter.events(3_000, 5) {
            let is_fault = matches!(event.what, EventKind::Fault(_));
            assert_eq!(attributor.observe(&event).is_some(), is_fault);
        }
    }
}

/// A grown stack appears as a map of all of it (from the kernel, through perf) or of its new part (from this
/// recorder). If each were a mapping, or were scanned, this would take hours and all of the memory.
#[test]
fn a_stack_that_grew_many_times_is_one_mapping() {
    const TOP: usize = 0x7fff_ffff_f000;
    const FIRST: usize = 33 * 4096;
    const GROWTHS: usize = 200_000;
    for is_whole in [true, false] {
        let mut attributor = Attributor::new(&plain());
        let mut happened = |what| attributor.observe(&Event { time_ns: 0, pid: 7, tid: 7, what });
        let stack = |start, end| {
            let (name, offset_bytes) = (Some("[stack]".into()), start as u64);
            let range = VirtRange::between(start, end);
            EventKind::Map(Map {
                range,
                name,
                offset_bytes,
                flags: 2,
                protection: 3,
                ..Map::default()
            })
        };
        happened(stack(TOP - FIRST, TOP));
        for growth in 1..=GROWTHS {
            let start = TOP - FIRST - growth * 4096;
            happened(stack(start, if is_whole { TOP } else { start + 4096 }));
            let fault = happened(EventKind::Fault(Fault::at(start as u64, 0x40_1000))).unwrap();
            assert_eq!((fault.kind, fault.mapping), (FaultKind::FirstTouch, Some(MappingId(0))));
        }
        let again = happened(EventKind::Fault(Fault::at((TOP - FIRST - 4096) as u64, 0x40_1000)));
        assert_eq!(again.unwrap().kind, FaultKind::Repeated, "it was there, and stayed");
        let [mapping] = attributor.mappings() else { panic!("one stack, one mapping") };
        assert_eq!(mapping.length_bytes as usize, FIRST + GROWTHS * 4096);
        assert_eq!(mapping.unmapped_bytes, 0);
        let (_, spans) = attributor.finish();
        assert_eq!(spans.len(), GROWTHS + 1);
    }
}

/// Shared memory of a file, from `offset_bytes` on.
fn shared(story: &mut Story, start: usize, len: usize, inode: u64, offset_bytes: u64) {
    let (range, protection, flags) = (VirtRange::new(start, len), 3, 1);
    let name = Some("/memfd:cache (deleted)".into());
    let map = Map { range, protection, flags, inode, offset_bytes, name, ..Map::default() };
    story.then(EventKind::Map(map));
}

#[test]
fn pages_of_shared_memory_come_once_and_are_mapped_by_whoever_touches_them() {
    let mut story = Story::new(&plain());
    shared(&mut story, START, MIB, 3, 0);
    assert_eq!(story.kind(write(START)), FaultKind::FirstTouch);
    story.fork();
    let in_child =
        |story: &mut Story, fault| story.in_process(8, EventKind::Fault(fault)).unwrap().kind;
    assert_eq!(in_child(&mut story, at(START)), FaultKind::SharedMapped);
    assert_eq!(in_child(&mut story, write(START)), FaultKind::Repeated);
    assert_eq!(in_child(&mut story, write(START + 0x1000)), FaultKind::FirstTouch);
    assert_eq!(story.kind(at(START + 0x1000)), FaultKind::SharedMapped, "the parent's too");
    // The same file at another offset, and another file of the same name.
    shared(&mut story, START + 4 * MIB, MIB, 3, 0x1000);
    assert_eq!(story.kind(at(START + 4 * MIB)), FaultKind::SharedMapped);
    shared(&mut story, START + 8 * MIB, MIB, 4, 0);
    assert_eq!(story.kind(at(START + 8 * MIB)), FaultKind::FirstTouch);
    assert_eq!(story.kind(major(START)), FaultKind::SwapIn);
    assert_eq!(story.kind(major(START + 0x7000)), FaultKind::Unknown, "it was never there");
}

#[test]
fn shared_memory_that_was_given_back_is_gone_for_all_who_map_it() {
    let mut story = Story::new(&plain());
    shared(&mut story, START, MIB, 3, 0);
    story.kind(write(START));
    story.kind(write(START + 0x1000));
    shared(&mut story, START + 4 * MIB, MIB, 3, 0);
    let range = VirtRange::new(START, MIB);
    story.then(EventKind::Advise { range, advice: 9 });
    assert_eq!(story.kind(write(START + 4 * MIB)), FaultKind::Refault);
    assert_eq!(story.kind(write(START)), FaultKind::Refault, "its own entry is gone as well");
    let populated = VirtRange::new(START + 4 * MIB, MIB);
    story.then(EventKind::Advise { range: populated, advice: 22 });
    assert_eq!(story.kind(write(START + 0x3000)), FaultKind::SharedMapped);
}

#[test]
fn shared_memory_that_is_older_than_the_trace_is_not_guessed_at() {
    let mut story = Story::new(&plain());
    let (range, flags, name) =
        (VirtRange::new(START, MIB), 1, Some("/memfd:cache (deleted)".into()));
    let (inode, is_old) = (3, true);
    story.then(EventKind::Map(Map { range, flags, name, inode, is_old, ..Map::default() }));
    assert_eq!(story.fault(write(START)).kind, FaultKind::Unknown);
    shared(&mut story, START + 4 * MIB, MIB, 3, 0);
    assert_eq!(story.kind(write(START + 4 * MIB)), FaultKind::SharedMapped, "it was just touched");
    assert_eq!(story.kind(write(START + 4 * MIB + 0x1000)), FaultKind::Unknown);
    shared(&mut story, START + 8 * MIB, MIB, 4, 0);
    story.then(EventKind::Lost { count: 1 });
    assert_eq!(story.kind(write(START + 8 * MIB)), FaultKind::Unknown);
}

#[test]
fn huge_pages_fit_into_shared_memory_by_its_own_places() {
    let odd = START + 0x3000;
    let mut story = Story::new(&plain());
    shared(&mut story, odd, 4 * MIB, 3, 0);
    assert_eq!(story.fault(write(odd + 0x5000)).fit, Some(HugeFit::First));
    assert_eq!(story.fault(write(odd + 2 * MIB - 1)).fit, Some(HugeFit::Further));
    assert_eq!(story.fault(write(odd + 2 * MIB)).fit, Some(HugeFit::First));
    // Where the kernel gives shared memory huge pages, it aligns it for them.
    let mut header = plain();
    header.machine.thp.insert("shmem_enabled".into(), "always [advise] never".into());
    let mut story = Story::new(&header);
    shared(&mut story, odd, 4 * MIB, 3, 0);
    assert_eq!(story.fault(write(odd + 0x5000)).fit, Some(HugeFit::No));
    shared(&mut story, START + 8 * MIB, 4 * MIB, 3, 0x1000);
    assert_eq!(story.fault(write(START + 8 * MIB)).fit, Some(HugeFit::No));
    let aligned = START + 16 * MIB;
    shared(&mut story, aligned, 4 * MIB, 4, 0);
    let huge = Fault { huge: Some(true), ..write(aligned) };
    assert_eq!(story.fault(huge).fit, Some(HugeFit::First));
    story.fork();
    let child = story.in_process(8, EventKind::Fault(write(aligned + 0x9000))).unwrap();
    assert_eq!((child.kind, child.fit), (FaultKind::SharedMapped, Some(HugeFit::First)));
    // The fault does not tell if it brought a huge page.
    story.kind(write(aligned + 2 * MIB));
    let child = story.in_process(8, EventKind::Fault(write(aligned + 2 * MIB + 0x9000))).unwrap();
    assert_eq!(child.kind, FaultKind::Unknown);
}

#[test]
fn what_may_have_come_with_a_smaller_huge_page_is_unknown_after_a_fork() {
    let mut header = plain();
    let setting = "always inherit [madvise] never".to_owned();
    header.machine.thp.insert("hugepages-64kB/enabled".into(), setting);
    let mut story = Story::new(&header);
    story.map(START, 4 * MIB);
    story.kind(write(START));
    story.kind(write(START + 0x40000));
    story.fork();
    assert_eq!(story.kind(write(START + 0xf000)), FaultKind::Unknown, "64 KiB may have come");
    assert_eq!(story.kind(write(START + 0x10000)), FaultKind::FirstTouch, "the next ones");
}
