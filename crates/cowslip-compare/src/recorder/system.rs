//! The kernel's counters for the whole machine.

use std::fs;
use std::path::Path;

use super::reading::{Reading, reading};
use super::{devices, processor};
use crate::recording::MetricKind::{Counter, Gauge};

/// Names in `/proc/vmstat` that begin with `nr_` but only grow.
const COUNTERS: [&str; 13] = [
    "nr_dirtied",
    "nr_foll_pin_acquired",
    "nr_foll_pin_released",
    "nr_throttled_written",
    "nr_tlb_local_flush_all",
    "nr_tlb_local_flush_one",
    "nr_tlb_remote_flush",
    "nr_tlb_remote_flush_received",
    "nr_vmscan_immediate_reclaim",
    "nr_vmscan_write",
    "nr_written",
    "nr_kswapd_reclaim",
    "nr_direct_reclaim",
];

/// Reads all metrics. A file that is missing or unreadable gives none.
pub(super) fn read(into: &mut Vec<Reading>) {
    let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
    processor::stat(&text("/proc/stat"), into);
    vmstat(&text("/proc/vmstat"), into);
    for resource in ["cpu", "io", "memory", "irq"] {
        pressure(resource, &text(&format!("/proc/pressure/{resource}")), into);
    }
    let is_whole = |disk: &str| Path::new("/sys/block").join(disk.replace('/', "!")).exists();
    devices::disks(&text("/proc/diskstats"), is_whole, into);
    devices::interfaces(&text("/proc/net/dev"), into);
    interrupts(&text("/proc/interrupts"), into);
    meminfo(&text("/proc/meminfo"), into);
    let loadavg = text("/proc/loadavg");
    let one_minute = loadavg.split(' ').next().and_then(|word| word.parse().ok());
    into.extend(one_minute.map(|load| reading("loadavg.one_minute", Gauge, Some(load))));
}

fn vmstat(text: &str, into: &mut Vec<Reading>) {
    for (name, value) in text.lines().filter_map(|line| line.split_once(' ')) {
        let is_level = name.starts_with("nr_") || name == "workingset_nodes";
        let kind = if is_level && !COUNTERS.contains(&name) { Gauge } else { Counter };
        into.push(reading(format!("vmstat.{name}"), kind, value.parse().ok()));
    }
}

/// The time in which some or all tasks waited, from lines such as `some avg10=0.00 … total=12`.
fn pressure(resource: &str, text: &str, into: &mut Vec<Reading>) {
    for line in text.lines() {
        let Some((whose, rest)) = line.split_once(' ') else { continue };
        let total = rest.split("total=").nth(1).and_then(|micros| micros.parse::<f64>().ok());
        let name = format!("pressure.{resource}.{whose}_seconds");
        into.push(reading(name, Counter, total.map(|micros| micros / 1e6)));
    }
}

/// Each kind of interrupt that the kernel names (`TLB`: shootdowns), over all processors, and their sum.
fn interrupts(text: &str, into: &mut Vec<Reading>) {
    let mut sum = 0.0;
    for (name, rest) in text.lines().filter_map(|line| line.trim_start().split_once(':')) {
        let counts = rest.split_ascii_whitespace().map_while(|word| word.parse::<f64>().ok());
        let of_line: f64 = counts.sum();
        sum += of_line;
        if name.parse::<u32>().is_err() {
            into.push(reading(format!("interrupts.{name}"), Counter, Some(of_line)));
        }
    }
    if !text.is_empty() {
        into.push(reading("interrupts.all", Counter, Some(sum)));
    }
}

fn meminfo(text: &str, into: &mut Vec<Reading>) {
    for (name, rest) in text.lines().filter_map(|line| line.split_once(':')) {
        let name = name.to_lowercase().replace(['(', ')'], "_");
        let name = name.trim_end_matches('_');
        let rest = rest.trim();
        into.push(match rest.strip_suffix(" kB") {
            Some(kib) => {
                let bytes = kib.parse::<f64>().ok().map(|kib| kib * 1024.0);
                reading(format!("meminfo.{name}_bytes"), Gauge, bytes)
            }
            None => reading(format!("meminfo.{name}"), Gauge, rest.parse().ok()),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_text_becomes_readings() {
        let mut all = Vec::new();
        vmstat("nr_free_pages 5\nnr_written 6\npgfault 7\n", &mut all);
        pressure("memory", "some avg10=0.00 avg60=0.00 avg300=0.00 total=1500000\n", &mut all);
        let text = "     CPU0 CPU1\n 24:  1 2  PCI-MSI 0-edge virtio\nTLB:  3 4  TLB shootdowns\n";
        interrupts(text, &mut all);
        meminfo("Active(anon):   2 kB\nHugePages_Total:  3\n", &mut all);
        let all: Vec<_> = all
            .into_iter()
            .map(|(definition, value)| (definition.name, definition.kind, value.unwrap()))
            .collect();
        let wanted = [
            ("vmstat.nr_free_pages", Gauge, 5.0),
            ("vmstat.nr_written", Counter, 6.0),
            ("vmstat.pgfault", Counter, 7.0),
            ("pressure.memory.some_seconds", Counter, 1.5),
            ("interrupts.TLB", Counter, 7.0),
            ("interrupts.all", Counter, 10.0),
            ("meminfo.active_anon_bytes", Gauge, 2048.0),
            ("meminfo.hugepages_total", Gauge, 3.0),
        ];
        assert_eq!(all, wanted.map(|(name, kind, value)| (name.to_owned(), kind, value)));
    }
}
