//! Metrics over HTTP, for this machine.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The time that a client has for its request, and for taking the answer.
const PATIENCE: Duration = Duration::from_secs(1);

/// The longest first line; the rest of a request is not read.
const MOST_REQUEST_BYTES: u64 = 1024;

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
        std::thread::Builder::new().name("metrics".into()).spawn(move || {
            for client in listener.incoming().flatten() {
                // A client that goes away does not matter.
                let _ = published.answer(client);
            }
        })?;
        Ok(address)
    }

    fn answer(&self, mut client: TcpStream) -> io::Result<()> {
        client.set_read_timeout(Some(PATIENCE))?;
        client.set_write_timeout(Some(PATIENCE))?;
        let mut request = Vec::new();
        BufReader::new(&client).take(MOST_REQUEST_BYTES).read_until(b'\n', &mut request)?;
        let (status, body) = match request.starts_with(b"GET /metrics ") {
            true => ("200 OK", self.get()),
            false => ("404 Not Found", "try /metrics\n".to_owned()),
        };
        let length = body.len();
        write!(
            client,
            "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: \
             {length}\r\nConnection: close\r\n\r\n{body}"
        )
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
    let mut server = TcpStream::connect_timeout(&address, SERVER_PATIENCE)?;
    server.set_read_timeout(Some(SERVER_PATIENCE))?;
    server.set_write_timeout(Some(SERVER_PATIENCE))?;
    let request = format!("GET /metrics HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    server.write_all(request.as_bytes())?;
    let mut answer = String::new();
    server.take(MOST_ANSWER_BYTES).read_to_string(&mut answer)?;
    match answer.split_once("\r\n\r\n") {
        Some((head, body)) if head.starts_with("HTTP/1.1 200 ") => Ok(body.to_owned()),
        _ => Err(io::Error::other("it serves no metrics")),
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
    }
}
