//! The load: connections with one request under way each, which log every one.
//!
//! One thread waits for the answers of many connections, like `redis-benchmark`: a thread for each would take the
//! processors from the server, and hide the server's speed.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use cowslip_sys::process::wait_readable;

use super::Error;
use super::consistency::{History, Write};
use super::resp::{Connection, Reply, unexpected};
use super::value::{Random, compose, key_name};
use super::zipf::Zipf;

/// Connections that one thread serves.
pub(crate) const MOST_A_THREAD: usize = 64;
/// The longest time without any answer.
const PATIENCE: Duration = Duration::from_secs(20);
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// The requests and their times.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Traffic {
    /// Percentage of `GET`s; the other requests are `SET`s.
    pub(crate) reads_percent: u64,
    /// Popularity of the keys. Without it each client has keys of its own, all equally popular.
    pub(crate) zipf: Option<Zipf>,
    pub(crate) pace: Pace,
}

/// The time of the next request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pace {
    /// Right after the answer to the same client's last one.
    Closed,
    /// This many times a second for all clients together. A request that is due while all of them wait is sent later,
    /// and its latency counts from when it was due.
    Steady(u32),
}

impl Traffic {
    /// Each client writes to keys of its own, one request after the other.
    pub(crate) const WRITES: Self = Self { reads_percent: 0, zipf: None, pace: Pace::Closed };
}

/// One connection, and the state of its keys.
#[derive(Debug)]
pub(crate) struct Client {
    connection: Connection,
    /// The request without an answer so far.
    asked: Option<Asked>,
    index: usize,
    clients: usize,
    value: Vec<u8>,
    random: Random,
    sequence: u64,
    /// The last write of each of its keys, before this round.
    last_written: Vec<u64>,
}

/// A request under way.
#[derive(Debug, Clone, Copy)]
enum Asked {
    Set(Write),
    /// The time when it was sent.
    Get(u64),
}

/// Requests of one client during one round.
#[derive(Debug, Default)]
pub(crate) struct Log {
    pub(crate) writes: Vec<Write>,
    /// The times when each answered `GET` was sent, and answered.
    pub(crate) reads: Vec<(u64, u64)>,
    pub(crate) failed_requests: u64,
    pub(crate) first_failure: Option<Error>,
    /// The connection is gone, and the client has ended.
    pub(crate) broken: bool,
}

impl Log {
    fn fail(&mut self, failure: Error) {
        self.failed_requests += 1;
        self.first_failure.get_or_insert(failure);
    }

    /// Appends the same client's later log.
    pub(crate) fn append(&mut self, later: Self) {
        self.writes.extend(later.writes);
        self.reads.extend(later.reads);
        self.failed_requests += later.failed_requests;
        self.first_failure = self.first_failure.take().or(later.first_failure);
        self.broken |= later.broken;
    }
}

impl Client {
    /// Client `index` of `clients`; its `keys` keys hold their first values.
    pub(crate) fn new(
        connection: Connection,
        (index, clients): (usize, usize),
        keys: usize,
        value_bytes: usize,
    ) -> Self {
        Self {
            connection,
            asked: None,
            index,
            clients,
            value: vec![0; value_bytes],
            random: Random(index as u64),
            sequence: 0,
            last_written: vec![0; keys],
        }
    }

    /// The log of a client that [writes](Traffic::WRITES) to keys of its own.
    pub(crate) fn history<'a>(&'a self, log: &'a Log) -> History<'a> {
        History { last_written: &self.last_written, writes: &log.writes }
    }

    /// Applies a log to the state that the next round begins with.
    pub(crate) fn apply(&mut self, log: &Log) {
        for write in &log.writes {
            self.last_written[write.slot] = write.sequence;
        }
    }

    /// Sends a request that was due at `due_ns`, or is due now.
    fn ask(&mut self, traffic: &Traffic, due_ns: Option<u64>, clock: Instant, log: &mut Log) {
        let key = match &traffic.zipf {
            Some(zipf) => zipf.item(&mut self.random),
            None => {
                let slot = self.random.next() % self.last_written.len() as u64;
                slot as usize * self.clients + self.index
            }
        };
        let name = key_name(key);
        let reads = traffic.reads_percent > 0 && self.random.next() % 100 < traffic.reads_percent;
        if reads {
            self.connection.queue(&[b"GET", name.as_bytes()]);
        } else {
            self.sequence += 1;
            compose(&mut self.value, key, self.sequence);
            self.connection.queue(&[b"SET", name.as_bytes(), &self.value]);
        }
        let sent_ns = due_ns.unwrap_or_else(|| nanoseconds(clock));
        let sent = self.connection.send();
        let (slot, sequence) = (key / self.clients, self.sequence);
        let write = Write { slot, sequence, sent_ns, acked_ns: u64::MAX };
        self.asked = Some(if reads { Asked::Get(sent_ns) } else { Asked::Set(write) });
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
        match (self.asked.take(), reply) {
            (Some(Asked::Set(write)), Reply::Status(ok)) if ok == "OK" => {
                log.writes.push(Write { acked_ns, ..write });
            }
            (Some(Asked::Get(sent_ns)), Reply::Bytes(value)) if value.len() == self.value.len() => {
                log.reads.push((sent_ns, acked_ns));
            }
            (Some(Asked::Set(_)), other) => log.fail(unexpected("SET", &other)),
            (Some(Asked::Get(_)), other) => log.fail(unexpected("GET", &other)),
            (None, _) => {}
        }
    }

