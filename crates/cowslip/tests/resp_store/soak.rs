//! Writers, a server that is killed at any moment, and the content that it must hold afterwards.
//!
//! The oracle knows nothing of the server's internals. For each writer, the restored content must be exactly the result
//! of some number of its first writes; the sum of these numbers must match the image; every write that the server
//! called durable must be included, and every write that was acknowledged before an included one was sent.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::thread;

use cowslip::image::Image;

use crate::client::{Client, Reply, ok};
use crate::model::{self, Content};
use crate::server::{Server, home, image, inode};
use crate::support::images::Folder;
use crate::support::{Scatter, Watchdog, eventually, scaled};

const WRITERS: u64 = 3;
const OPTIONS: [&str; 5] = ["--every", "15ms", "--chain", "6", "--track"];

/// The moment at which the server is killed.
#[derive(Clone, Copy, Debug)]
enum Moment {
    /// After this many writes in all.
    Writes(u64),
    /// While it saves, after this many spins.
    Saving(u64),
    /// A new image has just taken the name of the last.
    Renamed,
    /// The last image has just got a second name.
    Linked,
    /// While it restores, after this many spins; then it starts once more.
    Restoring(u64),
}

impl Moment {
    fn choose(scatter: &mut Scatter) -> Self {
        let (kind, number) = (scatter.next() >> 20, scatter.next() >> 20);
        match kind % 6 {
            0 | 1 => Self::Writes(number % scaled(4000) as u64),
            2 => Self::Saving(number % 3_000_000),
            3 => Self::Renamed,
            4 => Self::Linked,
            _ => Self::Restoring(number % 3_000_000),
        }
    }
}

fn spin(times: u64) {
    (0..times).for_each(|_| std::hint::spin_loop());
}

/// One writer over all lives of the server.
#[derive(Default)]
struct Writer {
    /// The result of its first `base` writes, which is the restored content.
    content: Content,
    base: u64,
    /// The writes sent in this life.
    sent: Vec<Sent>,
    /// The number of its writes that the server has called durable.
    durable: u64,
}

struct Sent {
    words: Vec<Vec<u8>>,
    /// Ticks of the clock that all writers share.
    sent: u64,
    acknowledged: Option<u64>,
}

impl Writer {
    /// Writes until the server is gone.
    fn run(&mut self, number: u64, life: u64, server: SocketAddr, clock: &AtomicU64) {
        let Ok(mut client) = Client::connect(server) else { return };
        let mut scatter = Scatter(life << 8 | number << 1 | 1);
        loop {
            let began = self.sent.len();
            for _ in 0..=scatter.next() % 16 {
                let n = self.base + self.sent.len() as u64 + 1;
                let words = model::words(number, life, n);
                client.queue(&words);
                self.sent.push(Sent {
                    words,
                    sent: clock.fetch_add(1, SeqCst),
                    acknowledged: None,
                });
            }
            if client.send().is_err() {
                return;
            }
            for sent in &mut self.sent[began..] {
                match (sent.words[0].as_slice(), client.receive()) {
                    (_, Err(_)) => return,
                    (b"MSET", Ok(reply)) => assert_eq!(reply, ok()),
                    (b"DEL", Ok(reply)) => assert_eq!(reply, Reply::Integer(1)),
                    (_, Ok(reply)) => assert!(matches!(reply, Reply::Integer(1..)), "{reply:?}"),
                }
                sent.acknowledged = Some(clock.fetch_add(1, SeqCst));
            }
            if scatter.next() >> 20 & 31 == 0 {
                let (words, answer) = match scatter.next() >> 20 & 1 {
                    0 => (vec!["SAVE"], ok()),
                    _ => {
                        let answer = [Reply::Integer(1), Reply::Integer(0)];
                        (vec!["WAITAOF", "1", "0", "0"], Reply::Array(answer.into()))
                    }
                };
                let Ok(reply) = client.ask(&words) else { return };
                assert_eq!(reply, answer, "{words:?}");
                self.durable = self.base + self.sent.len() as u64;
            }
        }
    }

    /// Goes back to the server's content of its writes; returns those of this life that were kept, and those that were
    /// lost.
    fn settle(&mut self, number: u64, client: &mut Client) -> (Vec<Sent>, Vec<Sent>) {
        let mut found = Content::new();
        for key in model::keys(number) {
            client.queue(&[b"GET", key.as_slice()]);
        }
        client.send().unwrap();
        for key in model::keys(number) {
            let Reply::Bytes(value) = client.receive().unwrap() else { panic!("not a value") };
            value.map(|value| found.insert(key, value));
        }
        let last = found.get(&model::last_key(number));
        let last: u64 = last.map_or(0, |digits| str::from_utf8(digits).unwrap().parse().unwrap());
        let mut content = std::mem::take(&mut self.content);
        let mut sent = std::mem::take(&mut self.sent);
        // The command after a set leaves no number, but one key or count more or less.
        let at_least = last.saturating_sub(self.base) as usize;
        for count in 0..=sent.len().min(at_least + 1) {
            if let Some(last) = count.checked_sub(1) {
                model::apply(&mut content, &sent[last].words);
            }
            if count >= at_least && content == found {
                let lost = sent.split_off(count);
                self.base += count as u64;
                assert!(self.base >= self.durable, "writer {number}: a durable write is lost");
                self.content = content;
                return (sent, lost);
            }
        }
        let (base, sent) = (self.base, sent.len());
        panic!("writer {number}: no state that it had: last {last}, {base} and {sent} more");
    }
}

