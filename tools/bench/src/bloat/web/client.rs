//! A client that asks for a page, reads it, and asks for the next, over one connection.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::report::Latencies;

use crate::demo::redis::value::Random;
use crate::error::{Error, Result, during};
use crate::interrupt::Interrupt;

const ASKS: &str = "ask for a page";
/// Cloudstone's mix: one request in seven adds something.
const ADDS_ONE_IN: u64 = 7;

/// Asks for pages of random events until `time` has passed.
pub(super) fn ask(
    port: u16,
    events: u64,
    number: u64,
    time: Duration,
    stop: &Interrupt,
) -> Result<Latencies> {
    let stream = TcpStream::connect(("127.0.0.1", port)).map_err(during(ASKS))?;
    stream.set_nodelay(true).map_err(during(ASKS))?;
    let mut answers = BufReader::new(&stream);
    let (mut random, mut latencies, mut page) = (Random(number), Latencies::new(), Vec::new());
    let began = Instant::now();
    while began.elapsed() < time {
        stop.check()?;
        let id = random.next() % events;
        let add = if random.next().is_multiple_of(ADDS_ONE_IN) { "&add=1" } else { "" };
        let asked = Instant::now();
        write!(&stream, "GET /?id={id}{add} HTTP/1.1\r\nHost: localhost\r\n\r\n")
            .map_err(during(ASKS))?;
        read(&mut answers, &mut page).map_err(during(ASKS))?;
        latencies.record(asked.elapsed());
        if !page.starts_with(format!("<h1>event {id}</h1>").as_bytes()) {
            let page = String::from_utf8_lossy(&page[..page.len().min(200)]).into_owned();
            return Err(Error::Failed(format!("the page of event {id} is {page:?}")));
        }
    }
    Ok(latencies)
}

/// Reads an answer that states its length.
fn read(answers: &mut impl BufRead, page: &mut Vec<u8>) -> std::io::Result<()> {
    let (mut length, mut line) = (0, String::new());
    loop {
        line.clear();
        answers.read_line(&mut line)?;
        match line.trim_end().split_once(": ") {
            Some((name, value)) if name.eq_ignore_ascii_case("content-length") => {
                length = value.parse().map_err(std::io::Error::other)?;
            }
            None if line.trim_end().is_empty() => break,
            _ => {}
        }
    }
    page.resize(length, 0);
    answers.read_exact(page)
}
