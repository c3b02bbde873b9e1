//! A server and its clients, in one process: images are handed out, loaded once, within limits, to permitted clients.

use std::io::{PipeWriter, Write};
use std::ops::ControlFlow;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use cowslip::image::served::{Answer, Request};
use cowslip::image::{Image, RestoreOptions, Restored, SaveOptions, Strategy, Via, save};
use cowslip::units::{ByteCount, CHUNK_BYTES, VirtRange};
use cowslip::{Arena, ErrorKind, Footprint, Place, Prot};
use cowslip_serve::{Opener, Options, Server, metrics_of};

const WORDS: usize = 1 << 19;
const IMAGE_BYTES: u64 = WORDS as u64 * 8;
const PATIENCE: Duration = Duration::from_secs(60);

fn proceed(_: cowslip::image::Progress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

/// A directory that is removed with this value.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("cowslip-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    /// An image of 4 MiB in which word `i` is `i + first`.
    fn image(&self, name: &str, first: u64) -> PathBuf {
        let arena = Arena::new(ByteCount::mib(16)).unwrap();
        let mut words = arena.slice::<u64>(WORDS).unwrap();
        words.iter_mut().enumerate().for_each(|(i, word)| *word = i as u64 + first);
        let path = self.0.join(name);
        let view = arena.freeze().unwrap();
        save(&[&view], &path, &SaveOptions::default(), &mut proceed).unwrap();
        path
    }

    fn socket(&self) -> PathBuf {
        self.0.join("socket")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A server in a thread.
struct Running {
    stop: PipeWriter,
    thread: JoinHandle<()>,
}

impl Running {
    fn start(folder: &Folder, images: &[&Path], most_clients: usize, most_memory: u64) -> Self {
        let images = images.iter().map(|path| path.to_path_buf()).collect();
        let (opener, most_memory) = (Opener::default(), ByteCount(most_memory));
        let options = Options { images, opener, most_clients, most_memory };
        let server = Server::bind(&folder.socket(), options, |_| {}).unwrap();
        let (stopped, stop) = std::io::pipe().unwrap();
        let thread = std::thread::spawn(move || server.run(stopped.as_fd()).unwrap());
        Self { stop, thread }
    }

    fn end(mut self) {
        self.stop.write_all(&[1]).unwrap();
        self.thread.join().unwrap();
    }
}

fn restored(path: &Path, via: Via) -> cowslip::Result<Restored> {
    let options = RestoreOptions { via, ..RestoreOptions::default() };
    Image::open(path).unwrap().restore(0, &options, &mut proceed)
}

/// Returns true if the arena holds the image of `first` unchanged.
fn is_image(arena: &Arena, first: u64) -> bool {
    let range = VirtRange::new(arena.range().start, WORDS * 8);
    #[allow(unsafe_code)]
    // SAFETY: the test alone has the arena, and no other reference.
    let words = unsafe { arena.adopt_slice::<u64>(range) }.unwrap();
    let is_right = words.iter().enumerate().all(|(i, &word)| word == i as u64 + first);
    // Not given back.
    std::mem::forget(words);
    is_right
}

fn metric(folder: &Folder, name: &str) -> u64 {
    let text = metrics_of(&folder.socket()).unwrap();
    let start = format!("cowslip_serve_{name} ");
    text.lines().find_map(|line| line.strip_prefix(&start)).unwrap().parse().unwrap()
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "never: {what}");
        std::thread::yield_now();
    }
}

