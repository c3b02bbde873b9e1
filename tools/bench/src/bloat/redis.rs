//! Redis: values of 8 KB, 70 % of them deleted, and small values on far more pages than the TLB reaches.

use std::time::Duration;

use crate::report::{Report, Row};
use cowslip::units::ByteCount;

use super::collapse::collapse;
use super::daemon::Daemon;
use super::group::Group;
use super::policy::HugePagePolicy;
use super::settings::{Settings, System};
use super::store::{Served, Store};
use super::target::{mapped, part_of_resident, sleep, until_huge};
use super::{BYTES_CHANGED, Bench, Options, Result};
use crate::demo::redis::resp::Connection;
use crate::error::Error;
use crate::host::warm;
use crate::interrupt::Interrupt;
use crate::rows::{median, median_bounds};

/// Memory charged to the server, including memory that no page table shows any more.
pub(super) const MEMORY: &str = "redis_memory";
pub(super) const RSS: &str = "redis_rss";
/// GETs of clients that each wait for their answer.
pub(super) const GETS: &str = "redis_get";
/// GETs of one client that sends many at once.
pub(super) const PIPELINED: &str = "redis_get_pipelined";
/// Cowslip's rate over that of `thp-always`, in turns.
pub(super) const OVER_ALWAYS: &str = "over_thp_always";
pub(super) const SETTLED: &str = "settled";
/// Large values, most of them deleted.
pub(super) const BLOAT: &str = "8 KB values";
/// Small values, on far more pages than the TLB reaches.
pub(super) const TLB: &str = "64 B values";

const LARGE: usize = 8192;
const SMALL: usize = 64;
/// Memory of a small value with its key.
const SMALL_FOOTPRINT: u64 = 190;
const DELETED_PERCENT: u64 = 70;
/// Time for promoters to see the deleted memory, which the allocator has given back (`MEMORY PURGE`).
const SETTLING: Duration = Duration::from_secs(7);
const COVERED: f64 = 0.85;
const COVERING: Duration = Duration::from_secs(60);
/// The default of `redis-benchmark`.
const CLIENTS: usize = 50;
const TURN: Duration = Duration::from_millis(300);
const MOST_ROUNDS: u32 = 9;
/// Pairs of turns of two servers: many short ones, because the machine's speed drifts.
const LEAST_PAIRS: u32 = 25;
const MOST_PAIRS: u32 = 99;
const PAIRED_TURN: Duration = Duration::from_millis(100);

/// A server under one policy.
struct Entry {
    policy: HugePagePolicy,
    store: Store,
    clients: Vec<Connection>,
    daemon: Option<Daemon>,
    group: Option<Group>,
    /// The results of each of [`WAYS`].
    served: [Vec<Served>; 2],
}

/// A way to ask a server for values.
type Way = fn(&mut Entry, Duration, &Interrupt) -> Result<Served>;

const WAYS: [(&str, Way); 2] = [
    (GETS, |entry, time, stop| entry.store.serve_each(&mut entry.clients, time, stop)),
    (PIPELINED, |entry, time, stop| entry.store.serve_pipelined(time, stop)),
];

/// Work for a server once it is filled.
struct Workload {
    policies: &'static [HugePagePolicy],
    variant: &'static str,
    value_bytes: usize,
    keys: usize,
    bytes: u64,
    deletes: bool,
    /// The share of the time left at its start.
    time_share: f64,
}

pub(super) fn measure(bench: &mut Bench<'_>, options: &Options, system: &System) -> Result<()> {
    let bytes = options.working_bytes() as u64;
    let policies = match bench.clock.is_full() {
        true => &HugePagePolicy::ALL[..],
        false => &HugePagePolicy::QUICK,
    };
    let workloads = [
        Workload {
            policies,
            variant: BLOAT,
            value_bytes: LARGE,
            keys: bytes as usize / 2 / LARGE,
            bytes,
            deletes: true,
            time_share: 0.15,
        },
        Workload {
            policies: &[HugePagePolicy::Never, HugePagePolicy::Always, HugePagePolicy::Cowslip],
            variant: TLB,
            value_bytes: SMALL,
            keys: (bytes / SMALL_FOOTPRINT) as usize,
            bytes,
            deletes: false,
            time_share: 0.3,
        },
    ];
    for workload in &workloads {
        workload.measure(bench, options.runs.min(MOST_ROUNDS), system)?;
    }
    bench.report.notes.push(format!(
        "Redis is asked on this machine over {CLIENTS} connections, each with one GET under way, as redis-benchmark \
         does unless it is told otherwise (redis_get); and over one, 64 GETs a packet and 256 on their way, so that little but \
         its reading of memory is measured (redis_get_pipelined): there base pages lose more, and after deletions most \
         are. Every value is compared"
    ));
    system.set(&Settings::NEVER)
}

