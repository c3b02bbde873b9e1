//! Workers that serve each request from a fresh clone of a big warm state.
//!
//! ```text
//! cargo run --release --example warm_workers             # an index of 256 MiB
//! cargo run --release --example warm_workers -- 1024 20000  # MiB, requests
//! ```
//! One worker is a fork of this process; the other is started anew and receives the template over its socket. A request
//! reads and overwrites a hundred entries of the index at random, like a handler without any clean-up, and leaves junk
//! in its scratch memory. Afterwards the worker resets its clone. Every request verifies that it found the state as it
//! was built, without the writes of the last one.
#![allow(unsafe_code)]

use std::collections::HashSet;
use std::error::Error;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, thread};

use cowslip::units::{ByteCount, VirtRange};
use cowslip::{Arena, Inherit, Place, Template, TemplateClone};
use cowslip_sys::{AsFd, OwnedFd, process};
use std::sync::atomic::Ordering::Relaxed;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const TOUCHED: usize = 100;
const SCRATCH_BYTES: usize = 64 << 10;
const ROLE: &str = "WARM_WORKERS_ROLE";

/// Places in the template, at the arena's addresses.
#[derive(Clone, Copy)]
struct Places {
    index: VirtRange,
    scratch: VirtRange,
    /// Requests served; all workers count them together.
    served: VirtRange,
}

