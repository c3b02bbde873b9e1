//! Metrics over HTTP, for this machine.

use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

/// A client has this long for its request and for taking the answer, in all.
const PATIENCE: Duration = Duration::from_secs(2);

/// Clients at a time. Every user may connect: the oldest gives way to the next one, which asks at once if it asks at all.
const MOST_CLIENTS: usize = 64;

/// The longest request; what is beyond it is not read.
const MOST_REQUEST_BYTES: u64 = 8 << 10;

const TEXT: &str = "text/plain; version=0.0.4";
/// The name by which a client asks for OpenMetrics, and the type of the answer.
const OPEN_METRICS: &str = "application/openmetrics-text";
const OPEN_METRICS_1: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The text that the server hands out.
#[derive(Clone, Debug, Default)]
pub(crate) struct Published(Arc<Mutex<String>>);

impl Published {
    pub(crate) fn set(&self, text: String) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = text;
    }

    fn get(&self) -> String {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Answers every request at `address` with the text, on its own thread; returns the address, for port 0.
    pub(crate) fn serve(&self, address: SocketAddr) -> io::Result<SocketAddr> {
        let listener = TcpListener::bind(address)?;
        let address = listener.local_addr()?;
        let published = self.clone();
        let threads = || thread::Builder::new().name("metrics".into());
        threads().spawn(move || {
            let mut clients: VecDeque<Weak<TcpStream>> = VecDeque::new();
            for client in listener.incoming().flatten() {
                clients.retain(|client| client.strong_count() > 0);
                if clients.len() >= MOST_CLIENTS
                    && let Some(oldest) = clients.pop_front().and_then(|client| client.upgrade())
                {
                    let _ = oldest.shutdown(Shutdown::Both);
                }
                let client = Arc::new(client);
                clients.push_back(Arc::downgrade(&client));
                let published = published.clone();
                // A client that goes away is its own business.
                let _ = threads().spawn(move || published.answer(&client));
            }
        })?;
        Ok(address)
    }

    fn answer(&self, stream: &TcpStream) -> io::Result<()> {
        let until = Instant::now() + PATIENCE;
        let mut client = Client { stream, until };
        let request = request(&mut BufReader::new(&mut client).take(MOST_REQUEST_BYTES))?;
        let (status, kind, body) = match request.starts_with("GET /metrics ") {
            true if wants_open_metrics(&request) => {
                ("200 OK", OPEN_METRICS_1, open_metrics(&self.get()))
            }
            true => ("200 OK", TEXT, self.get()),
            false => ("404 Not Found", TEXT, "try /metrics\n".to_owned()),
        };
        let length = body.len();
        let answer = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\
             Connection: close\r\n\r\n{body}"
        );
        client.write_all(answer.as_bytes())
    }
}

/// The lines up to the empty one, or up to the end of what the client says.
fn request(client: &mut impl BufRead) -> io::Result<String> {
    let mut lines = Vec::new();
    loop {
        let start = lines.len();
        client.read_until(b'\n', &mut lines)?;
        if lines[start..].trim_ascii().is_empty() {
            return Ok(String::from_utf8_lossy(&lines).into_owned());
        }
    }
}

fn wants_open_metrics(request: &str) -> bool {
    let headers = request.lines().filter_map(|line| line.split_once(':'));
    let mut accepted = headers.filter(|(name, _)| name.eq_ignore_ascii_case("accept"));
    accepted.any(|(_, kinds)| kinds.contains(OPEN_METRICS))
}

/// The text in the format OpenMetrics: a counter's name is without `_total` where it is described, and the text has an end.
fn open_metrics(text: &str) -> String {
    let line = |line: &str| match line.split_once("_total ") {
        Some((name, rest)) if line.starts_with("# ") => format!("{name} {rest}\n"),
        _ => format!("{line}\n"),
    };
    text.lines().map(line).collect::<String>() + "# EOF\n"
}

/// A client until a point in time, however few bytes it says or takes at once.
struct Client<'a> {
    stream: &'a TcpStream,
    until: Instant,
}

impl Client<'_> {
    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(Some(left)) }
    }
}

impl Read for Client<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        self.stream.read(buffer)
    }
}

impl Write for Client<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

/// The most that is read of an answer.
const MOST_ANSWER_BYTES: u64 = 64 << 20;
/// The time that a server has to take the request, and to answer it.
const SERVER_PATIENCE: Duration = Duration::from_secs(2);

/// The text that a server hands out at `address`.
///
/// # Errors
/// The socket's error, or that no metrics are served there.
pub fn scrape(address: SocketAddr) -> io::Result<String> {
    get(address, "/metrics")
}

