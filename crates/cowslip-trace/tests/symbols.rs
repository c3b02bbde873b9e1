//! Functions of this very program are found by what the kernel says is mapped where.

use std::fs;

use cowslip_sys::units::VirtRange;
use cowslip_trace::model::{Event, EventKind, Header, Map};
use cowslip_trace::symbols::Symbols;

#[inline(never)]
fn a_function_to_be_found() -> usize {
    std::hint::black_box(7)
}

/// A symbolizer that knows this process's maps.
fn symbols(began_unix_seconds: u64) -> Symbols {
    let mut symbols = Symbols::new(&Header { began_unix_seconds, ..Header::default() });
    for line in fs::read_to_string("/proc/self/maps").unwrap().lines() {
        let mut words = line.split_whitespace();
        let (start, end) = words.next().unwrap().split_once('-').unwrap();
        let is_code = words.next().unwrap().contains('x');
        let number = |text: &str| u64::from_str_radix(text, 16).unwrap();
        let offset_bytes = number(words.next().unwrap());
        let map = Map {
            range: VirtRange::between(number(start) as usize, number(end) as usize),
            protection: if is_code { 5 } else { 1 },
            flags: 0,
            offset_bytes,
            name: words.nth(2).map(Into::into),
            is_old: true,
            stack: None,
        };
        symbols.observe(&Event { time_ns: 0, pid: 1, tid: 1, what: EventKind::Map(map) });
    }
    symbols
}

#[test]
fn functions_have_their_names() {
    assert_eq!(a_function_to_be_found(), 7);
    let ip = a_function_to_be_found as *const () as u64;
    let mut now = symbols(u64::from(u32::MAX));
    let name = now.name(1, ip);
    assert!(name.contains("a_function_to_be_found"), "{name}");
    assert_eq!(now.name(1, ip), name, "and again");
    let other = now.name(2, ip);
    assert_eq!(*other, *format!("{ip:#x}"), "another process");
    // A file that is younger than the trace may be another program.
    let name = symbols(1).name(1, ip);
    assert!(name.starts_with("symbols-") && name.contains("+0x"), "{name}");
}