/// The mark in the file, read by the library.
fn mark(image: &Path) -> (u64, u64) {
    let image = Image::open(image).expect("whole at every instant");
    image.verify(&mut |_| std::ops::ControlFlow::Continue(())).expect("every chunk is right");
    let number = |name: &str| image.description().user[name].parse().unwrap();
    (number("generation"), number("writes"))
}

/// One life of the server: it serves writers until it is killed. Returns its last report of its durable state.
fn live(folder: &Folder, moment: Moment, life: u64, writers: &mut [Writer]) -> (u64, u64) {
    if let Moment::Restoring(spins) = moment {
        let mut server = Server::spawn(folder, &OPTIONS);
        server.until_it_says("restoring ");
        spin(spins);
        server.kill();
    }
    // Every other life finds its changes by reading instead of tracking.
    let (server, address) = Server::start(folder, &OPTIONS[..4 + life as usize % 2]);
    let clock = AtomicU64::new(0);
    let mut monitor = Client::connect(address).unwrap();
    let image = image(folder);
    let seen = Mutex::new((0, 0));
    thread::scope(|scope| {
        // Moved here, so that writers that wait for it end if this panics.
        let server = server;
        for (number, writer) in (0..).zip(writers) {
            let clock = &clock;
            scope.spawn(move || writer.run(number, life, address, clock));
        }
        let mut look = || {
            // In one reply, because both change together.
            let Reply::Bytes(Some(text)) = monitor.ask(&["info"]).unwrap() else { panic!("INFO") };
            let text = String::from_utf8(text).unwrap();
            let number = |field: &str| -> u64 {
                let value =
                    text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
                value.unwrap().parse().unwrap()
            };
            *seen.lock().unwrap() = (number("durable_generation"), number("durable_writes"));
            number("rdb_bgsave_in_progress") == 1
        };
        match moment {
            Moment::Writes(writes) => {
                eventually("writes", || clock.load(SeqCst) >= 2 * writes);
                look();
            }
            Moment::Restoring(_) => {
                look();
            }
            Moment::Saving(spins) => {
                eventually("a save", &mut look);
                spin(spins);
            }
            Moment::Renamed => {
                look();
                let before = inode(&image);
                eventually("another image", || inode(&image) != before);
            }
            Moment::Linked => {
                look();
                let before = folder.names();
                let is_link = |name: &String| name.starts_with("store.") && !before.contains(name);
                eventually("a second name", || folder.names().iter().any(is_link));
            }
        }
        server.kill();
    });
    seen.into_inner().unwrap()
}

/// Checks that every write that was acknowledged before a kept one was sent is kept, too.
fn check_causality(there: &[Sent], lost: &[Sent], when: &str) {
    let last_sent = there.iter().map(|write| write.sent).max();
    let first_lost = lost.iter().filter_map(|write| write.acknowledged).min();
    if let (Some(sent), Some(acknowledged)) = (last_sent, first_lost) {
        assert!(sent < acknowledged, "{when}: a write is lost that came before one that is there");
    }
}

#[test]
fn killed_at_any_moment_it_is_again_what_its_last_checkpoint_was() {
    let rounds = std::env::var("COWSLIP_SOAK_ROUNDS").ok();
    let rounds = rounds.map_or_else(|| scaled(12) as u64, |rounds| rounds.parse().unwrap());
    let folder = home();
    let mut scatter = Scatter(0x5ca1_ab1e);
    let mut writers: Vec<Writer> = (0..WRITERS).map(|_| Writer::default()).collect();
    let (mut kept, mut lost_writes) = (0, 0);
    for life in 0..rounds {
        let _watchdog = Watchdog::start("a life of the store");
        // The first life has nothing to restore.
        let moment = match Moment::choose(&mut scatter) {
            Moment::Restoring(_) if life == 0 => Moment::Writes(100),
            moment => moment,
        };
        let when = format!("life {life}, killed at {moment:?}");
        let seen = live(&folder, moment, life, &mut writers);

        let has_image = image(&folder).exists();
        let (generation, writes) = if has_image { mark(&image(&folder)) } else { (0, 0) };
        assert!(generation >= seen.0, "{when}: {generation} is older than {}", seen.0);
        assert!(generation > seen.0 || writes == seen.1, "{when}: {writes} are not {}", seen.1);
        let (server, address) = Server::start(&folder, &["--every", "0s"]);
        let mut client = Client::connect(address).unwrap();
        let mut there = Vec::new();
        let mut lost = Vec::new();
        for (number, writer) in (0..).zip(&mut writers) {
            let (has, has_not) = writer.settle(number, &mut client);
            there.extend(has);
            lost.extend(has_not);
        }
        let all: u64 = writers.iter().map(|writer| writer.base).sum();
        assert_eq!(all, writes, "{when}: the image says how many writes it has");
        assert_eq!(client.info("restored_generation").unwrap(), generation, "{when}");
        assert_eq!(client.info("writes").unwrap(), writes, "{when}");
        let keys: usize = writers.iter().map(|writer| writer.content.len()).sum();
        assert_eq!(client.ask(&["dbsize"]).unwrap(), Reply::Integer(keys as i64), "{when}");
        check_causality(&there, &lost, &when);
        let names = folder.names();
        assert!(names.len() <= 6 + 2, "{when}: images, lock and stderr: {names:?}");
        assert!(names.iter().all(|name| !name.starts_with('.')), "{when}: {names:?}");
        server.kill();
        kept += there.len();
        lost_writes += lost.len();
    }
    println!("{rounds} lives: {kept} writes kept, {lost_writes} after the last checkpoints");
    assert!(kept > 0 && lost_writes > 0, "checkpoints were in the middle of the writes");
}
