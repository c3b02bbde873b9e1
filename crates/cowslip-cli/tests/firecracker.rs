#![allow(unsafe_code)]
//! `cowslip serve --firecracker` beside a client that is made as Firecracker's documents describe it.
//!
//! # Safety
//! A client's memory is a mapping of its own, which is read by volatile reads inside of it, and never unmapped.

mod support;

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use cowslip::units::VirtRange;
use cowslip_serve::metrics_of;
use cowslip_sys::memfile::{self, MemfdKind};
use cowslip_sys::memory::{self, Advice, Prot, Sharing};
use cowslip_sys::socket;
use cowslip_sys::uffd::{self, Features, RegisterMode, Uffd};
use support::{COWSLIP, Folder, run};

const PATIENCE: Duration = Duration::from_secs(120);
const PAGE: usize = 4096;
const MIB: usize = 1 << 20;
const RAM: usize = 48 * MIB;
/// The first region of the machine has this size, the second has the rest.
const FIRST: usize = 20 * MIB;
/// This part of the RAM is zeroes.
const HOLE: std::ops::Range<usize> = 8 * MIB..16 * MIB;
/// `UFFD_FEATURE_EVENT_FORK` and `UFFD_FEATURE_EVENT_REMOVE`
const FORK: u64 = 1 << 1;
const REMOVE: u64 = 1 << 3;
/// Set in a client that is a process of its own, to the socket.
const CLIENT: &str = "COWSLIP_TEST_CLIENT";

