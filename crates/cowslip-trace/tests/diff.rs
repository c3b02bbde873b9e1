//! Comparisons of two traces.

#[path = "support/scene.rs"]
mod scene;

use cowslip_sys::units::VirtRange;
use cowslip_trace::Analysis;
use cowslip_trace::attribute::FaultKind;
use cowslip_trace::cost::FaultCost;
use cowslip_trace::diff::{Basis, Diff};
use cowslip_trace::model::EventKind;
use cowslip_trace::symbols::Names;
use scene::{MIB, PAGE, START, Scene};

fn diff(first: &Scene, second: &Scene, basis: Option<Basis>) -> Diff {
    let [first, second] = [first, second]
        .map(|scene| Analysis::new(&scene.0, FaultCost::from_header(&scene.0.header)));
    let basis = basis.unwrap_or_else(|| Basis::fitting([&first, &second]));
    Diff::new([&first, &second], [&mut Names::default(), &mut Names::default()], basis)
}

/// Maps of 2 MiB, at other addresses in each run, with or without huge pages.
fn cache(thp: &str, base: usize, is_huge: bool) -> Scene {
    let mut scene = Scene::new(thp);
    scene.program(base);
    let stack = scene.stack(&[base as u64 + 0x123]);
    for map in 0..50 {
        let start = START + base + map * 4 * MIB;
        scene.map_by(start, 2 * MIB, Some(stack));
        if is_huge {
            scene.touch_huge(start + 511 * PAGE);
        } else {
            (0..512).rev().for_each(|page| scene.touch(start + page * PAGE));
        }
    }
    scene
}

#[test]
fn the_mode_of_huge_pages_is_named_where_the_faults_show_it() {
    let good = cache("[always] madvise never", 0x1000_0000, true);
    let bad = cache("always [madvise] never", 0x2000_0000, false);
    let diff = diff(&good, &bad, None);
    assert_eq!(diff.basis, Basis::PerRun);
    assert_eq!(diff.groups.len(), 1, "{diff:?}");
    let group = &diff.groups[0];
    assert_eq!(&*group.mapped_by[0], "/bin/program+0x123");
    assert_eq!(group.compared(), [50.0, 25_600.0]);
    let each = group.sides.each_ref().map(|side| side.as_ref().unwrap().shape.per_mapping);
    assert_eq!(each, [[1; 3], [512; 3]]);
    let explanation = &diff.explanations[0];
    let setting = "transparent_hugepage/enabled always → madvise";
    assert!(explanation.contains(setting), "{explanation}");
    assert!(explanation.contains("took 1 fault each, then 512 faults"), "{explanation}");
    let back = "to return to it: echo always > /sys/kernel/mm/transparent_hugepage/enabled, or";
    assert!(explanation.contains(back), "{explanation}");
}

#[test]
fn a_setting_that_changed_nothing_explains_nothing() {
    let good = cache("[always] madvise never", 0x1000_0000, false);
    let bad = cache("always [madvise] never", 0x2000_0000, false);
    let same = diff(&good, &bad, None);
    assert!(same.is_empty() && same.explanations.is_empty(), "{same:?}");
    assert_eq!(same.settings.len(), 1, "it is still told");
    assert_eq!(same.settings[0].values, [Some("always".into()), Some("madvise".into())]);
}

#[test]
fn a_run_twice_as_long_is_the_same_by_the_second_and_not_by_the_run() {
    let scene = |maps| {
        let mut scene = Scene::new("never");
        scene.descend(maps);
        scene
    };
    let (short, long) = (scene(40), scene(80));
    assert!(!diff(&short, &long, Some(Basis::PerRun)).is_empty());
    assert!(diff(&short, &long, Some(Basis::PerSecond)).is_empty());
    assert!(diff(&short, &short, None).is_empty());
}

#[test]
fn another_order_is_a_difference() {
    let ascending = {
        let mut scene = Scene::new("never");
        for map in 0..40 {
            let start = START + map * 4 * MIB;
            scene.map(start, 2 * MIB);
            (0..512).for_each(|page| scene.touch(start + page * PAGE));
        }
        scene
    };
    let mut descending = Scene::new("never");
    descending.descend(40);
    let diff = diff(&ascending, &descending, None);
    assert!(!diff.kinds.iter().any(|kind| kind.differs));
    let steps = diff.groups[0].sides.each_ref().map(|side| side.as_ref().unwrap().shape.step_pages);
    assert_eq!(steps, [1, -1]);
}

