#![allow(unsafe_code)]
//! Knowledge about targets: coverage, heat, and their ends.

mod support;

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use cowslip::{ErrorKind, Result};
use cowslip_promote::{Decision, Effect, HeatSource, Promoter, Reason, Region, Settings, Target};
use cowslip_sys::units::{CHUNK_BYTES, VirtRange};
use cowslip_sys::{Errno, damon, process, procfs};
use support::{Child, Promotion, Regions, alone};

#[test]
fn coverage_is_the_kernels_and_heat_follows_accesses() {
    let regions = Regions::new(&[512, 512]);
    let target = Target::open(process::pid(), 1).unwrap();
    let before = target.coverage().unwrap();
    let mut promotion = Promotion::from_regions(&regions);
    promotion.promoter.watch_heat(HeatSource::Mappings);
    promotion.reasons();
    assert_eq!(promotion.act().len(), 2);
    let after = target.coverage().unwrap();
    assert!(after.huge_bytes >= before.huge_bytes + 2 * CHUNK_BYTES as u64);
    assert!(after.ratio() > before.ratio());

    let heat = |promotion: &mut Promotion<'_>| {
        let (look, _) = promotion.promoter.look(0).unwrap();
        let all = &look.processes[0].regions;
        let region = all.iter().find(|region| region.address == regions.range.start as u64);
        region.unwrap().heat_percent.unwrap()
    };
    heat(&mut promotion);
    assert_eq!(heat(&mut promotion), 0, "nobody touched it since");
    // The kernel clears accessed bits without telling the processor, which sets none while its TLB has the
    // page.
    let is_hot = (0..100).any(|_| {
        regions.word(0, 0).fetch_add(1, Relaxed);
        regions.word(1, 0).fetch_add(1, Relaxed);
        heat(&mut promotion) == 100
    });
    assert!(is_hot);
}

#[test]
fn damon_tells_hot_regions_of_a_mapping_from_cold_ones() {
    let probed = cowslip_promote::probe_heat_sources().remove(0);
    if !probed.answer.is_available() {
        let expected = std::env::var("COWSLIP_EXPECT").is_ok_and(|list| list.contains("damon"));
        assert!(!expected, "it is declared to be there: {probed:?}");
        println!("SKIPPED: damon: {}", probed.detail);
        return;
    }
    let regions = Regions::new(&[512; 32]);
    let mut promotion = Promotion::from_regions(&regions);
    promotion.promoter.watch_heat(HeatSource::Damon);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Relaxed) {
                for (number, page) in (0..16).flat_map(|n| (0..512).map(move |page| (n, page))) {
                    regions.word(number, page).fetch_add(1, Relaxed);
                }
            }
        });
        let deadline = std::time::Instant::now() + Duration::from_secs(60);
        let told = loop {
            let (look, _) = promotion.promoter.look(0).unwrap();
            let mine = |region: &&Region| {
                regions.range.covers(VirtRange::new(region.address as usize, CHUNK_BYTES))
            };
            let heat: Vec<u8> = look.processes[0]
                .regions
                .iter()
                .filter(mine)
                .filter_map(|region| region.heat_percent)
                .collect();
            let told = heat.len() == 32
                && heat[1..15].iter().all(|percent| *percent >= 50)
                && heat[17..].iter().all(|percent| *percent <= 10);
            if told || std::time::Instant::now() > deadline {
                assert_eq!(look.processes[0].heat_source, HeatSource::Damon);
                break told.then_some(()).ok_or(heat);
            }
        };
        stop.store(true, Relaxed);
        assert_eq!(told, Ok(()));
    });
    drop(promotion);
    assert_eq!(damon::kernel_thread(), None, "it is as it was");

    let own = process::pid();
    // SAFETY: the child uses memory and files as before, and ends.
    let child = unsafe { process::fork() }.unwrap();
    if child == 0 {
        let mut promoter = Promoter::new(Settings::default()).unwrap();
        promoter.watch_heat(HeatSource::Damon);
        promoter.add(Target::open(own, 1).unwrap());
        let _ = promoter.look(0);
        // Like a kill: nothing is dropped.
        process::exit_now(0);
    }
    process::wait_for(child).unwrap();
    assert!(damon::kernel_thread().is_some(), "the child has left it on");
    cowslip_promote::end_left_watching();
    assert_eq!(damon::kernel_thread(), None);
    assert!(cowslip_promote::probe_heat_sources()[0].answer.is_available(), "it can be had again");
}

#[test]
fn a_target_that_ends_is_removed() -> Result<()> {
    let _alone = alone();
    let child = Child::fork();
    let mut promoter = Promoter::new(Settings::default())?;
    promoter.add(Target::open(child.0, 1)?);
    let (look, gone) = promoter.look(0)?;
    assert_eq!((look.processes.len(), gone.len()), (1, 0));
    child.end();
    let (look, gone) = promoter.look(0)?;
    assert_eq!((look.processes.len(), gone.len()), (0, 1));
    assert_eq!(gone[0].error.kind(), ErrorKind::Vanished, "{}", gone[0].error);
    assert_eq!(promoter.targets().count(), 0);
    let never = Target::open(i32::MAX, 1).unwrap_err();
    assert_eq!(never.kind(), ErrorKind::Vanished, "{never}");
    Ok(())
}

#[test]
fn a_process_with_the_number_of_one_that_ended_is_another() {
    const LAST: &str = "/proc/sys/kernel/ns_last_pid";
    let regions = Regions::new(&[512]);
    if std::fs::OpenOptions::new().write(true).open(LAST).is_err() {
        println!("SKIPPED: root: choosing the number of a process needs it");
        return;
    }
    let again = (0..200).find_map(|_| {
        let child = Child::fork();
        let mut promoter = Promoter::new(Settings::default()).unwrap();
        promoter.add(Target::open(child.0, 1).unwrap());
        let (look, _) = promoter.look(0).unwrap();
        promoter.decide(&look);
        let number = child.0;
        child.end();
        // Other processes start too: the number may be taken then.
        std::fs::write(LAST, (number - 1).to_string()).unwrap();
        let other = Child::fork();
        if other.0 == number {
            return Some((promoter, other));
        }
        other.end();
        None
    });
    let Some((mut promoter, other)) = again else {
        println!("SKIPPED: number: others were faster, 200 times");
        return;
    };
    let decision = Decision {
        process: promoter.targets().next().unwrap().id(),
        address: regions.range.start as u64,
        pages: 0,
        reason: Reason::Full,
    };
    let outcome = promoter.act(&decision).unwrap();
    assert_eq!(outcome.effect, Effect::Refused(Errno::SRCH.raw_os_error()));
    let (look, gone) = promoter.look(0).unwrap();
    assert_eq!((look.processes.len(), gone.len()), (0, 1));
    assert_eq!(gone[0].error.kind(), ErrorKind::Vanished);
    let text = std::fs::read_to_string(format!("/proc/{}/smaps", other.0)).unwrap();
    let huge: u64 = procfs::smaps(&text)
        .iter()
        .filter(|(mapping, _)| regions.range.covers(mapping.range))
        .map(|(_, usage)| usage.huge_bytes)
        .sum();
    assert_eq!(huge, 0, "the other one is as it was");
    other.end();
}
