//! The write load: closed loops of `SET`, each on keys of its own, that log every request.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use super::Error;
use super::cut::{History, Write};
use super::resp::{Connection, Reply, unexpected};
use super::value::{Random, compose, key_name};

/// One connection that writes, and what its keys hold.
#[derive(Debug)]
pub(crate) struct Writer {
    connection: Connection,
    index: usize,
    writers: usize,
    value: Vec<u8>,
    random: Random,
    sequence: u64,
    settled: Vec<u64>,
}

/// What one writer did during one round.
#[derive(Debug, Default)]
pub(crate) struct Log {
    pub(crate) writes: Vec<Write>,
    pub(crate) failed_requests: u64,
    pub(crate) first_failure: Option<Error>,
    /// The connection is gone: the writer can do no more.
    pub(crate) broken: bool,
}

impl Log {
    /// Adds what the same writer did afterwards.
    pub(crate) fn append(&mut self, later: Self) {
        self.writes.extend(later.writes);
        self.failed_requests += later.failed_requests;
        self.first_failure = self.first_failure.take().or(later.first_failure);
        self.broken |= later.broken;
    }
}

impl Writer {
    /// Writer `index` of `writers`, whose `keys` keys hold their first values.
    pub(crate) fn new(
        connection: Connection,
        (index, writers): (usize, usize),
        keys: usize,
        value_bytes: usize,
    ) -> Self {
        Self {
            connection,
            index,
            writers,
            value: vec![0; value_bytes],
            random: Random(index as u64),
            sequence: 0,
            settled: vec![0; keys],
        }
    }

    pub(crate) fn history<'a>(&'a self, log: &'a Log) -> History<'a> {
        History { settled: &self.settled, writes: &log.writes }
    }

    /// Makes what a log says the state that the next round begins with.
    pub(crate) fn settle(&mut self, log: &Log) {
        for write in &log.writes {
            self.settled[write.slot] = write.sequence;
        }
    }

    fn run(&mut self, clock: Instant, go: &AtomicBool) -> Log {
        let mut log = Log::default();
        while go.load(Ordering::Relaxed) && !log.broken {
            self.write(clock, &mut log);
        }
        log
    }

    fn write(&mut self, clock: Instant, log: &mut Log) {
        let slot = (self.random.next() % self.settled.len() as u64) as usize;
        let key = slot * self.writers + self.index;
        self.sequence += 1;
        compose(&mut self.value, key, self.sequence);
        self.connection.queue(&[b"SET", key_name(key).as_bytes(), &self.value]);

        let sent_ns = nanoseconds(clock);
        let reply = self.connection.send().and_then(|()| self.connection.receive());
        let acked_ns = nanoseconds(clock);
        let write = Write { slot, sequence: self.sequence, sent_ns, acked_ns };
        let failure = match reply {
            Ok(Reply::Status(ok)) if ok == "OK" => return log.writes.push(write),
            Ok(other) => unexpected("SET", &other),
            Err(error) => {
                log.broken = true;
                // Nobody knows whether it was done.
                log.writes.push(Write { acked_ns: u64::MAX, ..write });
                Error::io("SET")(error)
            }
        };
        log.failed_requests += 1;
        log.first_failure.get_or_insert(failure);
    }
}

/// Runs `body` while the writers write. Their logs come back in the order of the writers.
pub(crate) fn under_load<T>(
    writers: &mut [Writer],
    clock: Instant,
    body: impl FnOnce() -> T,
) -> (T, Vec<Log>) {
    let go = AtomicBool::new(true);
    thread::scope(|scope| {
        let ender = Ender(&go);
        let start = |writer| scope.spawn(|| Writer::run(writer, clock, ender.0));
        let threads: Vec<_> = writers.iter_mut().map(start).collect();
        let result = body();
        drop(ender);
        let logs = threads.into_iter().map(|t| t.join().expect("a writer panicked")).collect();
        (result, logs)
    })
}

/// Ends the load, also when the body panics.
struct Ender<'a>(&'a AtomicBool);

impl Drop for Ender<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

/// Time on the one clock that all stamps of a rival come from.
pub(crate) fn nanoseconds(clock: Instant) -> u64 {
    clock.elapsed().as_nanos() as u64
}
