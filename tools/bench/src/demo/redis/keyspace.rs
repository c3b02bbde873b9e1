//! Filling a server with keys, and reading every one of them back.

use std::ops::Range;

use super::consistency::Keyspace;
use super::resp::{Connection, Reply, unexpected};
use super::value::{Found, HEADER_BYTES, Random, compose, identify, key_name};
use super::{Error, Options, Progress, check};
use crate::interrupt::Interrupt;

const KEYS_A_REQUEST: usize = 64;
const REQUESTS_A_TURN: usize = 8;

/// The number of keys, and the length of their values.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) keys: usize,
    pub(crate) value_bytes: usize,
}

impl Shape {
    /// The keys for these options, the same number for each writer.
    pub(crate) fn new(options: &Options) -> Result<Self, Error> {
        let Options { size_bytes, value_bytes, clients, .. } = *options;
        if value_bytes < HEADER_BYTES {
            let why = format!("values of {value_bytes} bytes: at least {HEADER_BYTES} are needed");
            return Err(Error::BadOption(why));
        }
        if clients == 0 || size_bytes < (clients * value_bytes) as u64 {
            let why = format!("{clients} clients cannot share {size_bytes} bytes of values");
            return Err(Error::BadOption(why));
        }
        let keys = size_bytes as usize / value_bytes;
        Ok(Self { keys: keys - keys % clients, value_bytes })
    }

    /// The keys of a server with this much memory, the same number for each client.
    pub(crate) fn of_server(footprint_bytes: u64, value_bytes: usize, clients: usize) -> Self {
        let one = Self { keys: 1, value_bytes }.footprint_bytes();
        let keys = (footprint_bytes / one) as usize;
        Self { keys: (keys - keys % clients).max(clients), value_bytes }
    }

    /// Length of all values together.
    pub(crate) fn size_bytes(self) -> u64 {
        (self.keys * self.value_bytes) as u64
    }

    /// Approximate memory of a server: jemalloc rounds up, and a key costs about 100 bytes.
    pub(crate) fn footprint_bytes(self) -> u64 {
        self.size_bytes() * 5 / 4 + self.keys as u64 * 100
    }

    /// Stores write number 0 of every key.
    pub(crate) fn fill(
        self,
        connection: &mut Connection,
        stop: &Interrupt,
        label: &str,
        progress: Progress<'_>,
    ) -> Result<(), Error> {
        for turn in self.turns() {
            check(stop)?;
            progress(label, turn.start as u64, self.keys as u64);
            self.store(connection, turn, 0)?;
        }
        Ok(())
    }

    /// Stores write number `sequence` of this many keys, drawn at random.
    pub(crate) fn store_some(
        self,
        connection: &mut Connection,
        keys: usize,
        sequence: u64,
        stop: &Interrupt,
    ) -> Result<(), Error> {
        let mut random = Random(sequence);
        let picked: Vec<_> =
            (0..keys).map(|_| (random.next() % self.keys as u64) as usize).collect();
        for turn in picked.chunks(KEYS_A_REQUEST) {
            check(stop)?;
            self.store(connection, turn.iter().copied(), sequence)?;
        }
        Ok(())
    }

    fn store(
        self,
        connection: &mut Connection,
        keys: impl ExactSizeIterator<Item = usize>,
        sequence: u64,
    ) -> Result<(), Error> {
        let mut value = vec![0; self.value_bytes];
        let requests = keys.len();
        for key in keys {
            compose(&mut value, key, sequence);
            connection.queue(&[b"SET", key_name(key).as_bytes(), &value]);
        }
        connection.send().map_err(Error::io("SET"))?;
        for _ in 0..requests {
            match connection.receive().map_err(Error::io("SET"))? {
                Reply::Status(ok) if ok == "OK" => {}
                other => return Err(unexpected("SET", &other)),
            }
        }
        Ok(())
    }

    /// Reads every key, and the server's number of keys.
    pub(crate) fn read(
        self,
        connection: &mut Connection,
        stop: &Interrupt,
        label: &str,
        progress: Progress<'_>,
    ) -> Result<Keyspace, Error> {
        let mut found = Vec::with_capacity(self.keys);
        let mut scratch = vec![0; self.value_bytes];
        for turn in self.turns() {
            check(stop)?;
            progress(label, turn.start as u64, self.keys as u64);
            let names: Vec<_> = turn.map(key_name).collect();
            for names in names.chunks(KEYS_A_REQUEST) {
                let words = [&b"MGET"[..]].into_iter().chain(names.iter().map(String::as_bytes));
                connection.queue(&words.collect::<Vec<_>>());
            }
            connection.send().map_err(Error::io("MGET"))?;
            for _ in names.chunks(KEYS_A_REQUEST) {
                match connection.receive().map_err(Error::io("MGET"))? {
                    Reply::Array(values) => {
                        for value in values {
                            found.push(found_in(&value, found.len(), &mut scratch));
                        }
                    }
                    other => return Err(unexpected("MGET", &other)),
                }
            }
        }
        match connection.ask(&[b"DBSIZE"]).map_err(Error::io("DBSIZE"))? {
            Reply::Integer(size) if found.len() == self.keys => {
                Ok(Keyspace { found, size: size as u64 })
            }
            other => Err(unexpected("DBSIZE", &other)),
        }
    }

    /// The keys in ranges that are sent at once.
    fn turns(self) -> impl Iterator<Item = Range<usize>> {
        let step = KEYS_A_REQUEST * REQUESTS_A_TURN;
        (0..self.keys).step_by(step).map(move |start| start..self.keys.min(start + step))
    }
}

fn found_in(value: &Reply, key: usize, scratch: &mut [u8]) -> Found {
    match value {
        Reply::Nil => Found::Missing,
        Reply::Bytes(bytes) => identify(bytes, key, scratch),
        _ => Found::Torn,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_of_a_size_has_as_many_keys_for_each_client() {
        let shape = Shape::of_server(64 << 20, 100, 50);
        assert!(shape.keys.is_multiple_of(50) && shape.footprint_bytes() <= 64 << 20);
        assert!(shape.footprint_bytes() > 63 << 20);
        assert_eq!(Shape::of_server(0, 100, 50).keys, 50);
    }
}