#[test]
fn copies_after_forks_are_told_with_the_forks() {
    let scene = |forks| {
        let mut scene = Scene::new("never");
        scene.map(START, MIB);
        (0..256).for_each(|page| scene.touch(START + page * PAGE));
        for fork in 0..forks {
            let child_pid = 100 + fork;
            scene.then(EventKind::Fork { child_pid, child_tid: child_pid });
            (0..256).for_each(|page| scene.touch(START + page * PAGE));
        }
        scene
    };
    let diff = diff(&scene(0), &scene(3), None);
    let copies = diff.kinds.iter().find(|kind| kind.kind == FaultKind::CowAfterFork).unwrap();
    assert_eq!((copies.compared, copies.differs), ([0.0, 768.0], true));
    let words = "copy-on-write after fork: 0 → 768 faults, with 0 forks → 3 forks";
    assert!(diff.explanations.iter().any(|sentence| sentence == words), "{:?}", diff.explanations);
    let group = &diff.groups[0];
    let kinds = group.sides.each_ref().map(|side| side.as_ref().unwrap().kind);
    assert_eq!(kinds, [Some(FaultKind::FirstTouch), Some(FaultKind::CowAfterFork)]);
}

#[test]
fn callers_that_only_one_trace_tells_do_not_part_what_is_the_same() {
    let with_callers = cache("never", 0x1000_0000, false);
    let mut without = cache("never", 0x2000_0000, false);
    for event in &mut without.0.events {
        if let EventKind::Map(map) = &mut event.what {
            map.stack = None;
        }
    }
    assert!(diff(&with_callers, &without, None).is_empty());
}

#[test]
fn commands_that_differ_by_a_word_are_compared_by_the_run() {
    let scene = |word: &str, maps| {
        let mut scene = Scene::new("never");
        scene.0.header.command.push(word.into());
        scene.descend(maps);
        scene
    };
    let (good, mut bad) = (scene("good", 4), scene("bad", 80));
    let told = diff(&good, &bad, None);
    assert_eq!((told.basis, told.groups[0].compared()), (Basis::PerRun, [2_048.0, 40_960.0]));
    let words = "anonymous maps of up to 2 MiB: 2,048 → 40,960 faults; no rule says why";
    assert_eq!(told.explanations, [words]);
    // A window of a command's last seconds begins with the earlier mappings.
    let EventKind::Map(map) = &mut bad.0.events[0].what else { panic!("a map") };
    map.is_old = true;
    assert_eq!(diff(&good, &bad, None).basis, Basis::PerSecond);
    bad.0.header.attached_pids = vec![7];
    assert_eq!(diff(&good, &bad, None).basis, Basis::PerSecond);
}

#[test]
fn advice_that_only_one_program_gives_is_named_where_its_huge_pages_came() {
    let mut asked = cache("always [madvise] never", 0x1000_0000, true);
    let maps = asked.0.events.to_vec();
    asked.0.events.clear();
    for event in maps {
        let map = match &event.what {
            EventKind::Map(map) if map.name.is_none() => Some(map.range),
            _ => None,
        };
        asked.0.events.push(event);
        if let Some(range) = map {
            asked.then(EventKind::Advise { range, advice: 14 });
        }
    }
    let plain = cache("always [madvise] never", 0x2000_0000, false);
    let told = &diff(&asked, &plain, None).explanations[0];
    let words = "huge pages: 50 calls → 0 calls of madvise(MADV_HUGEPAGE); anonymous maps of up to 2 MiB \
                 took 1 fault each, then 512 faults: 50 → 25,600 faults";
    assert_eq!(told, words);
}

/// Like a virtual machine, which reserves memory differently for huge pages.
#[test]
fn advice_is_named_where_memory_is_mapped_in_another_way_without_it() {
    let scene = |is_asked: bool| {
        let mut scene = Scene::new("always [madvise] never");
        scene.program(0x1000_0000);
        let caller = scene.stack(&[0x1000_0000 + if is_asked { 0x100 } else { 0x200 }]);
        scene.map_by(START, 256 * MIB, Some(caller));
        if is_asked {
            let range = VirtRange::new(START, 256 * MIB);
            scene.then(EventKind::Advise { range, advice: 14 });
        }
        let step = if is_asked { 512 } else { 1 };
        (0..16_384).step_by(step).for_each(|page| scene.touch(START + page * PAGE));
        scene
    };
    let told = &diff(&scene(true), &scene(false), None).explanations[0];
    let words = "huge pages: 1 call → 0 calls of madvise(MADV_HUGEPAGE); anonymous maps of up to 256 MiB: \
                 0 → 16,384 faults";
    assert_eq!(told, words);
}

#[test]
fn a_size_of_huge_pages_below_two_mebibytes_is_named() {
    let scene = |setting: &str, step: usize| {
        let mut scene = Scene::new("always [madvise] never");
        let name = "hugepages-64kB/enabled".to_owned();
        scene.0.header.machine.thp.insert(name, setting.to_owned());
        scene.map(START, 16 * MIB);
        (0..4_096).step_by(step).for_each(|page| scene.touch(START + page * PAGE));
        scene
    };
    let (on, off) = (scene("[always] never", 16), scene("always [never]", 1));
    let told = &diff(&on, &off, None).explanations[0];
    let words = "huge pages: transparent_hugepage/hugepages-64kB/enabled always → never; anonymous maps of \
                 up to 16 MiB: 256 → 4,096 faults; to return to it: echo always > \
                 /sys/kernel/mm/transparent_hugepage/hugepages-64kB/enabled";
    assert_eq!(told, words);
}
