//! Connections, with a thread each, which take turns at the table.

use std::io::{self, Read, Write};
use std::time::Duration;
use std::{process, thread};

use crate::commands::{Then, execute};
use crate::resp::{Received, Replies, parse};
use crate::store::Server;

const READ_BYTES: usize = 64 << 10;
/// The most bytes of replies before the lock is released.
const MOST_REPLY_BYTES: usize = 1 << 20;

impl Server {
    /// Gives each connection a thread.
    pub(crate) fn accept<S: Read + Write + Send + 'static>(
        &'static self,
        connections: impl Iterator<Item = io::Result<S>>,
    ) {
        for connection in connections {
            let started = connection.and_then(|stream| {
                // An error ends the connection.
                thread::Builder::new().spawn(move || drop(self.serve(stream)))
            });
            if let Err(error) = started {
                eprintln!("cannot serve a connection: {error}");
                thread::sleep(Duration::from_millis(100)); // Until one of the others has ended.
            }
        }
    }

    fn serve(&self, mut stream: impl Read + Write) -> io::Result<()> {
        let mut buffer = vec![0; READ_BYTES];
        let mut received = Vec::new();
        let mut replies = Replies::default();
        loop {
            let bytes = stream.read(&mut buffer)?;
            if bytes == 0 {
                return Ok(());
            }
            received.extend_from_slice(&buffer[..bytes]);
            let mut at = 0;
            loop {
                let (then, is_all) = self.execute_some(&received, &mut at, &mut replies);
                stream.write_all(&replies.0)?;
                replies.0.clear();
                self.first.call_once(|| {
                    println!("first request served {:?} after the start", self.started.elapsed());
                });
                match then {
                    Then::Nothing if is_all => break,
                    Then::Close => return Ok(()),
                    then => self.finish(then, &mut replies),
                }
            }
            received.drain(..at);
        }
    }

    /// Executes the received requests that are complete and need nothing but the table.
    fn execute_some(&self, received: &[u8], at: &mut usize, replies: &mut Replies) -> (Then, bool) {
        let mut table = self.table.lock().expect("a panic ends the process");
        while replies.0.len() < MOST_REPLY_BYTES {
            match parse(&received[*at..]) {
                Received::Incomplete => return (Then::Nothing, true),
                Received::Invalid(why) => {
                    replies.error(&format!("ERR Protocol error: {why}"));
                    return (Then::Close, true);
                }
                Received::Request(words, bytes) => {
                    *at += bytes;
                    match execute(&words, self, &mut table, replies) {
                        Then::Nothing => {}
                        then => return (then, false),
                    }
                }
            }
        }
        (Then::Nothing, false)
    }

    fn finish(&self, then: Then, replies: &mut Replies) {
        let save = || self.checkpoints.wait(self.checkpoints.ask());
        match then {
            Then::Save => match save() {
                None => replies.status("OK"),
                Some(fault) => replies.error(&format!("ERR {fault}")),
            },
            Then::WaitDurable(writes, patience) => {
                let is_durable = self.checkpoints.wait_durable(writes, patience);
                replies.array(2);
                replies.integer(u8::from(is_durable));
                replies.integer(0); // There are no replicas.
            }
            Then::Shutdown(with_checkpoint) => match with_checkpoint.then(save).flatten() {
                None => process::exit(0),
                Some(fault) => replies.error(&format!("ERR {fault}")),
            },
            Then::Nothing | Then::Close => {}
        }
    }
}