/// The first word of the page at `at`.
fn word(at: usize) -> u64 {
    if HOLE.contains(&at) { 0 } else { (at as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) }
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "never: {what}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// An image of a file of RAM.
fn image(folder: &Folder) -> PathBuf {
    let (memory, image) = (folder.0.join("memory"), folder.0.join("image"));
    let file = File::create(&memory).unwrap();
    file.set_len(RAM as u64).unwrap();
    for at in (0..RAM).step_by(PAGE).filter(|at| !HOLE.contains(at)) {
        file.write_all_at(&word(at).to_le_bytes(), at as u64).unwrap();
    }
    let mut command = Command::new(COWSLIP);
    let imported = run(command.args(["vm", "import"]).arg(&memory).arg("-o").arg(&image));
    assert!(imported.status.success(), "{}", imported.stderr);
    image
}

/// A process that ends with the test.
struct Handler {
    child: Child,
    socket: PathBuf,
    log: PathBuf,
}

impl Handler {
    fn start(folder: &Folder, image: &Path, more: &[&str]) -> Self {
        Self::with(folder, image, more, None)
    }

    fn with(folder: &Folder, image: &Path, more: &[&str], server: Option<&Path>) -> Self {
        let (socket, log) = (folder.0.join("pages.socket"), folder.0.join("log"));
        let mut command = Command::new(COWSLIP);
        command.arg("serve").arg(image).arg("--firecracker").arg(&socket).args(more);
        command.stderr(File::create(&log).unwrap());
        match server {
            Some(server) => command.env("COWSLIP_SERVE", server),
            None => command.env_remove("COWSLIP_SERVE"),
        };
        let mut handler = Self { child: command.spawn().unwrap(), socket, log };
        eventually("it listens", || {
            let ended = handler.child.try_wait().unwrap();
            assert!(ended.is_none(), "{ended:?}: {}", handler.log());
            UnixStream::connect(&handler.socket).is_ok()
        });
        handler
    }

    fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    fn threads(&self) -> usize {
        fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap().count()
    }

    /// Ends it by a signal, and returns true if it ended well.
    fn end(&mut self, signal: &str) -> bool {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
        self.child.wait().unwrap().success()
    }
}

impl Drop for Handler {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The memory of a machine.
#[derive(Clone, Copy)]
struct Memory(VirtRange);

impl Memory {
    fn new(bytes: usize) -> Self {
        let range = memory::reserve(bytes, 2 * MIB).unwrap();
        // SAFETY: the range was reserved just now.
        unsafe { memory::map_anonymous(range, Prot::RW) }.unwrap();
        Self(range)
    }

    /// The first word of the page at `at`.
    fn word(self, at: usize) -> u64 {
        assert!(at + 8 <= self.0.len);
        // SAFETY: see the module.
        unsafe { ((self.0.start + at) as *const u64).read_volatile() }
    }

    /// Pages that it has.
    fn present(self) -> usize {
        let pagemap = File::open("/proc/self/pagemap").unwrap();
        let mut entries = vec![0; self.0.len / PAGE * 8];
        pagemap.read_exact_at(&mut entries, (self.0.start / PAGE * 8) as u64).unwrap();
        entries.chunks_exact(8).filter(|entry| entry[7] & 0x80 != 0).count()
    }

    fn give_back(self, at: usize, bytes: usize) {
        // SAFETY: a part of a mapping of the test's own; pages may become zeroes.
        unsafe { memory::advise(VirtRange::new(self.0.start + at, bytes), Advice::DontNeed) }
            .unwrap();
    }
}

/// A client with two regions of RAM.
struct Client {
    uffd: Uffd,
    regions: [Memory; 2],
    stream: UnixStream,
}

fn message(regions: &[(usize, usize, usize)]) -> String {
    let region = |(start, size, offset): &(usize, usize, usize)| {
        serde_json::json!({
            "base_host_virt_addr": start, "size": size, "offset": offset,
            "page_size": PAGE, "page_size_kib": PAGE,
        })
    };
    serde_json::Value::from_iter(regions.iter().map(region)).to_string()
}

impl Client {
    /// `None`, reported, without the right to hold faults of system calls.
    fn new(socket: &Path, features: u64) -> Option<Self> {
        let Ok((fd, _)) = uffd::open() else {
            println!("SKIPPED: userfaultfd: not permitted");
            return None;
        };
        let Ok(uffd) = Uffd::new(fd, Features::from_bits_retain(features)) else {
            println!("SKIPPED: userfaultfd: its features {features:#x} are not permitted");
            return None;
        };
        let regions = [FIRST, RAM - FIRST].map(Memory::new);
        for region in regions {
            uffd.register(region.0, RegisterMode::MISSING).unwrap();
        }
        let stream = UnixStream::connect(socket).unwrap();
        let client = Self { uffd, regions, stream };
        client.send(&client.message(), &[client.uffd.as_fd()]);
        Some(client)
    }

    fn message(&self) -> String {
        let [first, second] = self.regions.map(|region| region.0);
        message(&[(second.start, second.len, FIRST), (first.start, first.len, 0)])
    }

    fn send(&self, text: &str, descriptors: &[BorrowedFd<'_>]) {
        // In two parts: a stream has no messages.
        let (begin, end) = text.as_bytes().split_at(text.len() / 2);
        assert_eq!(socket::send(self.stream.as_fd(), begin, descriptors), Ok(begin.len()));
        assert_eq!(socket::send(self.stream.as_fd(), end, &[]), Ok(end.len()));
    }

    /// Reads the words of these pages in a thread, so that pages that do not come are a failure.
    fn words(&self, pages: impl Iterator<Item = usize> + Send + 'static) -> Vec<u64> {
        let regions = self.regions;
        let (send, receive) = mpsc::channel();
        thread::spawn(move || {
            let read = |at| match at {
                ..FIRST => regions[0].word(at),
                _ => regions[1].word(at - FIRST),
            };
            let _ = send.send(pages.map(read).collect());
        });
        receive.recv_timeout(PATIENCE).expect("the pages come")
    }

    fn present(&self) -> usize {
        self.regions.iter().map(|region| region.present()).sum()
    }

    fn assert_all(&self) {
        let wanted: Vec<u64> = (0..RAM).step_by(PAGE).map(word).collect();
        assert!(self.words((0..RAM).step_by(PAGE)) == wanted);
    }
}

#[test]
fn pages_come_when_they_are_touched_and_are_exact() {
    let folder = Folder::new("firecracker");
    let image = image(&folder);
    let mut handler = Handler::start(&folder, &image, &[]);
    let Some(client) = Client::new(&handler.socket, REMOVE) else { return };
    let some = [FIRST + MIB, 3 * PAGE, HOLE.start, RAM - PAGE];
    assert_eq!(client.words(some.into_iter()), some.map(word));
    let present = client.present();
    assert!((4..=4 * 16).contains(&present), "{present} pages came");
    // Another machine, at the same time.
    let other = Client::new(&handler.socket, REMOVE).unwrap();
    other.assert_all();
    let present = client.present();
    assert!(present <= 4 * 16, "{present} pages came");
    client.assert_all();
    // System calls wait for pages like threads.
    let third = Client::new(&handler.socket, REMOVE).unwrap();
    let at = third.regions[0].0.start + 5 * MIB;
    // SAFETY: see the module. The words are written by the handler alone, before they can be read.
    let bytes = unsafe { std::slice::from_raw_parts(at as *const u8, 8) };
    let (mut ours, mut theirs) = UnixStream::pair().unwrap();
    let (mut read, sent) = ([0; 8], thread::spawn(move || ours.write_all(bytes)));
    theirs.read_exact(&mut read).unwrap();
    sent.join().unwrap().unwrap();
    assert_eq!(u64::from_le_bytes(read), word(5 * MIB));
    // It ends once all machines have what they need.
    assert!(handler.end("-TERM"));
    assert!(!handler.socket.exists());
    third.assert_all();
    assert_eq!(handler.log(), "");
}

#[test]
fn pages_that_were_given_back_are_zeroes() {
    let folder = Folder::new("firecracker-remove");
    let image = image(&folder);
    let handler = Handler::start(&folder, &image, &[]);
    let Some(client) = Client::new(&handler.socket, REMOVE) else { return };
    let memory = client.regions[0];
    assert_eq!(client.words([0].into_iter()), [word(0)]);
    // Some that it has, and some that never came.
    memory.give_back(0, MIB);
    let pages = (0..2 * MIB).step_by(PAGE);
    let wanted: Vec<u64> = pages.clone().map(|at| if at < MIB { 0 } else { word(at) }).collect();
    assert_eq!(client.words(pages.clone()), wanted);
    // While others touch pages all the time.
    let toucher = thread::spawn({
        let region = client.regions[1];
        move || (0..region.0.len).step_by(PAGE).all(|at| region.word(at) == word(FIRST + at))
    });
    for round in 0..200 {
        let at = 4 * MIB + round * 16 * PAGE % (4 * MIB);
        memory.give_back(at, 16 * PAGE);
        assert_eq!(client.words([at, at + 15 * PAGE].into_iter()), [0, 0]);
    }
    assert!(toucher.join().unwrap());
}

#[test]
fn a_machine_with_all_of_its_pages_needs_no_handler() {
    let folder = Folder::new("firecracker-whole");
    let image = image(&folder);
    let mut handler = Handler::start(&folder, &image, &["--whole"]);
    let Some(client) = Client::new(&handler.socket, REMOVE) else { return };
    eventually("all pages are there", || client.present() == RAM / PAGE);
    // The memory is the kernel's once a page that is given back comes without a message.
    let memory = client.regions[1];
    memory.give_back(0, PAGE);
    assert_eq!(client.words([FIRST].into_iter()), [0]);
    handler.end("-KILL");
    memory.give_back(PAGE, PAGE);
    let wanted: Vec<u64> = (FIRST..RAM).step_by(PAGE).map(word).collect();
    let got = client.words((FIRST..RAM).step_by(PAGE));
    assert_eq!((&got[..2], &got[2..]), (&[0, 0][..], &wanted[2..]));
}

#[test]
fn a_handler_that_is_killed_leaves_the_pages_that_came_and_another_takes_its_place() {
    let folder = Folder::new("firecracker-killed");
    let image = image(&folder);
    let mut handler = Handler::start(&folder, &image, &[]);
    let Some(client) = Client::new(&handler.socket, REMOVE) else { return };
    assert_eq!(client.words([MIB].into_iter()), [word(MIB)]);
    handler.end("-KILL");
    assert_eq!(client.words([MIB].into_iter()), [word(MIB)]);
    // The socket that it left is replaced. Another machine is served.
    let second = Handler::start(&folder, &image, &[]);
    let other = Client::new(&second.socket, REMOVE).unwrap();
    other.assert_all();
    // A second handler has no place beside it.
    let mut command = Command::new(COWSLIP);
    let refused = run(command.arg("serve").arg(&image).arg("--firecracker").arg(&second.socket));
    assert_eq!(refused.status.code(), Some(70), "{}", refused.stderr);
}

#[test]
fn huge_pages_come_whole() {
    let folder = Folder::new("firecracker-huge");
    let image = image(&folder);
    let handler = Handler::start(&folder, &image, &[]);
    // With its hole, and from a place that is no multiple of the huge page.
    let (bytes, offset) = (HOLE.end, MIB);
    let file = memfile::memfd("huge", MemfdKind::Hugetlb2M, bytes as u64).ok();
    let map =
        |file: OwnedFd| memory::map_file_reserved(bytes, file.as_fd(), 0, Sharing::Private).ok();
    let (Some(range), Ok((fd, _))) = (file.and_then(map), uffd::open()) else {
        println!("SKIPPED: hugetlb: no {bytes} bytes in the pool, or userfaultfd is not permitted");
        return;
    };
    let memory = Memory(range);
    let uffd = Uffd::new(fd, Features::empty()).unwrap();
    uffd.register(range, RegisterMode::MISSING).unwrap();
    let text = message(&[(range.start, bytes, offset)])
        .replace(&format!(":{PAGE}"), &format!(":{}", 2 * MIB));
    let stream = UnixStream::connect(&handler.socket).unwrap();
    socket::send(stream.as_fd(), text.as_bytes(), &[uffd.as_fd()]).unwrap();
    let (send, receive) = mpsc::channel();
    thread::spawn(move || {
        let words = (0..bytes).step_by(PAGE).map(|at| memory.word(at));
        let _ = send.send(words.collect::<Vec<_>>());
    });
    let words = receive.recv_timeout(PATIENCE).expect("the pages come");
    let wanted: Vec<u64> = (0..bytes).step_by(PAGE).map(|at| word(offset + at)).collect();
    assert!(words == wanted, "{}", handler.log());
}

/// A region of a machine can be several mappings of its process.
#[test]
fn mappings_that_are_divided_come_whole() {
    let folder = Folder::new("firecracker-divided");
    let image = image(&folder);
    let mut handler = Handler::start(&folder, &image, &[]);
    let Some(client) = Client::new(&handler.socket, REMOVE) else { return };
    let [first, second] = client.regions.map(|region| region.0);
    for part in [(first.start + MIB + 7 * PAGE, 5 * PAGE), (second.start + 33 * PAGE, 4 * MIB)] {
        let part = VirtRange::new(part.0, part.1);
        // SAFETY: a part of a mapping of the test's own; its content stays.
        unsafe { memory::advise(part, Advice::NoHugePage) }.unwrap();
    }
    // Windows around touched pages end elsewhere than those of all pages.
    let some = [MIB, 2 * MIB + 3 * PAGE];
    assert_eq!(client.words(some.into_iter()), some.map(word));
    assert!(handler.end("-TERM"));
    client.assert_all();
}

#[test]
fn the_memory_of_a_server_is_used() {
    let folder = Folder::new("firecracker-served");
    let image = image(&folder);
    let socket = folder.0.join("socket");
    let mut command = Command::new(COWSLIP);
    let mut server = command.arg("serve").arg(&image).arg("--socket").arg(&socket).spawn().unwrap();
    eventually("it serves", || metrics_of(&socket).is_ok_and(|text| text.contains("_images 1\n")));
    let handler = Handler::with(&folder, &image, &[], Some(&socket));
    let client = Client::new(&handler.socket, REMOVE);
    client.inspect(Client::assert_all);
    let told = metrics_of(&socket).unwrap();
    server.kill().unwrap();
    server.wait().unwrap();
    assert!(told.contains("cowslip_serve_templates_total 1\n"), "{told}");
}

/// The client that is killed: it touches one page, says so, and waits for its end.
#[test]
fn client() {
    let Some(socket) = std::env::var_os(CLIENT) else { return };
    let client = Client::new(Path::new(&socket), REMOVE).unwrap();
    assert_eq!(client.words([0].into_iter()), [word(0)]);
    println!("touched");
    let _ = std::io::stdin().read(&mut [0]);
}

#[test]
fn a_client_that_dies_is_forgotten() {
    let folder = Folder::new("firecracker-dies");
    let image = image(&folder);
    // One of them for the connection by which the test found that it listens.
    let handler = Handler::start(&folder, &image, &["--clients", "2"]);
    if uffd::open().is_err() {
        println!("SKIPPED: userfaultfd: not permitted");
        return;
    }
    for _ in 0..4 {
        eventually("the one before is forgotten", || {
            !fs::read_dir(format!("/proc/{}/task", handler.child.id())).unwrap().any(|task| {
                let name = fs::read_to_string(task.unwrap().path().join("comm"));
                name.is_ok_and(|name| name.trim() == "cowslip-machine")
            })
        });
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["client", "--exact", "--nocapture"]).env(CLIENT, &handler.socket);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let touched = lines.map_while(Result::ok).any(|line| line.ends_with("touched"));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(touched, "{}", handler.log());
    }
    let after = handler.threads();
    assert!(after < 16, "{after} threads");
}

#[test]
fn strangers_get_nothing_and_the_next_machine_is_served() {
    let folder = Folder::new("firecracker-strange");
    let image = image(&folder);
    let handler = Handler::start(&folder, &image, &[]);
    let mut silent = UnixStream::connect(&handler.socket).unwrap();
    let Ok((fd, _)) = uffd::open() else {
        println!("SKIPPED: userfaultfd: not permitted");
        return;
    };
    let memory = Memory::new(RAM);
    let uffd = Uffd::new(fd, Features::from_bits_retain(REMOVE)).unwrap();
    uffd.register(memory.0, RegisterMode::MISSING).unwrap();
    let file: OwnedFd = File::open(&image).unwrap().into();
    let right = message(&[(memory.0.start, RAM, 0)]);
    let start = memory.0.start;
    let long = format!("[{}", " ".repeat(80 << 10));
    let cases: [(&str, &[BorrowedFd<'_>], &str); 10] = [
        ("garbage", &[uffd.as_fd()], "no array of regions"),
        (&right[..40], &[uffd.as_fd()], "ends early"),
        (&right, &[], "no userfaultfd"),
        (&right, &[file.as_fd()], "no userfaultfd"),
        (&right, &[uffd.as_fd(), uffd.as_fd()], "several descriptors"),
        ("[]", &[uffd.as_fd()], "0 regions"),
        (&message(&[(start, RAM + PAGE, 0)]), &[uffd.as_fd()], "no part of the image"),
        (&message(&[(start, RAM, PAGE)]), &[uffd.as_fd()], "no part of the image"),
        (&message(&[(start, RAM / 2, 0), (start, PAGE, 0)]), &[uffd.as_fd()], "overlap"),
        (&long, &[uffd.as_fd()], "too long"),
    ];
    for (number, (text, descriptors, why)) in cases.into_iter().enumerate() {
        let mut stream = UnixStream::connect(&handler.socket).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let sent = socket::send(stream.as_fd(), text.as_bytes(), descriptors);
        assert!(sent.is_ok(), "{why}: {sent:?}");
        let _ = stream.shutdown(std::net::Shutdown::Write);
        // Closed: the end, or a reset for what was not read.
        assert!(matches!(stream.read(&mut [0]), Ok(0) | Err(_)), "{why}");
        eventually(why, || {
            let log = handler.log();
            log.lines().filter(|line| line.contains("is refused")).count() == number + 1
                && log.lines().next_back().is_some_and(|line| line.contains(why))
        });
    }
    assert_eq!(memory.present(), 0, "a page was written");

    // A fault beyond what it named, and the descriptor of a child.
    let known = RAM / 2;
    let stream = UnixStream::connect(&handler.socket).unwrap();
    let part = message(&[(start, known, 0)]);
    socket::send(stream.as_fd(), part.as_bytes(), &[uffd.as_fd()]).unwrap();
    thread::spawn(move || memory.word(known));
    eventually("it is refused", || handler.log().contains("in none of its regions"));
    assert_eq!(memory.present(), 0, "a page was written");
    // The thread goes on.
    uffd.unregister(memory.0).unwrap();
    if let Some(forks) = Client::new(&handler.socket, FORK) {
        let mut command = Command::new("true");
        // SAFETY: it does nothing in the child.
        unsafe { command.pre_exec(|| Ok(())) };
        // By fork(2) then, which waits until the message is read.
        assert!(command.status().unwrap().success());
        eventually("it is refused", || handler.log().contains("tells of Other(19)"));
        drop(forks);
    }

    silent.set_read_timeout(Some(PATIENCE)).unwrap();
    let closed = silent.read(&mut [0]);
    assert!(matches!(closed, Ok(0)), "{closed:?}");
    assert!(handler.log().contains("not complete after 5s"), "{}", handler.log());
    Client::new(&handler.socket, REMOVE).unwrap().assert_all();
    let _ = silent.write(&[0]);
}

#[test]
fn what_is_no_ram_is_said() {
    let folder = Folder::new("firecracker-none");
    let refused = |words: &[&str]| {
        let ran = run(Command::new(COWSLIP).args(words).current_dir(&folder.0));
        assert!(!folder.0.join("out").exists());
        (ran.status.code(), ran.stderr)
    };
    fs::write(folder.0.join("odd"), "odd").unwrap();
    fs::write(folder.0.join("empty"), "").unwrap();
    for name in ["odd", "empty"] {
        let (code, why) = refused(&["vm", "import", name, "-o", "out"]);
        assert!(code == Some(2) && why.contains("whole pages"), "{code:?} {why}");
    }
    let (code, why) = refused(&["vm", "import", "none", "-o", "out"]);
    assert!(code == Some(2) && why.contains("none"), "{code:?} {why}");
    let (code, why) = refused(&["serve", "odd", "--firecracker", "socket"]);
    assert_eq!(code, Some(6), "{why}");
    let (code, why) = refused(&["serve", "odd", "odd", "--firecracker", "socket"]);
    assert_eq!(code, Some(2), "{why}");
    let (code, why) = refused(&["serve", "https://host/image", "--firecracker", "socket"]);
    assert!(code == Some(2) && why.contains("pull"), "{why}");
    assert!(!folder.0.join("socket").exists());
}
