//! `/proc/diskstats` and `/proc/net/dev`: traffic of disks and network interfaces.

use super::reading::{Reading, reading};
use crate::recording::MetricKind::{Counter, Share};

/// The kernel's unit for all disks, independent of their own sectors.
const SECTOR_BYTES: f64 = 512.0;
const MILLISECOND: f64 = 1e-3;

/// Columns of `/proc/diskstats` after the name: their numbers, names and units.
const DISK: [(usize, &str, f64); 9] = [
    (0, "reads", 1.0),
    (2, "read_bytes", SECTOR_BYTES),
    (3, "read_wait_seconds", MILLISECOND),
    (4, "writes", 1.0),
    (6, "written_bytes", SECTOR_BYTES),
    (7, "write_wait_seconds", MILLISECOND),
    (10, "queue_seconds", MILLISECOND),
    // Only since Linux 5.5.
    (15, "flushes", 1.0),
    (16, "flush_wait_seconds", MILLISECOND),
];
/// The column of the time with any request under way.
const BUSY: usize = 9;

/// Columns of `/proc/net/dev`.
const INTERFACE: [(usize, &str); 8] = [
    (0, "received_bytes"),
    (1, "received_packets"),
    (2, "received_errors"),
    (3, "received_dropped"),
    (8, "sent_bytes"),
    (9, "sent_packets"),
    (10, "sent_errors"),
    (11, "sent_dropped"),
];

/// Disks that were used since the machine started, without their parts.
pub(super) fn disks(text: &str, is_whole: impl Fn(&str) -> bool, into: &mut Vec<Reading>) {
    for line in text.lines() {
        let mut words = line.split_ascii_whitespace().skip(2);
        let Some(name) = words.next().filter(|name| is_whole(name)) else { continue };
        let values: Vec<Option<f64>> = words.map(|word| word.parse().ok()).collect();
        let value = |column: usize| values.get(column).copied().flatten();
        if value(0) == Some(0.0) && value(4) == Some(0.0) {
            continue;
        }
        for (column, what, unit) in DISK {
            let value = value(column).map(|count| count * unit);
            into.push(reading(format!("disk.{name}.{what}"), Counter, value));
        }
        let busy = value(BUSY).map(|time| time * MILLISECOND);
        into.push(reading(format!("disk.{name}.busy_share"), Share, busy));
    }
}

pub(super) fn interfaces(text: &str, into: &mut Vec<Reading>) {
    for (name, rest) in text.lines().filter_map(|line| line.split_once(':')) {
        let values: Vec<Option<f64>> =
            rest.split_ascii_whitespace().map(|word| word.parse().ok()).collect();
        for (column, what) in INTERFACE {
            let value = values.get(column).copied().flatten();
            into.push(reading(format!("network.{}.{what}", name.trim()), Counter, value));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(all: Vec<Reading>) -> Vec<(String, f64)> {
        all.into_iter().map(|(definition, value)| (definition.name, value.unwrap())).collect()
    }

    #[test]
    fn disks_that_were_used_are_read_without_their_parts() {
        let text = " 254 0 vda 10 1 20 3000 40 2 60 7000 0 500 10000 0 0 0 0 4 2\n \
            254 1 vda1 10 1 20 3000 40 2 60 7000 0 500 10000\n   7 0 loop0 0 0 0 0 0 0 0 0 0 0 0\n";
        let mut all = Vec::new();
        disks(text, |name| name != "vda1", &mut all);
        let wanted = [
            ("disk.vda.reads", 10.0),
            ("disk.vda.read_bytes", 10_240.0),
            ("disk.vda.read_wait_seconds", 3.0),
            ("disk.vda.writes", 40.0),
            ("disk.vda.written_bytes", 30_720.0),
            ("disk.vda.write_wait_seconds", 7.0),
            ("disk.vda.queue_seconds", 10.0),
            ("disk.vda.flushes", 4.0),
            ("disk.vda.flush_wait_seconds", 0.002),
            ("disk.vda.busy_share", 0.5),
        ];
        assert_eq!(named(all), wanted.map(|(name, value)| (name.to_owned(), value)));
    }

    #[test]
    fn interfaces_are_read_below_their_heads() {
        let text = "Inter-|   Receive            |  Transmit\n face |bytes packets errs drop|bytes\n  \
            eth0:1000 2 3 4 5 6 7 8 9000 10 11 12 13 14 15 16\n";
        let mut all = Vec::new();
        interfaces(text, &mut all);
        let values: Vec<f64> = all.iter().map(|(_, value)| value.unwrap()).collect();
        assert_eq!(values, [1000.0, 2.0, 3.0, 4.0, 9000.0, 10.0, 11.0, 12.0]);
        assert_eq!(all[4].0.name, "network.eth0.sent_bytes");
    }
}