/// The text that a server on this machine hands out at `path`.
pub(crate) fn get(address: SocketAddr, path: &str) -> io::Result<String> {
    let until = Instant::now() + SERVER_PATIENCE;
    let stream = TcpStream::connect_timeout(&address, SERVER_PATIENCE)?;
    let mut server = Client { stream: &stream, until };
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    server.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    server.take(MOST_ANSWER_BYTES).read_to_end(&mut answer)?;
    let text = body(&answer).and_then(|body| String::from_utf8(body).ok());
    text.ok_or_else(|| io::Error::other("it serves no metrics"))
}

/// The body of a complete answer that says 200.
fn body(answer: &[u8]) -> Option<Vec<u8>> {
    let mut headers = [httparse::EMPTY_HEADER; 64];
    let mut head = httparse::Response::new(&mut headers);
    let httparse::Status::Complete(start) = head.parse(answer).ok()? else { return None };
    let has = |name: &str, value: &str| {
        let mut named = head.headers.iter().filter(|header| header.name.eq_ignore_ascii_case(name));
        named.any(|header| header.value.eq_ignore_ascii_case(value.as_bytes()))
    };
    let body = &answer[start..];
    match head.code {
        Some(200) if has("transfer-encoding", "chunked") => unchunked(body),
        Some(200) => Some(body.to_vec()),
        _ => None,
    }
}

fn unchunked(mut rest: &[u8]) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let httparse::Status::Complete((start, length)) = httparse::parse_chunk_size(rest).ok()?
        else {
            return None;
        };
        let chunk = rest[start..].get(..usize::try_from(length).ok()?)?;
        if chunk.is_empty() {
            return Some(body);
        }
        body.extend_from_slice(chunk);
        rest = rest[start + chunk.len()..].strip_prefix(b"\r\n")?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_gets_the_text() {
        let published = Published::default();
        let address = published.serve("127.0.0.1:0".parse().unwrap()).unwrap();
        published.set("it 1\n".into());
        let ask = |request: &[u8]| {
            let mut client = TcpStream::connect(address).unwrap();
            // In pieces, as they may arrive.
            client.set_nodelay(true).unwrap();
            let (first, rest) = request.split_at(4);
            client.write_all(first).unwrap();
            std::thread::yield_now();
            client.write_all(rest).unwrap();
            let mut answer = String::new();
            client.read_to_string(&mut answer).unwrap();
            answer
        };
        let answer = ask(b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n");
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        assert!(answer.ends_with("\r\n\r\nit 1\n"), "{answer}");
        assert_eq!(scrape(address).unwrap(), "it 1\n");
        assert!(ask(b"GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404"));

        published.set("# HELP it_total A count.\n# TYPE it_total counter\nit_total 1\n".into());
        assert!(ask(b"GET /metrics HTTP/1.1\r\n\r\n").contains("Content-Type: text/plain;"));
        let answer = ask(b"GET /metrics HTTP/1.1\r\nHost: here\r\naccept: \
            application/openmetrics-text;version=1.0.0;q=0.6,text/plain;q=0.2\r\n\r\n");
        assert!(answer.contains(&format!("Content-Type: {OPEN_METRICS_1}\r\n")), "{answer}");
        let body = "# HELP it A count.\n# TYPE it counter\nit_total 1\n# EOF\n";
        assert!(answer.ends_with(&format!("\r\n\r\n{body}")), "{answer}");
    }

    #[test]
    fn an_answer_in_chunks_is_joined_and_a_cut_one_is_none() {
        let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
        let read = |rest: &str| body(format!("{head}{rest}").as_bytes());
        assert_eq!(read("3\r\nit \r\n2\r\n1\n\r\n0\r\n\r\n"), Some(b"it 1\n".to_vec()));
        for cut in ["3\r\nit", "", "3\r\nit 2\r\n", "ffffffffffffffff\r\nit", "x\r\n"] {
            assert_eq!(read(cut), None, "{cut:?}");
        }
        assert_eq!(body(b"HTTP/1.1 404 Not Found\r\n\r\nit 1\n"), None);
    }

    #[test]
    fn clients_that_say_nothing_hold_nobody_up() {
        let published = Published::default();
        let address = published.serve("127.0.0.1:0".parse().unwrap()).unwrap();
        published.set("it 1\n".into());
        let silent: Vec<TcpStream> =
            (0..MOST_CLIENTS + 10).map(|_| TcpStream::connect(address).unwrap()).collect();
        // One after the other, they would have taken more than a minute.
        assert_eq!(scrape(address).unwrap(), "it 1\n");
        // The first gave way to the last.
        let mut first = &silent[0];
        first.set_read_timeout(Some(20 * PATIENCE)).unwrap();
        assert_eq!(first.read(&mut [0]).unwrap(), 0);
    }
}
