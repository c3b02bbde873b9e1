//! The write load: closed loops of `SET`, each on keys of its own, that log every request.
//!
//! One thread waits for the answers of many, as `redis-benchmark` does: a thread for each would take the
//! processors from the server, and what it could do would not be seen.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use cowslip_sys::process::wait_readable;

use super::Error;
use super::consistency::{History, Write};
use super::resp::{Connection, Reply, unexpected};
use super::value::{Random, compose, key_name};

/// Connections that one thread writes to.
pub(crate) const MOST_A_THREAD: usize = 64;
/// How long nothing at all may be answered.
const PATIENCE: Duration = Duration::from_secs(20);
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// One connection that writes, and what its keys hold.
#[derive(Debug)]
pub(crate) struct Writer {
    connection: Connection,
    /// What has not been answered yet.
    asked: Option<Write>,
    index: usize,
    writers: usize,
    value: Vec<u8>,
    random: Random,
    sequence: u64,
    /// The last write of each of its keys, before this round.
    last_written: Vec<u64>,
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
    fn fail(&mut self, failure: Error) {
        self.failed_requests += 1;
        self.first_failure.get_or_insert(failure);
    }

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
            asked: None,
            index,
            writers,
            value: vec![0; value_bytes],
            random: Random(index as u64),
            sequence: 0,
            last_written: vec![0; keys],
        }
    }

    pub(crate) fn history<'a>(&'a self, log: &'a Log) -> History<'a> {
        History { last_written: &self.last_written, writes: &log.writes }
    }

    /// Makes what a log says the state that the next round begins with.
    pub(crate) fn apply(&mut self, log: &Log) {
        for write in &log.writes {
            self.last_written[write.slot] = write.sequence;
        }
    }

    fn ask(&mut self, clock: Instant, log: &mut Log) {
        let slot = (self.random.next() % self.last_written.len() as u64) as usize;
        let key = slot * self.writers + self.index;
        self.sequence += 1;
        compose(&mut self.value, key, self.sequence);
        self.connection.queue(&[b"SET", key_name(key).as_bytes(), &self.value]);

        let sent_ns = nanoseconds(clock);
        let sent = self.connection.send();
        self.asked = Some(Write { slot, sequence: self.sequence, sent_ns, acked_ns: u64::MAX });
        if let Err(error) = sent {
            self.lose(log, error);
        }
    }

    fn take_answer(&mut self, clock: Instant, log: &mut Log) {
        let reply = match self.connection.receive() {
            Ok(reply) => reply,
            Err(error) => return self.lose(log, error),
        };
        let acked_ns = nanoseconds(clock);
        let Some(asked) = self.asked.take() else { return };
        match reply {
            Reply::Status(ok) if ok == "OK" => log.writes.push(Write { acked_ns, ..asked }),
            other => log.fail(unexpected("SET", &other)),
        }
    }

    /// The connection is of no more use.
    fn lose(&mut self, log: &mut Log, error: io::Error) {
        log.broken = true;
        // Nobody knows whether it was done.
        log.writes.extend(self.asked.take());
        log.fail(Error::io("SET")(error));
    }
}

