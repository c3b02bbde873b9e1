//! RocksDB by its own benchmark: a store is filled, cached in the program's memory, and read at random. Every key has
//! to be found, and the store to be the same under every policy.

use std::process::Command;

use super::job::{Figure, Job, Outcome};
use super::settings::System;
use super::{Bench, Options, Result};
use crate::error::Error;
use crate::program::Folder;

pub(super) const NAME: &str = "rocksdb";
pub(super) const READS: &str = "reads";

const VALUE_BYTES: u64 = 1000;
/// Seconds of reading.
const READING: u32 = 10;

pub(super) fn measure(bench: &mut Bench<'_>, options: &Options, system: &System) -> Result<()> {
    let (bytes, stop) = (options.working_bytes() as u64, bench.stop);
    let folder = Folder::new("bloat-rocksdb")?;
    let store = format!("--db={}", folder.path().join("store").display());
    let words = [
        "db_bench".to_owned(),
        store.clone(),
        "--benchmarks=filluniquerandom,readtocache,readrandom".to_owned(),
        "--compression_type=none".to_owned(),
        "--disable_wal".to_owned(),
        "--histogram".to_owned(),
        "--seed=1".to_owned(),
        format!("--cache_size={bytes}"),
        format!("--duration={READING}"),
        format!("--num={}", bytes / 2 / VALUE_BYTES),
        format!("--value_size={VALUE_BYTES}"),
    ];
    let job = Job {
        name: NAME,
        bytes,
        folder: &folder,
        words: words.into(),
        needs: "apt-get install rocksdb-tools",
        result: &|said| {
            let read = read(said);
            let (lost, figures) = read
                .ok_or_else(|| Error::Failed(format!("db_bench printed {said:?} of its reads")))?;
            let mut dump = Command::new("sh");
            dump.args(["-c", "ldb \"$0\" scan | cksum", &store]);
            let content = folder.finish(&mut dump, stop)?.into();
            Ok(Outcome { content, wrong: lost, figures })
        },
    };
    job.measure(bench, options.runs, system)
}

/// The number of lost keys, the rate of reads, and the percentiles of their time.
fn read(said: &str) -> Option<(u64, Vec<Figure>)> {
    let said = &said[said.find("readrandom ")?..];
    let before = |what: &str| said.split_once(what)?.0.rsplit([' ', '(']).next();
    let rate = before(" ops/sec")?.parse().ok()?;
    let found: u64 = before(" of ")?.parse().ok()?;
    let asked: u64 = before(" found)")?.parse().ok()?;
    let percentile = |name: &str| {
        let (_, rest) = said.split_once("Percentiles:")?.1.split_once(name)?;
        let us: f64 = rest.split_ascii_whitespace().next()?.parse().ok()?;
        Some(us * 1e3)
    };
    let mut figures = vec![Figure { metric: READS, stat: "p50", value: rate, unit: "1/s" }];
    for (stat, name) in [("p50", " P50: "), ("p99", " P99: "), ("p999", " P99.9: ")] {
        let value = percentile(name)?;
        figures.push(Figure { metric: "read", stat, value, unit: "ns" });
    }
    Some((asked - found, figures))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_db_bench_is_read() {
        let said = "filluniquerandom : 8.3 micros/op 119607 ops/sec 0.8 seconds 10 operations;\n\
                    Percentiles: P50: 1.00 P75: 1.00 P99: 1.00 P99.9: 1.00 P99.99: 1.00\n\
                    readrandom   :      28.598 micros/op 34967 ops/sec 8.579 seconds 300000 \
                    operations;   33.9 MB/s (299998 of 300000 found)\n\n\
                    Percentiles: P50: 6.12 P75: 9.43 P99: 202.87 P99.9: 3867.39 P99.99: 14000.00\n";
        let (lost, figures) = read(said).unwrap();
        let values = figures.iter().map(|figure| (figure.metric, figure.stat, figure.value));
        let values: Vec<_> = values.collect();
        assert_eq!(lost, 2);
        assert_eq!(values[0], (READS, "p50", 34967.0));
        let times: Vec<_> = figures[1..].iter().map(|figure| figure.value.round()).collect();
        assert_eq!(times, [6120.0, 202_870.0, 3_867_390.0]);
        assert!(read("readrandom   : ").is_none());
    }
}
