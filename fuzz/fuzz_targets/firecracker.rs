//! `cowslip serve --firecracker` and its machines: after any message the handler ends once it is told to, and a machine's
//! memory has pages of the image, or zeroes.
//!
//! The first byte of an input chooses the descriptors that come with the message, the second where it is divided. In the
//! message the word `RAM` is the address of the machine's memory. A thread touches a page there meanwhile.
#![no_main]

use std::fs::File;
use std::io::{self, Read};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};
use std::thread;
use std::time::Duration;

use cowslip::Arena;
use cowslip::image::{Image, RestoreOptions, Root, SaveOptions, save};
use cowslip::units::{ByteCount, VirtRange};
use cowslip_fuzz::{folder, proceed, seed};
use cowslip_sys::memory::{self, Advice, Prot};
use cowslip_sys::uffd::{self, Features, RegisterMode, Uffd};
use cowslip_sys::{AsFd, BorrowedFd, socket};
use cowslip_vm::firecracker::{Content, Handler, Options, RAM};
use libfuzzer_sys::fuzz_target;

const PAGE: usize = 4096;
const IMAGE_BYTES: usize = 4 << 20;
/// Pages on both sides of the machine's memory, which stay as they are.
const GUARD_BYTES: usize = 2 << 20;
/// Time for a handler to have read a message that it does not refuse.
const READ: Duration = Duration::from_millis(20);

struct World {
    handler: Handler,
    socket: PathBuf,
    content: Arc<Content>,
    other: File,
    /// The machine's memory, with its guards.
    memory: VirtRange,
}

static WORLD: LazyLock<World> = LazyLock::new(World::new);

/// All words of a page of the image.
fn word(page: usize) -> u64 {
    (page as u64 + 1) << 32 | 0xc0
}

impl World {
    fn new() -> Self {
        let folder = folder();
        let arena = Arena::new(ByteCount::mib(4)).expect("an arena");
        let mut words = arena.slice::<u64>(IMAGE_BYTES / 8).expect("room");
        let pages = words.chunks_exact_mut(PAGE / 8).enumerate();
        pages.for_each(|(page, words)| words.fill(word(page)));
        let place = Root { arena: 0, offset_bytes: 0, length_bytes: IMAGE_BYTES as u64 };
        let options = SaveOptions { roots: [(RAM.to_owned(), place)].into(), ..Default::default() };
        let frozen = arena.freeze().expect("a freeze");
        let path = folder.join("image");
        save(&[&frozen], &path, &options, &mut proceed).expect("an image");
        let image = Image::open(&path).expect("an image");
        let content = Content::restore(&image, &RestoreOptions::default()).expect("its content");
        let socket = folder.join("socket");
        let handler = Handler::bind(&socket).expect("a handler");
        let other = File::open("/dev/null").expect("a file");
        let bytes = GUARD_BYTES + IMAGE_BYTES + GUARD_BYTES;
        let memory = memory::reserve(bytes, 2 << 20).expect("addresses");
        // SAFETY: these addresses were reserved for it.
        unsafe { memory::map_anonymous(memory, Prot::RW) }.expect("memory");
        Self { handler, socket, content: Arc::new(content), other, memory }
    }

    fn registered(&self) -> VirtRange {
        VirtRange::new(self.memory.start + GUARD_BYTES, IMAGE_BYTES)
    }

    /// A message of a client, with the address of the memory.
    fn message(&self, bytes: &[u8]) -> Vec<u8> {
        let address = self.registered().start.to_string();
        let mut message = Vec::new();
        let mut rest = bytes;
        while let Some(at) = rest.windows(3).position(|word| word == b"RAM") {
            message.extend(&rest[..at]);
            message.extend(address.as_bytes());
            rest = &rest[at + 3..];
        }
        message.extend(rest);
        message
    }

