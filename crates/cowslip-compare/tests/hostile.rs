#![allow(unsafe_code)]
//! Files made to deceive take memory by their length, not by its square.

use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use cowslip_compare::inputs::parse;
use cowslip_compare::{Options, compare};

/// The system's allocator, which gives no more than a bound in all.
struct Bounded;

static NOW: AtomicUsize = AtomicUsize::new(0);

// SAFETY: all is left to the system's.
unsafe impl GlobalAlloc for Bounded {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = NOW.fetch_add(layout.size(), Relaxed) + layout.size();
        if now > MOST_BYTES {
            return ptr::null_mut();
        }
        // SAFETY: as the caller promised.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Relaxed);
        // SAFETY: as the caller promised.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Bounded = Bounded;

/// More than a thousand bytes for each byte of a file.
const MOST_BYTES: usize = 256 << 20;
const HALF: usize = 1 << 17;

fn many(item: impl Fn(usize) -> String) -> String {
    let mut all = String::new();
    for number in 0.. {
        all += &item(number);
        if all.len() >= HALF {
            break;
        }
        all.push(',');
    }
    all
}

#[test]
fn memory_does_not_grow_with_the_square_of_a_file() {
    let long = "x".repeat(HALF);
    let values = many(|number| format!("\"{number}\":1"));
    let reports = format!("{{\"a\": \"{long}\", \"b\": {{{values}}}}}");
    let sadf =
        format!("{{\"sysstat\": {{\"hosts\": [{{\"statistics\": [{{\"r\": {reports}}}]}}]}}}}");
    assert!(parse(&sadf, "a", None).unwrap()[0].metrics.is_empty(), "none has a name of sysstat's");

    let times = many(|_| "1".to_owned());
    let hyperfine = format!("{{\"results\": [{{\"command\": \"{long}\", \"times\": [{times}]}}]}}");
    let runs = parse(&hyperfine, "a", None).unwrap();
    assert!(runs.len() > 1 << 15 && runs[7].facts["command"] == long);
    assert!(compare(&runs[..9], &runs[9..99], &Options::default()).unwrap().facts.is_empty());
    drop(runs);

    let results = many(|_| "1".to_owned());
    let asv = format!(
        "{{\"commit_hash\": \"a\", \"results\": {{\"{long}\": {{\"result\": [{results}], \"params\": [[\"{long}\"]]}}}}}}"
    );
    let error = parse(&asv, "a", None).unwrap_err();
    assert!(error.to_string().contains("it has 65"), "{error}");
    let go =
        format!("Benchmark{long} 1 {}", many(|number| format!("1 {number}/op")).replace(',', " "));
    assert!(parse(&go, "a", None).unwrap()[0].metrics.len() > HALF / 16);
    let columns = many(|number| format!("c{number}")).replace(',', " ");
    let row = columns.replace('c', "");
    let first = "Linux 6 (a) 1 _a_ (2 CPU)";
    let mpstat = format!("{first}\n\n1:00:00 CPU {columns}\n1:00:01 {long} {row}\n");
    assert!(parse(&mpstat, "a", None).unwrap()[0].metrics.len() > HALF / 16);
    let pidstat = format!("{first}\n\n1:00:00 PID {columns} Command\n1:00:01 1 {row} {long}\n");
    assert!(parse(&pidstat, "a", None).unwrap()[0].metrics.len() > HALF / 16);

    let heads = many(|number| format!("c{number}"));
    let columns = heads.split(',').count();
    let csv = format!("{heads}\n{}\n", vec!["1"; columns].join(","));
    assert_eq!(parse(&csv, "a", None).unwrap()[0].metrics.len(), columns);
    let rows = "a,1.5\nb,2\nb,3\n".repeat(HALF / 16);
    assert_eq!(parse(&format!("{long},y\n{rows}"), "a", None).unwrap()[0].metrics.len(), 2);
}
