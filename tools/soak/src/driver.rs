//! Starts all processes, listens to them, kills them, and judges.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use fastrand::Rng;

use crate::check::Checker;
use crate::faults::Faults;
use crate::judge::Judge;
use crate::processes::{End, Line, Process, memory_kib};
use crate::proxy::Proxy;
use crate::say::Said;
use crate::server::{self, BUCKET};
use crate::store::FOLDER;

/// The longest time without a sign of life.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);
const READERS: u32 = 3;
const TICK: Duration = Duration::from_millis(50);
/// The interval at which the proxy's memory of requests is cleared.
const FORGETS: Duration = Duration::from_secs(30);
const SIGKILL: i32 = 9;
const SIGBUS: i32 = 7;

/// Soaks for this time; true if no promise was broken.
pub(crate) fn run(seconds: u64, seed: u64, folder: &Path) -> std::io::Result<bool> {
    let root = folder.join(format!("cowslip-soak-{}", std::process::id()));
    let store_root = root.join("store");
    std::fs::create_dir_all(store_root.join(BUCKET).join(FOLDER))?;
    println!("seed {seed}, {seconds} s");
    let mut store = Command::new(std::env::current_exe()?)
        .arg("store")
        .arg(&store_root)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let address = address_of(&mut store)?;
    // This process accesses the store directly.
    server::environment(address);
    let proxy = Proxy::start(address);
    let faults = Arc::new(Faults::new(seed));
    let (lines, heard) = channel();
    let mut soak = Soak {
        seed,
        rng: Rng::with_seed(seed),
        checker: Checker::new(&store_root, seed),
        root: root.clone(),
        proxy,
        faults,
        lines,
        judge: Judge::default(),
        began: Instant::now(),
        number: 0,
        writer: None,
        readers: Vec::new(),
        published: None,
        store: store.id(),
    };
    let soaked = soak.run(Duration::from_secs(seconds), &heard);
    drop(store.stdin.take());
    store.wait()?;
    soaked?;
    let is_good = soak.judge.is_good();
    print!("{}", soak.judge.all(seed, &soak.faults));
    println!("soak: {}", if is_good { "nothing was lost" } else { "FAILED" });
    if is_good {
        std::fs::remove_dir_all(&root)?;
    } else {
        println!("what is left lies in {}", root.display());
    }
    Ok(is_good)
}

fn address_of(store: &mut Child) -> std::io::Result<SocketAddr> {
    let mut line = String::new();
    BufReader::new(store.stdout.take().expect("it is piped")).read_line(&mut line)?;
    line.trim().parse().map_err(std::io::Error::other)
}

struct Soak {
    seed: u64,
    rng: Rng,
    root: PathBuf,
    checker: Checker,
    proxy: Arc<Proxy>,
    faults: Arc<Faults>,
    lines: Sender<Line>,
    judge: Judge,
    began: Instant,
    /// The number of the process that was started last.
    number: u32,
    writer: Option<Process>,
    /// Readers, each with its node.
    readers: Vec<(u32, Process)>,
    published: Option<u32>,
    store: u32,
}