/// Has every one of `writers` ask, take its answer, and ask again until `go` is false.
fn drive(writers: &mut [Writer], clock: Instant, go: &AtomicBool) -> Vec<Log> {
    let mut logs: Vec<Log> = writers.iter().map(|_| Log::default()).collect();
    writers.iter_mut().zip(&mut logs).for_each(|(writer, log)| writer.ask(clock, log));
    let mut answered = Instant::now();
    loop {
        let mut waiting: Vec<_> = writers
            .iter_mut()
            .zip(&mut logs)
            .filter(|(writer, _)| writer.asked.is_some())
            .collect();
        if waiting.is_empty() {
            return logs;
        }
        let fds: Vec<_> = waiting.iter().map(|(writer, _)| writer.connection.as_fd()).collect();
        let mut ready = vec![false; fds.len()];
        let waited = wait_readable(&fds, &mut ready, Some(LOOK_AGAIN));
        drop(fds);
        for ((writer, log), _) in waiting.iter_mut().zip(&ready).filter(|(_, ready)| **ready) {
            answered = Instant::now();
            writer.take_answer(clock, log);
            if go.load(Ordering::Relaxed) && !log.broken {
                writer.ask(clock, log);
            }
        }
        let failure = match waited {
            Err(errno) => Some(io::Error::from(errno).kind()),
            Ok(()) if answered.elapsed() > PATIENCE => Some(io::ErrorKind::TimedOut),
            Ok(()) => None,
        };
        if let Some(kind) = failure {
            waiting.iter_mut().for_each(|(writer, log)| writer.lose(log, kind.into()));
        }
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
        let start = |writers| scope.spawn(|| drive(writers, clock, ender.0));
        let threads: Vec<_> = writers.chunks_mut(MOST_A_THREAD).map(start).collect();
        let result = body();
        drop(ender);
        let logs = threads.into_iter().flat_map(|t| t.join().expect("a writer panicked")).collect();
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

/// Time on the one clock that all stamps of a server come from.
pub(crate) fn nanoseconds(clock: Instant) -> u64 {
    clock.elapsed().as_nanos() as u64
}

#[cfg(test)]
mod tests {
    use std::io::{BufReader, Write as _};
    use std::net::TcpListener;
    use std::sync::mpsc;

    use super::*;

    const ANSWERS: usize = 100;

    /// Says yes to `ANSWERS` requests of each connection and then says so; the one that is asked last hangs up
    /// after the first, which it refuses.
    fn serve(listener: &TcpListener, connections: usize, done: &mpsc::Sender<()>) {
        let streams: Vec<_> = listener.incoming().take(connections).map(Result::unwrap).collect();
        thread::scope(|scope| {
            for (i, mut stream) in streams.into_iter().enumerate() {
                scope.spawn(move || {
                    let mut requests = BufReader::new(stream.try_clone().unwrap());
                    let refuses = i + 1 == connections;
                    let mut answered = 0;
                    while let Ok(Reply::Array(words)) = Reply::read(&mut requests) {
                        assert_eq!(words[0], Reply::Bytes(b"SET".to_vec()));
                        answered += 1;
                        if refuses {
                            stream.write_all(b"-ERR no\r\n").unwrap();
                            return;
                        }
                        if answered == ANSWERS {
                            done.send(()).unwrap();
                        }
                        stream.write_all(b"+OK\r\n").unwrap();
                    }
                });
            }
        });
    }

    #[test]
    fn each_writer_logs_what_was_answered_and_what_nobody_knows() {
        const CONNECTIONS: usize = 3;
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (done, is_done) = mpsc::channel();
        let server = thread::spawn(move || serve(&listener, CONNECTIONS, &done));
        let connect = |i| {
            let connection = Connection::open(address, PATIENCE).unwrap();
            Writer::new(connection, (i, CONNECTIONS), 4, 64)
        };
        let mut writers: Vec<_> = (0..CONNECTIONS).map(connect).collect();
        let ((), logs) = under_load(&mut writers, Instant::now(), || {
            for _ in 0..CONNECTIONS - 1 {
                is_done.recv_timeout(PATIENCE).unwrap();
            }
        });
        drop(writers);
        server.join().unwrap();

        let (refused, served) = logs.split_last().unwrap();
        for log in served {
            assert!(log.failed_requests == 0 && !log.broken && log.first_failure.is_none());
            assert!(log.writes.len() >= ANSWERS, "{}", log.writes.len());
            let in_turn = |pair: &[Write]| {
                pair[0].sequence + 1 == pair[1].sequence && pair[0].acked_ns <= pair[1].sent_ns
            };
            assert!(log.writes.windows(2).all(in_turn));
            assert!(log.writes.iter().all(|write| write.sent_ns <= write.acked_ns));
        }
        assert!(refused.broken && refused.failed_requests == 2);
        assert!(matches!(refused.writes[..], [Write { acked_ns: u64::MAX, sequence: 2, .. }]));
    }
}
