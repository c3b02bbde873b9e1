//! A client of the Redis protocol.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};

use crate::support::PATIENCE;

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Reply {
    Status(String),
    Error(String),
    Integer(i64),
    Bytes(Option<Vec<u8>>),
    Array(Vec<Reply>),
}

pub(crate) fn ok() -> Reply {
    Reply::Status("OK".into())
}

pub(crate) struct Client {
    stream: BufReader<TcpStream>,
    queue: Vec<u8>,
}

impl Client {
    pub(crate) fn connect(server: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(server)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Self { stream: BufReader::new(stream), queue: Vec::new() })
    }

    pub(crate) fn queue(&mut self, words: &[impl AsRef<[u8]>]) {
        write!(self.queue, "*{}\r\n", words.len()).unwrap();
        for word in words.iter().map(AsRef::as_ref) {
            write!(self.queue, "${}\r\n", word.len()).unwrap();
            self.queue.extend_from_slice(word);
            self.queue.extend_from_slice(b"\r\n");
        }
    }

    pub(crate) fn send(&mut self) -> io::Result<()> {
        let queue = std::mem::take(&mut self.queue);
        self.send_raw(&queue)
    }

    pub(crate) fn send_raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.get_mut().write_all(bytes)
    }

    /// Sends one request and receives its reply.
    pub(crate) fn ask(&mut self, words: &[impl AsRef<[u8]>]) -> io::Result<Reply> {
        self.queue(words);
        self.send()?;
        self.receive()
    }

    pub(crate) fn receive(&mut self) -> io::Result<Reply> {
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        let line = line.strip_suffix("\r\n").ok_or(io::ErrorKind::UnexpectedEof)?;
        let number = |digits: &str| digits.parse::<i64>().expect("a number");
        Ok(match line.split_at(1) {
            ("+", text) => Reply::Status(text.into()),
            ("-", text) => Reply::Error(text.into()),
            (":", digits) => Reply::Integer(number(digits)),
            ("$", "-1") => Reply::Bytes(None),
            ("$", digits) => {
                let mut bytes = vec![0; number(digits) as usize + 2];
                self.stream.read_exact(&mut bytes)?;
                assert_eq!(bytes.split_off(bytes.len() - 2), b"\r\n");
                Reply::Bytes(Some(bytes))
            }
            ("*", digits) => {
                let elements = (0..number(digits)).map(|_| self.receive());
                Reply::Array(elements.collect::<io::Result<_>>()?)
            }
            _ => panic!("not the protocol: {line:?}"),
        })
    }

    /// A number of the `INFO` reply.
    pub(crate) fn info(&mut self, field: &str) -> io::Result<u64> {
        let Reply::Bytes(Some(text)) = self.ask(&["info"])? else { panic!("not an INFO reply") };
        let text = String::from_utf8(text).unwrap();
        let mut values =
            text.lines().filter_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        Ok(values.next().unwrap_or_else(|| panic!("no {field} in {text}")).parse().unwrap())
    }
}