    /// Ends the use of the connection.
    fn lose(&mut self, log: &mut Log, error: io::Error) {
        log.broken = true;
        let request = match self.asked.take() {
            // It is unknown whether the server did it.
            Some(Asked::Set(write)) => {
                log.writes.push(write);
                "SET"
            }
            _ => "GET",
        };
        log.fail(Error::io(request)(error));
    }
}

/// The times when requests are due.
struct Schedule {
    /// `None` if each client goes on by itself.
    interval_ns: Option<f64>,
    next_ns: f64,
}

impl Schedule {
    /// A schedule for clients that are this share of all.
    fn new(pace: Pace, share: f64, now_ns: u64) -> Self {
        let interval_ns = match pace {
            Pace::Closed => None,
            Pace::Steady(a_second) => Some(1e9 / (f64::from(a_second) * share)),
        };
        Self { interval_ns, next_ns: now_ns as f64 }
    }

    /// Takes a request that is due. Returns the time since when, or `None` for now.
    fn take(&mut self, now_ns: u64) -> Option<Option<u64>> {
        let Some(interval_ns) = self.interval_ns else { return Some(None) };
        let due_ns = self.next_ns as u64;
        (due_ns <= now_ns).then(|| {
            self.next_ns += interval_ns;
            Some(due_ns)
        })
    }

    /// Time until an idle client has work.
    fn idle(&self, now_ns: u64) -> Duration {
        let wait_ns = (self.next_ns - now_ns as f64).max(0.0);
        self.interval_ns.map_or(LOOK_AGAIN, |_| Duration::from_nanos(wait_ns as u64))
    }
}

/// Has each client ask, take its answer, and ask again until `go` is false.
fn drive(clients: &mut [Client], traffic: &Traffic, clock: Instant, go: &AtomicBool) -> Vec<Log> {
    let all = clients.first().map_or(1, |client| client.clients);
    let share = clients.len() as f64 / all as f64;
    let mut schedule = Schedule::new(traffic.pace, share, nanoseconds(clock));
    let mut logs: Vec<Log> = clients.iter().map(|_| Log::default()).collect();
    // The next client in turn: a client that answers quickly must not get all requests.
    let mut turn = 0;
    let mut answered = Instant::now();
    loop {
        let goes_on = go.load(Ordering::Relaxed);
        let now_ns = nanoseconds(clock);
        let mut idle = 0;
        for at in (turn..clients.len()).chain(0..turn) {
            let (client, log) = (&mut clients[at], &mut logs[at]);
            if !goes_on || client.asked.is_some() || log.broken {
                continue;
            }
            match schedule.take(now_ns) {
                Some(due_ns) => {
                    client.ask(traffic, due_ns, clock, log);
                    turn = at + 1;
                }
                None => idle += 1,
            }
        }
        let mut waiting: Vec<_> = clients
            .iter_mut()
            .zip(&mut logs)
            .filter(|(client, _)| client.asked.is_some())
            .collect();
        if waiting.is_empty() {
            if idle == 0 {
                return logs;
            }
            answered = Instant::now();
        }
        let fds: Vec<_> = waiting.iter().map(|(client, _)| client.connection.as_fd()).collect();
        let mut ready = vec![false; fds.len()];
        let patience = if idle == 0 { LOOK_AGAIN } else { schedule.idle(nanoseconds(clock)) };
        let waited = wait_readable(&fds, &mut ready, Some(patience.min(LOOK_AGAIN)));
        drop(fds);
        for ((client, log), _) in waiting.iter_mut().zip(&ready).filter(|(_, ready)| **ready) {
            answered = Instant::now();
            client.take_answer(clock, log);
        }
        let failure = match waited {
            Err(errno) => Some(io::Error::from(errno).kind()),
            Ok(()) if answered.elapsed() > PATIENCE => Some(io::ErrorKind::TimedOut),
            Ok(()) => None,
        };
        if let Some(kind) = failure {
            waiting.iter_mut().for_each(|(client, log)| client.lose(log, kind.into()));
        }
    }
}

