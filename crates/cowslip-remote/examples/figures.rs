//! The speed that a link with 25 ms and 150 MB/s a stream allows, and that of a restore over it.
//!
//! `cargo run --release -p cowslip-remote --example figures [CHUNKS]`: a server on loopback holds an image in memory,
//! answers each request after 25 ms, and sends no faster than 150 MB/s on a connection. Server and restore share this
//! machine's processors.

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};
use std::thread::sleep;
use std::time::{Duration, Instant};

use cowslip::image::{Progress, RestoreOptions, SaveOptions, Strategy, save};
use cowslip::units::{ByteCount, CHUNK_BYTES};
use cowslip::{Arena, Result};
use cowslip_remote::{OpenOptions, open_with};

const LATENCY: Duration = Duration::from_millis(25);
const BYTES_A_SECOND: f64 = 150e6;
const PATIENCE: Duration = Duration::from_secs(120);
const ROUNDS: usize = 5;

type Objects = Arc<Mutex<HashMap<String, Arc<Vec<u8>>>>>;

fn main() -> Result<()> {
    let chunks = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(512);
    let objects = Objects::default();
    objects.lock().unwrap().insert("/store".into(), image(chunks)?.into());
    let url = format!("http://{}/store", serve(&objects));
    let bytes = (chunks * CHUNK_BYTES) as f64;
    println!("{} MiB, 25 ms, 150 MB/s a stream, {ROUNDS} rounds, medians", chunks * 2);

    let opened = median(|| {
        let began = Instant::now();
        open_with(&url, OpenOptions::default())?;
        Ok(began.elapsed())
    })?;
    println!("open: {opened:.1?} (bound 60 ms)");

    // A scattered tenth; the first restore of it records.
    let touched: Vec<usize> = (0..chunks / 10).map(|i| i * 10 + i * 7 % 10).collect();
    let mut faults = Vec::new();
    {
        let image = open_with(&url, OpenOptions::default())?;
        let options = RestoreOptions { record: true, ..RestoreOptions::default() };
        let restored = image.restore(0, &options, &mut proceed)?;
        for &chunk in &touched {
            let began = Instant::now();
            touch(restored.arena(), chunk);
            faults.push(began.elapsed());
        }
        restored.finish_recording()?;
    }
    faults.sort_unstable();
    let [p50, p99] = [50, 99].map(|p| faults[(faults.len() * p / 100).min(faults.len() - 1)]);
    println!("fault: p50 {p50:.1?}, p99 {p99:.1?} of {} (bound 45 ms)", faults.len());

    let recorded = median(|| {
        let image = open_with(&url, OpenOptions::default())?;
        let began = Instant::now();
        let restored = image.restore(0, &RestoreOptions::default(), &mut proceed)?;
        touched.iter().for_each(|&chunk| touch(restored.arena(), chunk));
        Ok(began.elapsed())
    })?;
    println!("recorded tenth: in after {recorded:.1?} (bound 200 ms)");

    for streams in [2, 4, 8, 16] {
        let options = OpenOptions::default().streams(streams);
        for strategy in [Strategy::Hybrid, Strategy::Eager] {
            let whole = median(|| {
                let image = open_with(&url, options)?;
                let began = Instant::now();
                let options = RestoreOptions { strategy, ..RestoreOptions::default() };
                let restored = image.restore(0, &options, &mut proceed)?;
                assert!(restored.wait(PATIENCE)?);
                Ok(began.elapsed())
            })?;
            let allowed = bytes / (streams as f64 * BYTES_A_SECOND);
            let ratio = whole.as_secs_f64() / allowed;
            println!(
                "whole, {strategy}, {streams} streams: {whole:.1?}, {:.0} MB/s, {ratio:.2} of what they \
                 allow (bound 1.15)",
                bytes / 1e6 / whole.as_secs_f64()
            );
        }
    }
    Ok(())
}

