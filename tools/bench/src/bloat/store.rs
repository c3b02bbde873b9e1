//! A real `redis-server` that is filled, partly emptied, and asked.

use std::path::Path;
use std::time::{Duration, Instant};

use super::target::cpu_ns;
use crate::demo::redis::resp::{Connection, Reply};
use crate::demo::redis::server::{Directory, Server};
use crate::demo::redis::setup::ServerSetup;
use crate::demo::redis::value::{Found, Random, compose, identify, key_name};
use crate::error::{Error, Result, during};
use crate::interrupt::Interrupt;

/// Requests that are sent at once.
const BATCH: usize = 64;
/// Batches that are sent before the first answer is awaited.
const AHEAD: usize = 4;
const BATCHES_A_LOOK: usize = 16;

/// A server and its keys.
#[derive(Debug)]
pub(super) struct Store {
    connection: Connection,
    server: Server,
    pid: i32,
    keys: Vec<usize>,
    value_bytes: usize,
    random: Random,
    changed_values: u64,
}

/// Results of serving for a while.
#[derive(Clone, Copy, Debug)]
pub(super) struct Served {
    /// Answers a second.
    pub(super) rate: f64,
    /// Processor time of the server, for one answer.
    pub(super) cpu_ns: f64,
}

impl Store {
    /// Starts a server without huge pages of its own making, or (`asks`) with an allocator that requests them.
    pub(super) fn start(value_bytes: usize, asks: bool, stop: &Interrupt) -> Result<Self> {
        let setup = ServerSetup {
            title: "Redis",
            // By default Redis declines huge pages where every program gets them.
            arguments: &["--disable-thp", "no"],
            environment: if asks { ServerSetup::stock_thp().environment } else { &[] },
            ..ServerSetup::stock_4k()
        };
        Self::new(&setup, value_bytes, stop)
    }

    /// Starts a server as `setup` says.
    pub(super) fn new(setup: &ServerSetup, value_bytes: usize, stop: &Interrupt) -> Result<Self> {
        let failed = || during("Redis (apt-get install redis-server)");
        let directory = Directory::new(&std::env::temp_dir()).map_err(failed())?;
        let server =
            Server::start(setup, Path::new("redis-server"), directory, stop).map_err(failed())?;
        let mut connection = server.connect().map_err(failed())?;
        let info = connection.info("server").map_err(failed())?;
        let pid = info.number("process_id").map_err(failed())? as i32;
        let (keys, random) = (Vec::new(), Random(1));
        Ok(Self { connection, server, pid, keys, value_bytes, random, changed_values: 0 })
    }

    pub(super) fn pid(&self) -> i32 {
        self.pid
    }

    /// Opens this many connections, for [`Self::serve_each`].
    pub(super) fn clients(&self, number: usize) -> Result<Vec<Connection>> {
        (0..number).map(|_| self.connect()).collect()
    }

    /// Opens another connection.
    pub(super) fn connect(&self) -> Result<Connection> {
        self.server.connect().map_err(during("connect to Redis"))
    }

    pub(super) fn fill(&mut self, keys: usize, stop: &Interrupt) -> Result<()> {
        self.keys = (0..keys).collect();
        let mut value = vec![0; self.value_bytes];
        let all = self.keys.clone();
        self.each_batch(&all, stop, |connection, key| {
            compose(&mut value, key, 0);
            connection.queue(&[b"SET", key_name(key).as_bytes(), &value]);
        })
    }

    /// Deletes this percentage of the keys, at random.
    pub(super) fn delete(&mut self, percent: u64, stop: &Interrupt) -> Result<()> {
        let goes = |key: &usize| Random(*key as u64).next() % 100 < percent;
        let (gone, kept) = self.keys.iter().partition(|key| goes(key));
        self.keys = kept;
        let gone: Vec<usize> = gone;
        self.each_batch(&gone, stop, |connection, key| {
            connection.queue(&[b"DEL", key_name(key).as_bytes()]);
        })
    }

    /// Has its allocator give deleted memory back at once, which it would do within ten seconds by itself.
    pub(super) fn purge(&mut self) -> Result<()> {
        match self.connection.ask(&[b"MEMORY", b"PURGE"]).map_err(during("ask Redis"))? {
            Reply::Status(_) => Ok(()),
            other => Err(Error::Failed(format!("Redis answered MEMORY PURGE with {other:?}"))),
        }
    }

