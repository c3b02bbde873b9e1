//! Cloudstone in small (Sobel et al. 2008), as Ingens measured it: a social calendar on nginx, PHP and MariaDB, started
//! while free memory is fragmented.

mod client;
mod stack;

use std::thread;
use std::time::Duration;

use super::daemon::Daemon;
use super::fragment::Fragmented;
use super::policy::HugePagePolicy;
use super::settings::{Settings, System};
use super::target::sleep;
use super::{Bench, Options, Result};
use crate::error::Error;
use crate::report::{Latencies, Row};
use stack::Stack;

const REQUEST: &str = "web_request";
pub(super) const REQUESTS: &str = "web_requests";
const MEMORY: &str = "web_memory";
const HUGE: &str = "web_huge";

const CLIENTS: usize = 4;
/// Memory of an event with its comment, in the database's cache.
const EVENT_BYTES: u64 = 2600;
/// Huge pages that are free, over those that the database could use.
const FREE_SHARE: u64 = 4;
/// Time for promoters to see the database.
const SETTLING: Duration = Duration::from_secs(7);
const ASKED: Duration = Duration::from_secs(8);
const WARM: Duration = Duration::from_secs(2);
const MOST_ROUNDS: u32 = 5;

const POLICIES: [HugePagePolicy; 10] = [
    HugePagePolicy::Never,
    HugePagePolicy::Madvise,
    HugePagePolicy::Always,
    HugePagePolicy::Direct,
    HugePagePolicy::Defer,
    HugePagePolicy::Eager,
    HugePagePolicy::TenthAbsent,
    HugePagePolicy::Reclaim,
    HugePagePolicy::Mthp,
    HugePagePolicy::Cowslip,
];

/// The results of a policy so far.
#[derive(Default)]
struct Asked {
    latencies: Latencies,
    time: Duration,
    memory_bytes: u64,
    huge_bytes: u64,
}

pub(super) fn measure(bench: &mut Bench<'_>, options: &Options, system: &System) -> Result<()> {
    let bytes = options.working_bytes() as u64;
    let mut all: Vec<_> = POLICIES.map(|policy| (policy, Asked::default())).into();
    for round in bench.clock.rounds(1.0, 1, options.runs.min(MOST_ROUNDS)) {
        // The order alternates, which spreads a drift of the machine's speed over all.
        all.reverse();
        for (policy, asked) in &mut all {
            bench.progress.phase(&format!("web, round {}: {}", round + 1, policy.name()));
            match one_round(bench, *policy, bytes, system, asked) {
                Err(Error::Failed(why)) if round == 0 => {
                    let row = Row::skipped(policy.name(), REQUEST, why);
                    bench.report.row(row.size_bytes(bytes));
                }
                done => done?,
            }
        }
    }
    all.sort_by_key(|(policy, _)| POLICIES.iter().position(|other| other == policy));
    for (policy, asked) in all.iter().filter(|(_, asked)| asked.latencies.n() > 0) {
        let (name, n) = (policy.name(), asked.latencies.n());
        asked.latencies.push(bench.report, name, REQUEST, Some(bytes), None);
        let rate = n as f64 / asked.time.as_secs_f64();
        let values = [
            (REQUESTS, rate, "1/s"),
            (MEMORY, asked.memory_bytes as f64, "bytes"),
            (HUGE, asked.huge_bytes as f64, "bytes"),
        ];
        for (metric, value, unit) in values {
            bench.report.row(Row::new(name, metric, "value", value, unit).size_bytes(bytes).n(n));
        }
    }
    bench.report.notes.push(format!(
        "web: {CLIENTS} clients that each wait for their page, on the machine of the servers; free memory was \
         pinned in pieces before these started, but for a quarter of the huge pages that the database could use; memory and huge pages at the end. \
         MariaDB 10.11 disables huge pages for itself once its cache is allocated (prctl): promote then leaves \
         it alone, and a cache is huge only where the kernel made it so at once"
    ));
    system.set(&Settings::NEVER)
}

fn one_round(
    bench: &mut Bench<'_>,
    policy: HugePagePolicy,
    bytes: u64,
    system: &System,
    asked: &mut Asked,
) -> Result<()> {
    let (stop, events) = (bench.stop, bytes / EVENT_BYTES);
    system.set(&Settings::NEVER)?;
    let free = bytes / FREE_SHARE / cowslip::units::CHUNK_BYTES as u64;
    let _fragmented = Fragmented::pinned(bench, free)?;
    system.set(&policy.settings()?)?;
    let stack = Stack::start(events, bytes, policy.environment(), stop)?;
    let daemon = match policy {
        HugePagePolicy::Cowslip => Some(Daemon::start(&stack.pids()?, &[], "")?),
        _ => None,
    };
    let ask = |time| {
        thread::scope(|scope| {
            let client =
                |number| scope.spawn(move || client::ask(stack.port, events, number, time, stop));
            let clients: Vec<_> = (1..=CLIENTS as u64).map(client).collect();
            let join = |client: thread::ScopedJoinHandle<'_, _>| {
                client.join().unwrap_or_else(|_| Err(Error::Failed("a client panicked".to_owned())))
            };
            clients.into_iter().map(join).collect::<Result<Vec<Latencies>>>()
        })
    };
    ask(WARM)?;
    sleep(SETTLING, stop)?;
    if policy == HugePagePolicy::Reclaim {
        stack.group.reclaim()?;
    }
    ask(ASKED)?.iter().for_each(|latencies| asked.latencies.merge(latencies));
    asked.time += ASKED;
    (asked.memory_bytes, asked.huge_bytes) = (stack.group.bytes()?, stack.huge_bytes()?);
    if let Some(daemon) = daemon {
        daemon.end(stop)?;
    }
    system.set(&Settings::NEVER)
}