impl Workload {
    fn measure(&self, bench: &mut Bench<'_>, rounds: u32, system: &System) -> Result<()> {
        let mut entries = Vec::new();
        for &policy in self.policies {
            let name = policy.name();
            bench.progress.phase(&format!("Redis, {}: {name}", self.variant));
            match self.prepare(bench, policy, system) {
                Ok(entry) => entries.push(entry),
                Err(Error::Failed(why)) => {
                    let row = Row::skipped(name, GETS, why).size_bytes(self.bytes);
                    bench.report.row(row.variant(self.variant));
                }
                Err(error) => return Err(error),
            }
        }
        // From here on the kernel leaves all memory as it is.
        system.set(&Settings::NEVER)?;
        for round in bench.clock.rounds(self.time_share, 3, rounds + 1) {
            bench.progress.phase(&format!("Redis, {}: round {round}", self.variant));
            // The order alternates, which spreads a drift of the machine's speed over all.
            entries.reverse();
            for entry in &mut entries {
                for (way, (_, serve)) in WAYS.iter().enumerate() {
                    let served = serve(entry, TURN, bench.stop)?;
                    if round > 0 {
                        entry.served[way].push(served);
                    }
                }
            }
        }
        entries
            .sort_by_key(|entry| self.policies.iter().position(|policy| *policy == entry.policy));
        self.compare(bench, &mut entries)?;
        for entry in entries {
            self.finish(bench, entry)?;
        }
        Ok(())
    }

    /// Has `thp-always` and Cowslip take turns: between two rounds of all policies the machine's speed changes by more
    /// than the promised difference between these two.
    fn compare(&self, bench: &mut Bench<'_>, entries: &mut [Entry]) -> Result<()> {
        let of = |policy| entries.iter().position(|entry| entry.policy == policy);
        let (Some(always), Some(cowslip)) =
            (of(HugePagePolicy::Always), of(HugePagePolicy::Cowslip))
        else {
            return Ok(());
        };
        for (metric, serve) in WAYS {
            bench.progress.phase(&format!("Redis, {}: {metric}, in turns", self.variant));
            let mut ratios = Vec::new();
            for pair in bench.clock.rounds(self.time_share, LEAST_PAIRS, MOST_PAIRS) {
                bench.progress.set(pair.into(), MOST_PAIRS.into());
                let mut rate = |entry: usize| {
                    serve(&mut entries[entry], PAIRED_TURN, bench.stop).map(|turn| turn.rate)
                };
                // The order alternates.
                ratios.push(if pair % 2 == 0 {
                    rate(cowslip)? / rate(always)?
                } else {
                    1.0 / (rate(always)? / rate(cowslip)?)
                });
            }
            let (low, high) = median_bounds(&ratios).unzip();
            for (stat, value) in
                [("p50", median(&ratios)), ("p50_ci95_low", low), ("p50_ci95_high", high)]
            {
                let Some(value) = value else { continue };
                let metric = format!("{metric}_{OVER_ALWAYS}");
                let row = Row::new(HugePagePolicy::Cowslip.name(), &metric, stat, value, "ratio");
                let row = row.size_bytes(self.bytes).variant(self.variant);
                bench.report.row(row.n(ratios.len() as u64));
            }
        }
        Ok(())
    }