#[test]
fn many_ask_at_once_and_the_image_is_loaded_once() {
    let folder = Folder::new("once");
    let image = folder.image("image", 5);
    let server = Running::start(&folder, &[&image], 64, 1 << 30);
    std::thread::scope(|scope| {
        for _ in 0..12 {
            scope.spawn(|| {
                let restored = restored(&image, Via::Server(folder.socket())).unwrap();
                // Lent while it was loaded, or handed out.
                assert_ne!(restored.strategy(), Strategy::Eager);
                assert!(is_image(restored.arena(), 5));
                assert!(restored.wait(PATIENCE).unwrap(), "on its own");
                assert!(is_image(restored.arena(), 5));
            });
        }
    });
    eventually("it is loaded", || metric(&folder, "images") == 1);
    assert_eq!(metric(&folder, "loads_total"), 1);
    assert_eq!(metric(&folder, "templates_total") + metric(&folder, "lent_total"), 12);
    assert_eq!(metric(&folder, "held_bytes"), IMAGE_BYTES);
    // The handed out ranges are those in use when the image was saved, and can be saved again.
    let again = restored(&image, Via::Server(folder.socket())).unwrap();
    let view = again.arena().freeze().unwrap();
    let copy = folder.0.join("copy");
    save(&[&view], &copy, &SaveOptions::default(), &mut proceed).unwrap();
    let pieces = |path| Image::open(path).unwrap().description().arenas[0].pieces.clone();
    assert_eq!(pieces(&copy), pieces(&image));
    server.end();
    assert!(!folder.socket().exists(), "nothing is left");
    assert!(is_image(again.arena(), 5), "the server's end harms nobody");
    assert!(is_image(restored(&copy, Via::File).unwrap().arena(), 5));
}

/// The memory of the arena itself: its files, and private pages.
fn own_bytes(arena: &Arena) -> u64 {
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    Footprint::measure(std::process::id() as i32, &smaps, &arena.metrics()).held_bytes
}

#[test]
fn what_is_little_written_stays_on_the_servers_memory_until_it_is_asked_for() {
    let folder = Folder::new("borrowing");
    let path = folder.image("image", 5);
    let server = Running::start(&folder, &[&path], 8, 1 << 30);
    eventually("it is loaded", || metric(&folder, "images") == 1);
    let few = restored(&path, Via::Server(folder.socket())).unwrap();
    let much = restored(&path, Via::Server(folder.socket())).unwrap();
    assert_eq!((few.strategy(), much.strategy()), (Strategy::Resident, Strategy::Resident));
    let word = |restored: &Restored, page: usize| {
        #[allow(unsafe_code)]
        // SAFETY: the arena has such a word, and this thread alone uses it.
        unsafe {
            &mut *((restored.arena().range().start + page * 4096) as *mut u64)
        }
    };
    assert!(is_image(few.arena(), 5));
    (0..8).for_each(|page| *word(&few, page) += 1);
    (0..300).for_each(|page| *word(&much, page) += 1);
    eventually("what is written much is the process' own", || {
        own_bytes(much.arena()) >= CHUNK_BYTES as u64
    });
    // The other arena's thread has had the same time.
    assert_eq!(own_bytes(few.arena()), 8 * 4096);
    server.end();
    assert!(few.wait(PATIENCE).unwrap() && much.wait(PATIENCE).unwrap());
    assert!(own_bytes(few.arena()) >= IMAGE_BYTES && own_bytes(much.arena()) >= IMAGE_BYTES);
    (0..8).for_each(|page| *word(&few, page) -= 1);
    (0..300).for_each(|page| *word(&much, page) -= 1);
    assert!(is_image(few.arena(), 5) && is_image(much.arena(), 5));
}

#[test]
fn clones_stay_on_the_servers_memory_and_outlive_it() {
    let folder = Folder::new("clones");
    let path = folder.image("image", 9);
    let server = Running::start(&folder, &[&path], 8, 1 << 30);
    let image = Image::open(&path).unwrap();
    let template = image.template_via(&folder.socket(), 0).unwrap();
    let mut clone = template.map(Place::Anywhere).unwrap();
    server.end();
    let range = VirtRange::new(template.regions()[0].range().start, WORDS * 8);
    let is_right = |(i, &word): (usize, &u64)| word == i as u64 + 9;
    assert!(clone.values::<u64>(range).iter().enumerate().all(is_right));
    clone.values_mut::<u64>(range).fill(1);
    clone.reset().unwrap();
    assert!(clone.values::<u64>(range).iter().enumerate().all(is_right));
}