/// The content of the index at `i`.
fn entry(i: usize) -> u64 {
    (i as u64 ^ 0x5eed).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// The entries that a request touches.
fn touched(request: u64, entries: usize) -> impl Iterator<Item = usize> {
    (0..TOUCHED as u64).map(move |n| {
        let x = (request << 8 | n).wrapping_mul(0xd134_2543_de82_ef95);
        (x ^ x >> 32) as usize % entries
    })
}

/// A worker's answer: 1 if its state was as built, the number of its clone, the sum of the words that the request read,
/// and the time of the reset before it.
type Answer = [u64; 4];

fn serve(mut socket: UnixStream, mut clone: TemplateClone, places: Places) -> Result<()> {
    clone.after_fork()?;
    let mut last_request = None;
    let mut reset_ns = 0;
    while let Some([request]) = read_words::<1>(&mut socket)? {
        let index = clone.values_mut::<u64>(places.index);
        let mut is_pristine = true;
        if let Some(last) = last_request.replace(request) {
            is_pristine = touched(last, index.len()).all(|i| index[i] == entry(i));
        }
        let mut sum = 0_u64;
        let entries = index.len();
        for i in touched(request, entries) {
            // A request may hit an entry twice: then it sees its own write.
            is_pristine &= index[i] == entry(i) || index[i] == request;
            sum = sum.wrapping_add(entry(i));
            index[i] = request;
        }
        let scratch = clone.values_mut::<u8>(places.scratch);
        is_pristine &= scratch.iter().step_by(64).all(|&byte| byte == 0);
        scratch[..4096].fill(request as u8 | 1);
        clone.shared_words(places.served)[0].fetch_add(1, Relaxed);
        let answer = [u64::from(is_pristine), clone.identity().number(), sum, reset_ns];
        socket.write_all(&answer.map(u64::to_le_bytes).concat())?;
        let began = Instant::now();
        clone.reset()?;
        reset_ns = began.elapsed().as_nanos() as u64;
    }
    Ok(())
}

/// `None` at the end.
fn read_words<const N: usize>(socket: &mut UnixStream) -> Result<Option<[u64; N]>> {
    let mut words = [0; N];
    for (i, word) in words.iter_mut().enumerate() {
        let mut bytes = [0; 8];
        match socket.read_exact(&mut bytes) {
            Err(error) if i == 0 && error.kind() == std::io::ErrorKind::UnexpectedEof => {
                return Ok(None);
            }
            read => read?,
        }
        *word = u64::from_le_bytes(bytes);
    }
    Ok(Some(words))
}

/// A worker that is not related to the process that built the state.
fn stranger() -> Result<()> {
    let mut socket = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    // SAFETY: the process that started this one sends it.
    let template = unsafe { Template::receive(&socket) }?;
    let words = read_words::<6>(&mut socket)?.ok_or("no places")?.map(|word| word as usize);
    let place = |i: usize| VirtRange::new(words[2 * i], words[2 * i + 1]);
    let places = Places { index: place(0), scratch: place(1), served: place(2) };
    serve(socket, template.map(Place::Anywhere)?, places)
}

fn start_stranger(template: &Template, places: Places) -> Result<(UnixStream, Child)> {
    let (mut ours, theirs) = UnixStream::pair()?;
    let worker = Command::new(env::current_exe()?)
        .env(ROLE, "worker")
        .stdin(OwnedFd::from(theirs))
        .stdout(Stdio::null())
        .spawn()?;
    template.send(&ours)?;
    for place in [places.index, places.scratch, places.served] {
        ours.write_all(&[place.start as u64, place.len as u64].map(u64::to_le_bytes).concat())?;
    }
    Ok((ours, worker))
}

fn start_fork(template: &Template, places: Places) -> Result<(UnixStream, i32)> {
    let (ours, theirs) = UnixStream::pair()?;
    let clone = template.map(Place::Anywhere)?;
    // SAFETY: the only other thread is the arena's, which holds no lock that the child could need.
    match unsafe { process::fork() }? {
        0 => {
            drop(ours);
            let served = serve(theirs, clone, places);
            process::exit_now(i32::from(served.is_err()))
        }
        pid => Ok((ours, pid)),
    }
}

/// Sends requests one after the other and checks the answers: the sum, and that the state was as
/// built.
fn ask(
    mut socket: UnixStream,
    requests: std::ops::Range<u64>,
    entries: usize,
) -> Result<Vec<Answer>> {
    let mut answers = Vec::new();
    for request in requests {
        socket.write_all(&request.to_le_bytes())?;
        let answer = read_words::<4>(&mut socket)?.ok_or("a worker ended")?;
        let expected = touched(request, entries).fold(0, |sum: u64, i| sum.wrapping_add(entry(i)));
        if answer[0] != 1 || answer[2] != expected {
            return Err(format!("request {request} did not find the state as it was built").into());
        }
        answers.push(answer);
    }
    Ok(answers)
}

fn main() -> Result<()> {
    if env::var_os(ROLE).is_some() {
        return stranger();
    }
    let mut numbers = env::args().skip(1).map(|argument| argument.parse::<usize>());
    let mib = numbers.next().transpose()?.unwrap_or(256);
    let requests = numbers.next().transpose()?.unwrap_or(4000) as u64;

    let began = Instant::now();
    let arena = Arena::new(ByteCount::mib(mib as u64 + 8))?;
    let mut index = arena.slice::<u64>(mib << 17)?;
    let (scratch, served) = (arena.slice::<u8>(SCRATCH_BYTES)?, arena.slice::<u64>(512)?);
    index.iter_mut().enumerate().for_each(|(i, value)| *value = entry(i));
    let entries = index.len();
    println!("built {entries} entries in {:?}, on {}", began.elapsed(), arena.pages());

    let began = Instant::now();
    let template = arena
        .freeze()?
        .template()
        .region(scratch.range(), Inherit::Fresh)
        .region(served.range(), Inherit::Shared)
        .build()?;
    println!("made a template of it in {:?}", began.elapsed());
    let places = Places { index: index.range(), scratch: scratch.range(), served: served.range() };
    let (to_fork, fork) = start_fork(&template, places)?;
    let (to_stranger, mut stranger) = start_stranger(&template, places)?;
    // The owner changes its memory; no clone sees that.
    index.fill(0);

    let began = Instant::now();
    let asked = thread::scope(|scope| {
        let first =
            scope.spawn(|| ask(to_fork, 0..requests / 2, entries).map_err(|e| e.to_string()));
        let second = ask(to_stranger, requests / 2..requests, entries).map_err(|e| e.to_string());
        first.join().expect("a client panicked").and_then(|first| Ok([first, second?].concat()))
    });
    let seconds = began.elapsed().as_secs_f64();
    let ended = [process::wait_for(fork)? == 0, stranger.wait()?.success()];
    let answers = asked?;

    let identities: HashSet<_> = answers.iter().map(|answer| answer[1]).collect();
    let clone = template.map(Place::Anywhere)?;
    let counted = clone.shared_words(places.served)[0].load(Relaxed);
    if ended != [true; 2] || counted != requests || identities.len() as u64 != requests {
        return Err(format!("{counted} served as {} clones: {ended:?}", identities.len()).into());
    }
    let mut resets: Vec<_> = answers.iter().map(|answer| answer[3]).filter(|&ns| ns > 0).collect();
    resets.sort_unstable();
    let at = |share: usize| Duration::from_nanos(resets[resets.len() * share / 100]);
    println!(
        "served {requests} requests, each from a fresh clone and verified: {:.0} requests/s; a reset takes \
         {:?} (p50), {:?} (p99)",
        requests as f64 / seconds,
        at(50),
        at(99)
    );
    drop((clone, template));
    let live = arena.wait_live(Duration::from_secs(60));
    println!("the arena is on shared, huge memory again: {live}");
    Ok(())
}