/// Runs `body` while the clients ask. Their logs come back in the order of the clients.
pub(crate) fn under_load<T>(
    clients: &mut [Client],
    traffic: &Traffic,
    clock: Instant,
    body: impl FnOnce() -> T,
) -> (T, Vec<Log>) {
    let go = AtomicBool::new(true);
    thread::scope(|scope| {
        let ender = Ender(&go);
        let start = |clients| scope.spawn(|| drive(clients, traffic, clock, ender.0));
        let threads: Vec<_> = clients.chunks_mut(MOST_A_THREAD).map(start).collect();
        let result = body();
        drop(ender);
        let logs = threads.into_iter().flat_map(|t| t.join().expect("a client panicked")).collect();
        (result, logs)
    })
}

/// Ends the load, even if the body panics.
struct Ender<'a>(&'a AtomicBool);

impl Drop for Ender<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

/// Time on the one clock of all stamps of a server.
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

    /// Accepts `ANSWERS` requests of each connection and then sends `done`. The last connection hangs up after its
    /// first request, which it refuses.
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
    fn each_client_logs_what_was_answered_and_what_nobody_knows() {
        const CONNECTIONS: usize = 3;
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (done, is_done) = mpsc::channel();
        let server = thread::spawn(move || serve(&listener, CONNECTIONS, &done));
        let connect = |i| {
            let connection = Connection::open(address, PATIENCE).unwrap();
            Client::new(connection, (i, CONNECTIONS), 4, 64)
        };
        let mut clients: Vec<_> = (0..CONNECTIONS).map(connect).collect();
        let ((), logs) = under_load(&mut clients, &Traffic::WRITES, Instant::now(), || {
            for _ in 0..CONNECTIONS - 1 {
                is_done.recv_timeout(PATIENCE).unwrap();
            }
        });
        drop(clients);
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

    /// Answers requests until all clients have hung up, and sends `done` after `ANSWERS` of each.
    fn serve_all(listener: &TcpListener, connections: usize, done: &mpsc::Sender<()>) {
        let streams: Vec<_> = listener.incoming().take(connections).map(Result::unwrap).collect();
        thread::scope(|scope| {
            for mut stream in streams {
                scope.spawn(move || {
                    let mut requests = BufReader::new(stream.try_clone().unwrap());
                    let value = format!("$64\r\n{}\r\n", "v".repeat(64));
                    for answered in 1.. {
                        let Ok(Reply::Array(words)) = Reply::read(&mut requests) else { return };
                        let is_get = words[0] == Reply::Bytes(b"GET".to_vec());
                        let answer = if is_get { &value } else { "+OK\r\n" };
                        stream.write_all(answer.as_bytes()).unwrap();
                        if answered == ANSWERS {
                            done.send(()).unwrap();
                        }
                    }
                });
            }
        });
    }

    #[test]
    fn a_steady_pace_is_kept_by_all_clients_in_turn() {
        const CONNECTIONS: usize = 3;
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (done, is_done) = mpsc::channel();
        let server = thread::spawn(move || serve_all(&listener, CONNECTIONS, &done));
        let connect = |i| {
            let connection = Connection::open(address, PATIENCE).unwrap();
            Client::new(connection, (i, CONNECTIONS), 4, 64)
        };
        let mut clients: Vec<_> = (0..CONNECTIONS).map(connect).collect();
        let traffic =
            Traffic { reads_percent: 50, zipf: Some(Zipf::new(12)), pace: Pace::Steady(5_000) };
        let ((), logs) = under_load(&mut clients, &traffic, Instant::now(), || {
            (0..CONNECTIONS).for_each(|_| is_done.recv_timeout(PATIENCE).unwrap());
        });
        drop(clients);
        server.join().unwrap();

        assert!(logs.iter().all(|log| log.failed_requests == 0 && !log.broken));
        assert!(logs.iter().all(|log| !log.reads.is_empty() && !log.writes.is_empty()));
        let reads = logs.iter().flat_map(|log| log.reads.iter().map(|read| read.0));
        let writes = logs.iter().flat_map(|log| log.writes.iter().map(|write| write.sent_ns));
        let mut due: Vec<_> = reads.chain(writes).collect();
        due.sort_unstable();
        assert!(due.windows(2).all(|pair| pair[1] - pair[0] == 200_000), "{due:?}");
    }
}