#[test]
fn what_was_used_least_recently_goes_first_and_comes_again_when_asked_for() {
    let folder = Folder::new("limits");
    let images: Vec<_> = (0..3).map(|i| folder.image(&format!("image-{i}"), i)).collect();
    let paths: Vec<&Path> = images.iter().map(PathBuf::as_path).collect();
    let server = Running::start(&folder, &paths, 8, 2 * IMAGE_BYTES);
    eventually("two fit", || metric(&folder, "images") == 2);
    let via = || Via::Server(folder.socket());
    // 0 is used, so 1 is dropped for 2.
    let held = restored(&images[0], via()).unwrap();
    drop(restored(&images[2], via()).unwrap());
    eventually("2 is loaded", || metric(&folder, "loads_total") == 3);
    assert_eq!(metric(&folder, "dropped_total"), 1);
    drop(restored(&images[0], via()).unwrap());
    assert_eq!(metric(&folder, "loads_total"), 3, "it was there");
    for (i, path) in images.iter().enumerate() {
        let restored = restored(path, via()).unwrap();
        assert!(is_image(restored.arena(), i as u64));
        assert!(metric(&folder, "held_bytes") <= 2 * IMAGE_BYTES);
    }
    assert!(is_image(held.arena(), 0), "what was given up is still there for who has it");
    server.end();
    let small = Running::start(&folder, &paths, 8, IMAGE_BYTES - 1);
    let refused = restored(&images[0], via()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
    small.end();
}

/// Changes a stored byte of an image.
fn damage(path: &Path) {
    let stored = Image::open(path).unwrap().stored_ranges().next().unwrap();
    let file = std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, stored.start + 100).unwrap();
    file.write_all_at(&[byte[0] ^ 1], stored.start + 100).unwrap();
}

#[test]
fn nothing_goes_for_an_image_that_cannot_be_loaded() {
    let folder = Folder::new("evict");
    let images: Vec<_> = (0..3).map(|i| folder.image(&format!("image-{i}"), i)).collect();
    let paths: Vec<&Path> = images.iter().map(PathBuf::as_path).collect();
    let (asked, good) = (Image::open(&images[2]).unwrap(), std::fs::read(&images[2]).unwrap());
    damage(&images[2]);
    let server = Running::start(&folder, &paths, 8, 2 * IMAGE_BYTES);
    eventually("two fit", || metric(&folder, "images") == 2);
    for _ in 0..3 {
        let refused = asked.template_via(&folder.socket(), 0).unwrap_err();
        assert!(refused.to_string().contains("log"), "{refused}");
    }
    assert_eq!(metric(&folder, "failed_loads_total"), 1, "it is not read again at once");
    assert_eq!((metric(&folder, "dropped_total"), metric(&folder, "images")), (0, 2));
    std::fs::write(&images[2], good).unwrap();
    eventually("it is tried again", || asked.template_via(&folder.socket(), 0).is_ok());
    assert_eq!(metric(&folder, "dropped_total"), 1);
    server.end();
}

#[test]
fn memory_is_counted_in_the_chunks_that_come() {
    const CHUNKS: usize = 16;
    let folder = Folder::new("chunks");
    let arena = Arena::new(ByteCount::mib(64)).unwrap();
    let range = arena.allocate(ByteCount((CHUNKS * CHUNK_BYTES) as u64), Prot::RW).unwrap();
    // A page of each chunk is used; that of the last is zeroes.
    for (i, start) in (range.start..range.end()).step_by(CHUNK_BYTES).enumerate() {
        let rest = VirtRange::new(start + 4096, CHUNK_BYTES - 4096);
        #[allow(unsafe_code)]
        // SAFETY: the test alone has this memory, and no reference to it.
        unsafe {
            *(start as *mut u64) = (CHUNKS - 1 - i) as u64;
            arena.release(rest).unwrap();
        }
    }
    let path = folder.0.join("image");
    save(&[&arena.freeze().unwrap()], &path, &SaveOptions::default(), &mut proceed).unwrap();
    let needed = ((CHUNKS - 1) * CHUNK_BYTES) as u64;
    let server = Running::start(&folder, &[&path], 8, needed);
    eventually("it is loaded", || metric(&folder, "images") == 1);
    assert_eq!(metric(&folder, "held_bytes"), needed);
    server.end();
    let small = Running::start(&folder, &[&path], 8, needed - 1);
    let refused = restored(&path, Via::Server(folder.socket())).unwrap_err();
    assert!(refused.to_string().contains("larger"), "{refused}");
    small.end();
}

