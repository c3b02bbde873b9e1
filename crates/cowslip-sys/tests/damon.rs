//! Heat of a process by DAMON, where the kernel supports it for processes.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::Relaxed};
use std::time::{Duration, Instant};

use cowslip_sys::{Errno, damon, process};

const MIB: usize = 1 << 20;
const KDAMONDS: &str = "/sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds";
/// Switches the kernel's own statistics on.
const STATISTICS: &str = "/sys/module/damon_stat/parameters/enabled";

fn expected() -> bool {
    std::env::var("COWSLIP_EXPECT").is_ok_and(|list| list.split(',').any(|word| word == "damon"))
}

#[test]
fn what_is_accessed_is_hot_the_rest_is_not_and_the_interface_is_left_as_it_was() {
    let before = std::fs::read_to_string(KDAMONDS).ok();
    if let Err(errno) = damon::probe() {
        assert!(!expected(), "DAMON is declared to be there: {errno}");
        assert_ne!(errno, Errno::INVAL, "it is known what is missing");
        println!("SKIPPED: damon: {errno}");
        assert_eq!(std::fs::read_to_string(KDAMONDS).ok(), before);
        return;
    }
    assert_eq!(std::fs::read_to_string(KDAMONDS).ok(), before, "a probe changes nothing");
    let hot: Vec<AtomicU8> = (0..64 * MIB).map(|_| AtomicU8::new(1)).collect();
    let cold = vec![1u8; 64 * MIB];
    let stop = AtomicBool::new(false);
    let watched = damon::Damon::start(&[process::pid()]).unwrap();
    assert_eq!(damon::Damon::start(&[process::pid()]).unwrap_err(), Errno::BUSY);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Relaxed) {
                hot.iter().step_by(4096).for_each(|byte| byte.store(2, Relaxed));
            }
        });
        let deadline = Instant::now() + Duration::from_secs(60);
        let heat = |all: &[damon::Accesses], start: usize| {
            let middle = start + 32 * MIB;
            let of = all
                .iter()
                .find(|accesses| accesses.range.start <= middle && middle < accesses.range.end());
            of.map_or(0, |accesses| accesses.percent)
        };
        loop {
            let all = watched.accesses().unwrap().remove(0);
            let found = (heat(&all, hot.as_ptr() as usize), heat(&all, cold.as_ptr() as usize));
            if found.0 >= 50 && found.1 <= 10 {
                break;
            }
            if Instant::now() >= deadline {
                stop.store(true, Relaxed);
                panic!("hot and cold: {found:?} in {all:?}");
            }
        }
        stop.store(true, Relaxed);
    });
    drop(watched);
    assert_eq!(cold[cold.len() - 1], 1);
    assert_eq!(std::fs::read_to_string(KDAMONDS).ok(), before);
    assert_eq!(damon::kernel_thread(), None);
    if std::fs::write(STATISTICS, "Y").is_ok() {
        let (probed, started) = (damon::probe(), damon::Damon::start(&[process::pid()]));
        std::fs::write(STATISTICS, "N").unwrap();
        assert_eq!((probed.unwrap_err(), started.unwrap_err()), (Errno::BUSY, Errno::BUSY));
        assert_eq!(damon::probe(), Ok(()));
    }
}
