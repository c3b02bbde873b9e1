//! An HTTP proxy on loopback that passes requests on, and imitates faults of networks and stores in some answers.

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A fault of a request or its answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    None,
    /// 503, without a request to the store.
    Busy,
    /// 403, without a request to the store.
    Forbidden,
    /// The connection breaks before the answer.
    Reset,
    /// The store processes the request, and the connection breaks before the answer.
    Lost,
    /// The connection breaks after half the body.
    Cut,
    /// Half the body, declared as all of it.
    Short,
    /// A bit in the middle of the body flips.
    Flip,
    /// The answer has another object's tag.
    OtherTag,
    /// The answer comes later.
    Late(Duration),
    /// Half of the body comes, the rest later.
    Stall(Duration),
    /// The request never gets an answer.
    Hold,
}

#[derive(Clone, Debug)]
pub struct Request {
    pub method: String,
    /// Includes the query.
    pub target: String,
    pub range: Option<String>,
    /// The number of this test's earlier requests.
    pub number: usize,
    pub body_bytes: usize,
}

type Rule = Arc<dyn Fn(&Request) -> Fault + Send + Sync>;

#[derive(Default)]
struct Test {
    rule: Option<Rule>,
    seen: Vec<Request>,
    now: usize,
    most: usize,
}

pub struct Proxy {
    pub address: SocketAddr,
    store: SocketAddr,
    /// Tests by their folder in the bucket.
    tests: Mutex<HashMap<String, Test>>,
}

impl Proxy {
    pub fn start(store: SocketAddr) -> Arc<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let proxy = Arc::new(Self { address, store, tests: Mutex::default() });
        let serving = Arc::clone(&proxy);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let proxy = Arc::clone(&serving);
                std::thread::spawn(move || drop(proxy.pass(client)));
            }
        });
        proxy
    }

    /// Sets the faults of requests for a folder from now on, and forgets the requests so far.
    pub fn rule(&self, folder: &str, rule: impl Fn(&Request) -> Fault + Send + Sync + 'static) {
        let test = Test { rule: Some(Arc::new(rule)), ..Test::default() };
        self.tests.lock().unwrap().insert(folder.to_owned(), test);
    }

    /// The requests for a folder so far.
    pub fn seen(&self, folder: &str) -> Vec<Request> {
        self.tests.lock().unwrap().get(folder).map(|test| test.seen.clone()).unwrap_or_default()
    }

    /// The highest number of concurrent requests.
    pub fn most_at_once(&self, folder: &str) -> usize {
        self.tests.lock().unwrap().get(folder).map_or(0, |test| test.most)
    }

    fn pass(&self, mut client: TcpStream) -> io::Result<()> {
        client.set_nodelay(true)?;
        let mut reader = BufReader::with_capacity(1 << 16, client.try_clone()?);
        let (first, headers) = head(&mut reader)?;
        let mut words = first.split(' ');
        let method = words.next().unwrap_or_default().to_owned();
        let target = words.next().unwrap_or_default().to_owned();
        let find = |name: &str| value(&headers, name);
        let length = find("content-length").and_then(|text| text.parse().ok()).unwrap_or(0);
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        // A listing names the folder in its query.
        let path = target.replace("%2F", "/");
        let folder = match path.split_once("prefix=") {
            Some((_, prefix)) => prefix.split(['/', '&']).next(),
            None => path.split(['/', '?']).nth(2),
        };
        let folder = folder.unwrap_or_default().to_owned();
        let range = find("range");
        let fault = {
            let mut tests = self.tests.lock().unwrap();
            let test = tests.entry(folder.clone()).or_default();
            let request =
                Request { method, target, range, number: test.seen.len(), body_bytes: length };
            test.seen.push(request.clone());
            test.now += 1;
            test.most = test.most.max(test.now);
            test.rule.as_ref().map_or(Fault::None, |rule| rule(&request))
        };
        let passed = self.answer(&mut client, fault, &first, &headers, &body);
        if let Some(test) = self.tests.lock().unwrap().get_mut(&folder) {
            test.now = test.now.saturating_sub(1);
        }
        let _ = client.shutdown(Shutdown::Both);
        passed
    }

    fn answer(
        &self,
        client: &mut TcpStream,
        fault: Fault,
        first: &str,
        headers: &[String],
        body: &[u8],
    ) -> io::Result<()> {
        match fault {
            Fault::Busy => {
                return client.write_all(
                    b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
                );
            }
            Fault::Forbidden => {
                return client.write_all(
                    b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
                );
            }
            Fault::Reset => return Ok(()),
            Fault::Hold => {
                // Waits until the client goes.
                let _ = client.read(&mut [0]);
                return Ok(());
            }
            Fault::Late(by) => std::thread::sleep(by),
            _ => {}
        }
        let mut store = TcpStream::connect(self.store)?;
        let kept =
            headers.iter().filter(|line| !line.to_ascii_lowercase().starts_with("connection:"));
        let kept: String = kept.map(|line| format!("{line}\r\n")).collect();
        store.write_all(format!("{first}\r\n{kept}Connection: close\r\n\r\n").as_bytes())?;
        store.write_all(body)?;
        let mut reader = BufReader::with_capacity(1 << 16, store);
        let (status, mut headers) = head(&mut reader)?;
        let mut body = Vec::new();
        reader.read_to_end(&mut body)?;
        if fault == Fault::Lost {
            return Ok(());
        }
        let middle = body.len() / 2;
        match fault {
            Fault::Flip if !body.is_empty() => body[middle] ^= 4,
            Fault::Short => {
                body.truncate(middle);
                headers.retain(|line| !line.to_ascii_lowercase().starts_with("content-length:"));
                headers.push(format!("Content-Length: {middle}"));
            }
            Fault::OtherTag => {
                headers.retain(|line| !line.to_ascii_lowercase().starts_with("etag:"));
                headers.push("ETag: \"00000000000000000000000000000000\"".into());
            }
            _ => {}
        }
        let kept: String = headers.iter().map(|line| format!("{line}\r\n")).collect();
        client.write_all(format!("{status}\r\n{kept}\r\n").as_bytes())?;
        match fault {
            Fault::Cut => client.write_all(&body[..middle]),
            Fault::Stall(by) => {
                client.write_all(&body[..middle])?;
                std::thread::sleep(by);
                client.write_all(&body[middle..])
            }
            _ => client.write_all(&body),
        }
    }
}

/// The first line, and the headers.
fn head(reader: &mut impl BufRead) -> io::Result<(String, Vec<String>)> {
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let line = line.trim_end().to_owned();
        if line.is_empty() {
            break;
        }
        lines.push(line);
    }
    let first = if lines.is_empty() { String::new() } else { lines.remove(0) };
    Ok((first, lines))
}

fn value(headers: &[String], name: &str) -> Option<String> {
    headers.iter().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        key.eq_ignore_ascii_case(name).then(|| value.trim().to_owned())
    })
}