#[test]
fn an_eager_restore_is_on_its_own_when_it_returns() {
    let folder = Folder::new("eager");
    let path = folder.image("image", 3);
    let server = Running::start(&folder, &[&path], 8, 1 << 30);
    eventually("it is loaded", || metric(&folder, "images") == 1);
    let via = Via::Server(folder.socket());
    let options = RestoreOptions { via, strategy: Strategy::Eager, ..RestoreOptions::default() };
    let image = Image::open(&path).unwrap();
    for _ in 0..20 {
        let restored = image.restore(0, &options, &mut proceed).unwrap();
        assert!(restored.wait(Duration::ZERO).unwrap(), "all of it is its own");
        assert!(is_image(restored.arena(), 3));
    }
    server.end();
}

#[test]
fn a_file_that_was_replaced_is_the_new_image_and_others_are_not_served() {
    let folder = Folder::new("replaced");
    let path = folder.image("image", 1);
    let other = folder.image("other", 2);
    let server = Running::start(&folder, &[&path], 8, 1 << 30);
    let via = || Via::Server(folder.socket());
    assert!(is_image(restored(&path, via()).unwrap().arena(), 1));
    assert_eq!(restored(&other, via()).unwrap_err().kind(), ErrorKind::Unsupported);
    folder.image("image", 3);
    assert!(is_image(restored(&path, via()).unwrap().arena(), 3));
    server.end();
    assert!(restored(&path, via()).is_err(), "who was named must be there");
    assert!(is_image(restored(&path, Via::Environment).unwrap().arena(), 3));
}

#[test]
fn clients_beyond_the_limit_and_strange_ones_get_nothing_and_stop_nobody() {
    let folder = Folder::new("strange");
    let path = folder.image("image", 4);
    let server = Running::start(&folder, &[&path], 1, 1 << 30);
    let identity = Image::open(&path).unwrap().identity();
    // A client that sends nothing takes the only place, until it goes.
    let silent = UnixStream::connect(folder.socket()).unwrap();
    let request = Request::Template { image: identity, arena: 0 };
    eventually("there is no place for another", || {
        let next = UnixStream::connect(folder.socket()).unwrap();
        request.ask(&next).is_ok_and(|answer| answer == Answer::Busy)
    });
    drop(silent);
    eventually("its place is free", || metrics_of(&folder.socket()).is_ok());
    let mut strange = UnixStream::connect(folder.socket()).unwrap();
    // The last client's place may not be free yet: this one is then refused at once.
    let _ = strange.write_all(&[7; 48]);
    eventually("they are served after that", || {
        restored(&path, Via::Server(folder.socket())).is_ok()
    });
    eventually("arenas that are not there are refused", || {
        let next = UnixStream::connect(folder.socket()).unwrap();
        let request = Request::Template { image: identity, arena: 1 };
        request.ask(&next).is_ok_and(|answer| answer == Answer::NotHeld)
    });
    server.end();
}

#[test]
fn a_socket_that_a_killed_server_left_is_replaced_and_a_live_one_is_not() {
    let folder = Folder::new("left");
    let path = folder.image("image", 6);
    drop(UnixListener::bind(folder.socket()).unwrap());
    assert!(folder.socket().exists(), "left behind");
    let server = Running::start(&folder, &[&path], 8, 1 << 30);
    let (opener, most_memory) = (Opener::default(), ByteCount(1));
    let options = Options { images: Vec::new(), opener, most_clients: 1, most_memory };
    let second = Server::bind(&folder.socket(), options, |_| {});
    assert_eq!(second.unwrap_err().kind(), std::io::ErrorKind::AddrInUse);
    assert!(is_image(restored(&path, Via::Server(folder.socket())).unwrap().arena(), 6));
    server.end();
}