impl Soak {
    fn run(&mut self, length: Duration, heard: &Receiver<Line>) -> std::io::Result<()> {
        let until = self.began + length;
        let mut forgets = self.began;
        let mut minute = self.began + Duration::from_secs(60);
        self.start_writer()?;
        let mut writer_dies = self.soon(2..12);
        let mut reader_dies = self.soon(1..10);
        while Instant::now() < until {
            match heard.recv_timeout(TICK) {
                Ok((number, Some(said))) => self.hear(number, said),
                Ok((number, None)) => {
                    let is_writer =
                        self.writer.as_ref().is_some_and(|process| process.number == number);
                    self.bury(number)?;
                    if is_writer {
                        self.faults.disarm();
                        self.checker.check(self.published, &self.faults, &mut self.judge);
                        self.start_writer()?;
                        writer_dies = self.soon(4..40);
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => unreachable!("there is a sender here"),
            }
            if self.readers.is_empty() && self.published.is_some() {
                for node in 0..READERS {
                    self.start_reader(node)?;
                }
            }
            let now = Instant::now();
            if now >= forgets {
                let faults = Arc::clone(&self.faults);
                self.proxy.rule(FOLDER, move |request| faults.decide(request));
                forgets = now + FORGETS;
            }
            if now >= writer_dies {
                // At any moment, or at a request.
                if let Some(writer) = &self.writer {
                    match self.rng.bool() {
                        true => writer.kill(),
                        false => self.faults.arm(Arc::clone(&writer.victim)),
                    }
                }
                writer_dies = self.soon(20..40);
            }
            if now >= reader_dies {
                if let Some((_, reader)) = self.rng.choice(&self.readers) {
                    reader.kill();
                }
                reader_dies = self.soon(2..20);
            }
            if now >= minute {
                println!("{}", self.line());
                minute += Duration::from_secs(60);
            }
            self.look_for_hangs();
        }
        self.end(heard)
    }

    fn soon(&mut self, seconds: std::ops::Range<u64>) -> Instant {
        let range = seconds.start * 1000..seconds.end * 1000;
        Instant::now() + Duration::from_millis(self.rng.u64(range))
    }

    fn start_writer(&mut self) -> std::io::Result<()> {
        self.number += 1;
        self.faults.set_writer(self.number);
        let arguments = ["writer".into(), self.proxy.address.to_string(), self.seed.to_string()];
        let arguments = [&arguments[..], &[self.number.to_string()]].concat();
        self.writer = Some(Process::start(self.number, &arguments, &self.lines)?);
        Ok(())
    }

    fn start_reader(&mut self, node: u32) -> std::io::Result<()> {
        self.number += 1;
        let folder = self.root.join(format!("node{node}"));
        std::fs::create_dir_all(&folder)?;
        let arguments = ["reader".into(), self.proxy.address.to_string(), self.seed.to_string()];
        let number = self.number.to_string();
        let more = [number, folder.to_string_lossy().into_owned()];
        let arguments = [&arguments[..], &more].concat();
        self.readers.push((node, Process::start(self.number, &arguments, &self.lines)?));
        Ok(())
    }

    fn hear(&mut self, number: u32, said: Said) {
        let readers =
            self.readers.iter_mut().map(|(node, process)| (format!("node {node}"), process));
        let writer = self.writer.iter_mut().map(|process| ("writer".to_owned(), process));
        let Some((who, process)) =
            writer.chain(readers).find(|(_, process)| process.number == number)
        else {
            return;
        };
        let who = format!("{who} ({number}, {})", process.operation);
        process.last = Instant::now();
        match said {
            Said::Begins(operation) => process.operation = operation,
            Said::Beat => {}
            Said::Did(what, count) => self.judge.did(&what, count),
            Said::Refused(operation, why) => {
                process.is_refused = operation == "all";
                self.judge.refused(&who, &operation, &why);
            }
            Said::Told(images, why) => {
                process.is_told = true;
                let root = self.root.join("store");
                self.judge.told(&who, (&images, &why), process.began, &root, &self.faults);
            }
            Said::Wrong(words, what) => self.judge.wrong(&who, words, &what),
            Said::Broken(what) => self.judge.broken(&who, &what),
            Said::Published(generation) => {
                self.judge.did("published", 1);
                self.published = self.published.max(Some(generation));
            }
        }
    }

    /// Handles the end of a process, after its last line.
    fn bury(&mut self, number: u32) -> std::io::Result<()> {
        let is_it = |process: &Process| process.number == number;
        let (node, process) = match self.writer.take_if(|process| is_it(process)) {
            Some(writer) => (None, writer),
            None => {
                let place = self.readers.iter().position(|(_, process)| is_it(process));
                let Some(place) = place else { return Ok(()) };
                let (node, reader) = self.readers.swap_remove(place);
                (Some(node), reader)
            }
        };
        let who = node.map_or("writer".into(), |node| format!("node {node}"));
        let who = format!("{who} ({number}, {})", process.operation);
        let end = process.ended()?;
        match end {
            End::Signal(SIGKILL) => {
                self.judge.did("kills", 1);
                let whose = if node.is_none() { "writer_kills" } else { "reader_kills" };
                self.judge.did(whose, 1);
            }
            End::Signal(SIGBUS) if process.is_told => self.judge.did("ended_by_told_sigbus", 1),
            End::Signal(SIGBUS) => self.judge.untold(&who, "SIGBUS, and nobody was told"),
            End::Code(_) if process.is_refused => self.judge.did("ended_by_error", 1),
            other => self.judge.broken(&who, &format!("it ended by {other:?}")),
        }
        if node.is_none() && matches!(end, End::Signal(_)) {
            self.checker.killed.insert(number);
        }
        match node {
            Some(node) => self.start_reader(node),
            None => Ok(()),
        }
    }

    fn look_for_hangs(&mut self) {
        let all = self.writer.iter_mut().chain(self.readers.iter_mut().map(|(_, process)| process));
        for process in all.filter(|process| process.is_silent_for(LIMIT)) {
            let who = format!("process {}", process.number);
            self.judge.hang(&who, &process.operation, &process.stacks());
            process.last = Instant::now();
            process.kill();
        }
    }

    fn line(&self) -> String {
        let all = self.writer.iter().chain(self.readers.iter().map(|(_, process)| process));
        let others = memory_kib(std::process::id()) + memory_kib(self.store);
        let memory = all.map(Process::memory_kib).sum::<u64>() + others;
        self.judge.line(self.began.elapsed(), &self.faults, memory)
    }

    /// Kills all processes, hears their last lines, and checks the store for the last time.
    fn end(&mut self, heard: &Receiver<Line>) -> std::io::Result<()> {
        println!("{}", self.line());
        self.faults.disarm();
        let all = self.writer.iter().chain(self.readers.iter().map(|(_, process)| process));
        let mut alive: Vec<u32> = all.clone().map(|process| process.number).collect();
        all.for_each(Process::kill);
        while !alive.is_empty() {
            match heard.recv_timeout(LIMIT) {
                Ok((number, Some(said))) => self.hear(number, said),
                Ok((number, None)) => alive.retain(|ended| *ended != number),
                Err(_) => {
                    self.judge.broken("soak", "a process that was killed does not end");
                    break;
                }
            }
        }
        let readers = self.readers.drain(..).map(|(_, process)| process);
        for process in self.writer.take().into_iter().chain(readers) {
            if process.ended()? == End::Signal(SIGKILL) {
                self.checker.killed.insert(process.number);
            }
        }
        self.checker.check(self.published, &self.faults, &mut self.judge);
        Ok(())
    }
}
