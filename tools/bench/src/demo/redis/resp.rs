//! A small client of the Redis protocol (RESP 2), for one blocking loopback connection.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use super::Error;

/// Longest string from a server: Redis's own limit.
const MAX_STRING_BYTES: usize = 512 << 20;

/// A server's answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reply {
    Status(String),
    Error(String),
    Integer(i64),
    Bytes(Vec<u8>),
    Nil,
    Array(Vec<Reply>),
}

impl Reply {
    /// Reads one reply, with all its elements.
    pub(crate) fn read(from: &mut impl BufRead) -> io::Result<Self> {
        let line = read_line(from)?;
        let (kind, rest) = line.split_at_checked(1).ok_or_else(|| invalid("an empty line"))?;
        match kind {
            "+" => Ok(Self::Status(rest.to_owned())),
            "-" => Ok(Self::Error(rest.to_owned())),
            ":" => rest.parse().map(Self::Integer).map_err(|_| invalid(&line)),
            "$" if rest == "-1" => Ok(Self::Nil),
            "$" => read_string(from, length(rest)?).map(Self::Bytes),
            "*" if rest == "-1" => Ok(Self::Nil),
            "*" => {
                let elements = (0..length(rest)?).map(|_| Self::read(from));
                elements.collect::<io::Result<_>>().map(Self::Array)
            }
            _ => Err(invalid(&line)),
        }
    }
}

fn read_line(from: &mut impl BufRead) -> io::Result<String> {
    let mut line = String::new();
    from.read_line(&mut line)?;
    match line.strip_suffix("\r\n") {
        Some(text) => Ok(text.to_owned()),
        None => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the server hung up")),
    }
}

fn read_string(from: &mut impl BufRead, bytes: usize) -> io::Result<Vec<u8>> {
    let mut string = vec![0; bytes + 2];
    from.read_exact(&mut string)?;
    if !string.ends_with(b"\r\n") {
        return Err(invalid("a string without its end"));
    }
    string.truncate(bytes);
    Ok(string)
}

fn length(text: &str) -> io::Result<usize> {
    text.parse().ok().filter(|&n| n <= MAX_STRING_BYTES).ok_or_else(|| invalid(text))
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("not the Redis protocol: {what}"))
}

/// Replaces `EAGAIN`, the error of a socket after its timeout, by a clear one.
fn explain(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock => {
            io::Error::new(io::ErrorKind::TimedOut, "the server did not answer in time")
        }
        _ => error,
    }
}

/// One connection: requests are queued, sent together, and answered in order.
#[derive(Debug)]
pub(crate) struct Connection {
    reader: BufReader<TcpStream>,
    queue: Vec<u8>,
}

impl Connection {
    /// Connects; a reply that takes longer than `patience` is an error, so that no caller hangs.
    pub(crate) fn open(server: SocketAddr, patience: Duration) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&server, patience)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(patience))?;
        stream.set_write_timeout(Some(patience))?;
        Ok(Self { reader: BufReader::with_capacity(64 << 10, stream), queue: Vec::new() })
    }

    /// Adds a request to those that [`Self::send`] will send.
    pub(crate) fn queue(&mut self, words: &[&[u8]]) {
        self.queue.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
        for word in words {
            self.queue.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
            self.queue.extend_from_slice(word);
            self.queue.extend_from_slice(b"\r\n");
        }
    }

    /// Sends the queued requests.
    pub(crate) fn send(&mut self) -> io::Result<()> {
        self.reader.get_mut().write_all(&self.queue).map_err(explain)?;
        self.queue.clear();
        Ok(())
    }

    /// For waiting until there is a reply; no reply may have been read in part.
    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.reader.get_ref().as_fd()
    }

    /// Waits for the next reply.
    pub(crate) fn receive(&mut self) -> io::Result<Reply> {
        Reply::read(&mut self.reader).map_err(explain)
    }

    /// One request, one reply.
    pub(crate) fn ask(&mut self, words: &[&[u8]]) -> io::Result<Reply> {
        self.queue(words);
        self.send()?;
        self.receive()
    }

    /// The fields of one section of `INFO`.
    pub(crate) fn info(&mut self, section: &str) -> Result<Info, Error> {
        match self.ask(&[b"INFO", section.as_bytes()]).map_err(Error::io("INFO"))? {
            Reply::Bytes(text) => Ok(Info(String::from_utf8_lossy(&text).into_owned())),
            other => Err(unexpected("INFO", &other)),
        }
    }
}

/// The `field:value` lines of an `INFO` reply.
#[derive(Debug)]
pub(crate) struct Info(String);

impl Info {
    pub(crate) fn text(&self, field: &str) -> Option<&str> {
        self.0.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))
    }

    /// A field that every Redis has, as a number.
    pub(crate) fn number(&self, field: &str) -> Result<u64, Error> {
        let number = self.text(field).and_then(|text| text.parse().ok());
        number.ok_or_else(|| Error::BadReply {
            request: "INFO",
            reply: format!("no number in `{field}`"),
        })
    }
}

/// The error for a reply that a request should not get.
pub(crate) fn unexpected(request: &'static str, reply: &Reply) -> Error {
    let reply = match reply {
        Reply::Status(text) | Reply::Error(text) => text.clone(),
        Reply::Integer(number) => number.to_string(),
        Reply::Bytes(bytes) => format!("a string of {} bytes", bytes.len()),
        Reply::Nil => "nothing".to_owned(),
        Reply::Array(replies) => format!("an array of {}", replies.len()),
    };
    Error::BadReply { request, reply }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(mut text: &[u8]) -> io::Result<Reply> {
        Reply::read(&mut text)
    }

    #[test]
    fn each_kind_of_reply_is_read() {
        assert_eq!(parse(b"+OK\r\n").unwrap(), Reply::Status("OK".into()));
        assert_eq!(parse(b"-ERR no\r\n").unwrap(), Reply::Error("ERR no".into()));
        assert_eq!(parse(b":-7\r\n").unwrap(), Reply::Integer(-7));
        assert_eq!(parse(b"$-1\r\n").unwrap(), Reply::Nil);
        assert_eq!(parse(b"$4\r\na\r\nb\r\n").unwrap(), Reply::Bytes(b"a\r\nb".to_vec()));
        let nested = Reply::Array(vec![Reply::Bytes(vec![]), Reply::Nil, Reply::Integer(1)]);
        assert_eq!(parse(b"*3\r\n$0\r\n\r\n$-1\r\n:1\r\n").unwrap(), nested);
    }

    #[test]
    fn damaged_replies_are_errors() {
        let damaged: [&[u8]; 8] = [
            b"",
            b"+OK",
            b"\r\n",
            b"?\r\n",
            b":x\r\n",
            b"$9999999999\r\n",
            b"$2\r\nabcd",
            b"$-2\r\n",
        ];
        for text in damaged {
            assert!(parse(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn info_finds_whole_field_names() {
        let info = Info("# Stats\r\nused_memory_peak:9\r\nused_memory:7\r\nstatus:ok\r\n".into());
        assert_eq!(info.number("used_memory").unwrap(), 7);
        assert_eq!(info.text("status"), Some("ok"));
        assert!(info.number("status").is_err());
        assert!(info.number("absent").is_err());
    }
}