fn proceed(_: Progress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

fn median(mut round: impl FnMut() -> Result<Duration>) -> Result<Duration> {
    let mut took = (0..ROUNDS).map(|_| round()).collect::<Result<Vec<_>>>()?;
    took.sort_unstable();
    Ok(took[took.len() / 2])
}

fn touch(arena: &Arena, chunk: usize) {
    let place = (arena.range().start + chunk * CHUNK_BYTES) as *const u64;
    #[allow(unsafe_code)]
    // SAFETY: the arena was handed out whole.
    let word = unsafe { place.read_volatile() };
    assert_eq!(word, pattern(chunk * CHUNK_BYTES / 8));
}

fn pattern(i: usize) -> u64 {
    (i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1
}

fn image(chunks: usize) -> Result<Vec<u8>> {
    let arena = Arena::new(ByteCount((chunks * CHUNK_BYTES) as u64))?;
    let mut words = arena.slice::<u64>(chunks * CHUNK_BYTES / 8)?;
    words.iter_mut().enumerate().for_each(|(i, word)| *word = pattern(i));
    let path = std::env::temp_dir().join(format!("cowslip-figures-{}", std::process::id()));
    save(&[&arena.freeze()?], &path, &SaveOptions::default(), &mut proceed)?;
    let bytes = std::fs::read(&path).expect("it was written just now");
    let _ = std::fs::remove_file(&path);
    Ok(bytes)
}

fn serve(objects: &Objects) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let address = listener.local_addr().expect("it is bound");
    let objects = Arc::clone(objects);
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let objects = Arc::clone(&objects);
            std::thread::spawn(move || drop(answer(client, &objects)));
        }
    });
    address
}

/// Answers a connection's requests, until it ends.
fn answer(mut client: TcpStream, objects: &Objects) -> io::Result<()> {
    client.set_nodelay(true)?;
    let mut reader = BufReader::new(client.try_clone()?);
    loop {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if reader.read_line(&mut head)? == 0 {
                return Ok(());
            }
        }
        let value = |name: &str| {
            let lines = head.lines().filter_map(|line| line.split_once(':'));
            lines
                .clone()
                .find(|(key, _)| key.eq_ignore_ascii_case(name))
                .map(|(_, value)| value.trim())
        };
        let mut body =
            vec![0; value("content-length").and_then(|text| text.parse().ok()).unwrap_or(0)];
        reader.read_exact(&mut body)?;
        let mut words = head.split(' ');
        let (method, name) = (words.next().unwrap_or(""), words.next().unwrap_or("").to_owned());
        sleep(LATENCY);
        if method == "PUT" {
            objects.lock().unwrap().insert(name, body.into());
            client
                .write_all(b"HTTP/1.1 201 Created\r\nContent-Length: 0\r\nETag: \"1\"\r\n\r\n")?;
            continue;
        }
        let Some(object) = objects.lock().unwrap().get(&name).cloned() else {
            client.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")?;
            continue;
        };
        let range = value("range").and_then(|range| range.strip_prefix("bytes=")?.split_once('-'));
        let number = |text: &str| text.parse().unwrap_or(0);
        let (from, to) =
            range.map_or((0, object.len() - 1), |(from, to)| (number(from), number(to)));
        let to = to.min(object.len() - 1);
        let status = match range {
            Some(_) => {
                format!("206 Partial Content\r\nContent-Range: bytes {from}-{to}/{}", object.len())
            }
            None => "200 OK".into(),
        };
        let length = to + 1 - from;
        let head = format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\nETag: \"1\"\r\n\r\n");
        client.write_all(head.as_bytes())?;
        let began = Instant::now();
        for (i, piece) in object[from..=to].chunks(256 << 10).enumerate() {
            let due =
                Duration::from_secs_f64(((i * (256 << 10) + piece.len()) as f64) / BYTES_A_SECOND);
            sleep(due.saturating_sub(began.elapsed()));
            client.write_all(piece)?;
        }
    }
}