    fn each_batch(
        &mut self,
        keys: &[usize],
        stop: &Interrupt,
        mut queue: impl FnMut(&mut Connection, usize),
    ) -> Result<()> {
        for batch in keys.chunks(BATCH) {
            stop.check()?;
            batch.iter().for_each(|&key| queue(&mut self.connection, key));
            self.connection.send().map_err(during("send to Redis"))?;
            for _ in batch {
                match self.connection.receive().map_err(during("ask Redis"))? {
                    Reply::Status(_) | Reply::Integer(1) => {}
                    other => return Err(Error::Failed(format!("Redis answered {other:?}"))),
                }
            }
        }
        Ok(())
    }

    /// Asks for keys at random over one connection, many at once, for this long; every value is compared.
    pub(super) fn serve_pipelined(&mut self, time: Duration, stop: &Interrupt) -> Result<Served> {
        let mut scratch = vec![0; self.value_bytes];
        let mut asked = std::collections::VecDeque::new();
        let (began, cpu_before) = (Instant::now(), cpu_ns(self.pid)?);
        let mut answers = 0;
        while began.elapsed() < time {
            stop.check()?;
            for _ in 0..BATCHES_A_LOOK {
                while asked.len() < AHEAD * BATCH {
                    for _ in 0..BATCH {
                        let at = self.random.next() % self.keys.len() as u64;
                        let key = self.keys[at as usize];
                        self.connection.queue(&[b"GET", key_name(key).as_bytes()]);
                        asked.push_back(key);
                    }
                    self.connection.send().map_err(during("send to Redis"))?;
                }
                for key in asked.drain(..BATCH) {
                    answers += 1;
                    self.check(None, key, &mut scratch)?;
                }
            }
        }
        let seconds = began.elapsed().as_secs_f64();
        let cpu_ns = (cpu_ns(self.pid)? - cpu_before) as f64;
        for key in asked.drain(..) {
            self.check(None, key, &mut scratch)?;
        }
        let answers = f64::from(answers);
        Ok(Served { rate: answers / seconds, cpu_ns: cpu_ns / answers })
    }

    /// Has each client ask for a key at random, and for the next after each answer, for this long; every value is
    /// compared.
    pub(super) fn serve_each(
        &mut self,
        clients: &mut [Connection],
        time: Duration,
        stop: &Interrupt,
    ) -> Result<Served> {
        let mut scratch = vec![0; self.value_bytes];
        let (began, cpu_before) = (Instant::now(), cpu_ns(self.pid)?);
        let mut asked = Vec::new();
        for client in &mut *clients {
            asked.push(self.ask(client)?);
        }
        let mut answers = 0;
        while began.elapsed() < time {
            stop.check()?;
            for (client, key) in clients.iter_mut().zip(&mut asked) {
                self.check(Some(client), *key, &mut scratch)?;
                *key = self.ask(client)?;
                answers += 1;
            }
        }
        let seconds = began.elapsed().as_secs_f64();
        let cpu_ns = (cpu_ns(self.pid)? - cpu_before) as f64;
        for (client, key) in clients.iter_mut().zip(asked) {
            self.check(Some(client), key, &mut scratch)?;
        }
        let answers = f64::from(answers);
        Ok(Served { rate: answers / seconds, cpu_ns: cpu_ns / answers })
    }

    /// Sends a GET for a key at random, and returns the key.
    pub(super) fn ask(&mut self, connection: &mut Connection) -> Result<usize> {
        let key = self.keys[(self.random.next() % self.keys.len() as u64) as usize];
        connection.queue(&[b"GET", key_name(key).as_bytes()]);
        connection.send().map_err(during("send to Redis"))?;
        Ok(key)
    }

    /// Receives the answer to a GET, and compares every byte.
    pub(super) fn check(
        &mut self,
        connection: Option<&mut Connection>,
        key: usize,
        scratch: &mut [u8],
    ) -> Result<()> {
        let connection = connection.unwrap_or(&mut self.connection);
        let reply = connection.receive().map_err(during("ask Redis"))?;
        let is_as_stored = matches!(&reply, Reply::Bytes(value)
            if identify(value, key, scratch) == Found::Write(0));
        self.changed_values += u64::from(!is_as_stored);
        Ok(())
    }

    /// Bytes of values that ever differed from the stored ones, in whole values. Asks for every key.
    pub(super) fn changed_bytes(&mut self, stop: &Interrupt) -> Result<u64> {
        let mut scratch = vec![0; self.value_bytes];
        let keys = std::mem::take(&mut self.keys);
        for batch in keys.chunks(BATCH) {
            stop.check()?;
            for &key in batch {
                self.connection.queue(&[b"GET", key_name(key).as_bytes()]);
            }
            self.connection.send().map_err(during("send to Redis"))?;
            for &key in batch {
                self.check(None, key, &mut scratch)?;
            }
        }
        self.keys = keys;
        Ok(self.changed_values * self.value_bytes as u64)
    }
}