    /// Fills a server under the settings of a policy, and has it settle.
    fn prepare(
        &self,
        bench: &mut Bench<'_>,
        policy: HugePagePolicy,
        system: &System,
    ) -> Result<Entry> {
        let stop = bench.stop;
        warm(ByteCount(self.bytes), stop)?;
        system.set(&policy.settings()?)?;
        let store = Store::start(self.value_bytes, policy == HugePagePolicy::Madvise, stop)?;
        let group = Group::new().and_then(|group| group.add(store.pid()).map(|()| group));
        let group = match group {
            Ok(group) => Some(group),
            Err(Error::Failed(why)) => {
                bench.report.row(Row::skipped(policy.name(), MEMORY, why).size_bytes(self.bytes));
                None
            }
            Err(error) => return Err(error),
        };
        let clients = store.clients(CLIENTS)?;
        let served = [Vec::new(), Vec::new()];
        let mut entry = Entry { policy, store, clients, daemon: None, group, served };
        entry.store.fill(self.keys, stop)?;
        if policy == HugePagePolicy::Collapse {
            collapse(entry.store.pid(), stop)?;
        }
        if policy == HugePagePolicy::Cowslip {
            let daemon = Daemon::start(&[entry.store.pid()], &[], "")?;
            let enough_bytes = part_of_resident(entry.store.pid(), COVERED)?;
            until_huge(entry.store.pid(), enough_bytes, COVERING, stop)?;
            entry.daemon = Some(daemon);
        }
        self.push_memory(bench.report, &entry, "filled")?;
        if self.deletes {
            entry.store.delete(DELETED_PERCENT, stop)?;
            self.push_memory(bench.report, &entry, "deleted")?;
            entry.store.purge()?;
            settle(&mut entry, stop)?;
            self.push_memory(bench.report, &entry, SETTLED)?;
        }
        Ok(entry)
    }

    fn push_memory(&self, report: &mut Report, entry: &Entry, when: &str) -> Result<()> {
        let rss = mapped(entry.store.pid())?;
        let held = entry.group.as_ref().map(Group::bytes).transpose()?;
        let values =
            [(MEMORY, held), (RSS, Some(rss.resident_bytes)), ("redis_huge", Some(rss.huge_bytes))];
        for (metric, value) in values {
            let Some(value) = value else { continue };
            let row = Row::new(entry.policy.name(), metric, "value", value as f64, "bytes");
            let variant = format!("{}, {when}", self.variant);
            report.row(row.size_bytes(self.bytes).variant(variant.as_str()));
        }
        Ok(())
    }

    fn finish(&self, bench: &mut Bench<'_>, mut entry: Entry) -> Result<()> {
        // A later policy's eager khugepaged may have changed the memory of an earlier policy's server.
        self.push_memory(bench.report, &entry, "served")?;
        let name = entry.policy.name();
        for ((metric, _), served) in WAYS.iter().zip(&entry.served) {
            let of = |value: fn(&Served) -> f64| {
                median(&served.iter().map(value).collect::<Vec<_>>()).unwrap_or(f64::NAN)
            };
            let cpu = format!("{metric}_cpu");
            for (metric, value, unit) in
                [(*metric, of(|turn| turn.rate), "1/s"), (&cpu, of(|turn| turn.cpu_ns), "ns")]
            {
                let row = Row::new(name, metric, "p50", value, unit).size_bytes(self.bytes);
                bench.report.row(row.variant(self.variant).n(served.len() as u64));
            }
        }
        if entry.policy == HugePagePolicy::Cowslip {
            let changed = entry.store.changed_bytes(bench.stop)? as f64;
            let row = Row::new(name, BYTES_CHANGED, "value", changed, "bytes");
            bench.report.row(row.size_bytes(self.bytes).variant(self.variant));
        }
        match entry.daemon.take() {
            Some(daemon) => daemon.end(bench.stop).map(drop),
            None => Ok(()),
        }
    }
}

/// Waits until memory has settled; the server answers now and then meanwhile.
fn settle(entry: &mut Entry, stop: &Interrupt) -> Result<()> {
    const STEPS: u32 = 20;
    for step in 0..STEPS {
        entry.store.serve_pipelined(Duration::from_millis(20), stop)?;
        sleep(SETTLING / STEPS, stop)?;
        if entry.policy == HugePagePolicy::Reclaim && step + 2 == STEPS {
            entry.group.as_ref().map_or(Ok(()), Group::reclaim)?;
        }
    }
    Ok(())
}