    /// Sends a message as a machine does, and returns once the handler has refused it, or had time to read it.
    fn send(&self, message: &[u8], at: usize, files: &[BorrowedFd<'_>]) {
        let mut stream = UnixStream::connect(&self.socket).expect("a handler that listens");
        stream.set_read_timeout(Some(READ)).expect("a limit");
        let (begin, end) = message.split_at(at.min(message.len()));
        // A handler that has heard enough closes.
        let _ = socket::send(stream.as_fd(), begin, files)
            .and_then(|_| socket::send(stream.as_fd(), end, &[]));
        let _ = stream.shutdown(Shutdown::Write);
        let _ = stream.read(&mut [0]);
    }

    /// Checks and empties the machine's memory.
    fn check(&self) {
        let registered = self.registered();
        for at in (self.memory.start..self.memory.end()).step_by(PAGE) {
            // SAFETY: a page of the target's own memory, that no other thread writes by now.
            let words = unsafe { std::slice::from_raw_parts(at as *const u64, PAGE / 8) };
            let first = words[0];
            let is_the_images = (0..IMAGE_BYTES / PAGE).any(|page| word(page) == first);
            let may_be = first == 0 || is_the_images && registered.contains(at);
            assert!(may_be && words.iter().all(|word| *word == first), "{at:#x}: {first:#x}");
        }
        // SAFETY: the target's own memory, to which no reference is left.
        unsafe { memory::advise(self.memory, Advice::DontNeed) }.expect("memory that is emptied");
    }
}

fn tell(_: &str) {}

fn seeds() {
    let region = |address: &str, size: usize, offset: usize, page: &str| {
        format!(r#"{{"base_host_virt_addr":{address},"size":{size},"offset":{offset},{page}}}"#)
    };
    let base = r#""page_size":4096,"page_size_kib":4096"#;
    let messages = [
        ("whole", format!("[{}]", region("RAM", IMAGE_BYTES, 0, base))),
        ("part", format!("[{}]", region("RAM", 1 << 20, 2 << 20, r#""page_size_kib":4"#))),
        ("huge", format!("[{}]", region("RAM", IMAGE_BYTES, 0, r#""page_size":2097152"#))),
        ("elsewhere", format!("[{}]", region("1048576", IMAGE_BYTES, 0, base))),
        ("none", "[]".to_owned()),
    ];
    for (name, message) in messages {
        seed(name, &[&[0, 30, 7], message.as_bytes()].concat());
        seed(&format!("{name}-file"), &[&[1, 30, 7], message.as_bytes()].concat());
    }
}

fuzz_target!(init: seeds(), |input: &[u8]| {
    let world = &*WORLD;
    let [files, at, touched, message @ ..] = input else { return };
    let message = world.message(message);
    let machine = uffd::open().expect("a userfaultfd").0;
    let machine = Uffd::new(machine, Features::empty()).expect("a userfaultfd");
    machine.register(world.registered(), RegisterMode::MISSING).expect("a range");
    let sent: &[BorrowedFd<'_>] = match files % 4 {
        0 => &[machine.as_fd()],
        1 => &[world.other.as_fd()],
        2 => &[],
        _ => &[machine.as_fd(), world.other.as_fd()],
    };
    let page = world.registered().start + usize::from(*touched) * PAGE;
    let (stop, stops) = io::pipe().expect("a pipe");
    let options = Options { most_machines: 2, whole: files % 8 > 3, tell };
    thread::scope(|scope| {
        let touch = scope.spawn(move || {
            // SAFETY: a byte of the target's own memory. The handler fills it, or the kernel once it is unregistered.
            std::hint::black_box(unsafe { std::ptr::read_volatile(page as *const u8) })
        });
        let handler = scope.spawn(|| {
            world.handler.run(&world.content, &options, stop.as_fd()).expect("a handler that runs");
        });
        world.send(&message, usize::from(*at), sent);
        drop(stops);
        handler.join().expect("a handler that ends");
        machine.unregister(world.registered()).expect("a range that was registered");
        touch.join().expect("a thread that goes on");
    });
    world.check();
});
