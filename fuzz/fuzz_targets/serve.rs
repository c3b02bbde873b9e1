//! `cowslip serve` and its clients: after any message the other side answers or closes, and goes on for others.
//!
//! The first byte of an input chooses the hostile side. A client's bytes go to a server with room for one of its two images, or to
//! an image that is being loaded. A server's go to a client, in two parts with descriptors; the second and third byte say which,
//! and the fourth where the parts are divided.
#![no_main]

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::Duration;

use cowslip::image::{Image, RestoreOptions, Root, SaveOptions, Via, save};
use cowslip::units::{ByteCount, CHUNK_BYTES};
use cowslip::{Arena, Inherit, Place, Prot, Template};
use cowslip_fuzz::{folder, proceed, put, seed};
use cowslip_serve::{Opener, Options, Server};
use cowslip_sys::reserved_fd::FileIdentity;
use cowslip_sys::{AsFd, OwnedFd, socket};
use libfuzzer_sys::fuzz_target;

/// Where the identity of an image is in a request, and those of descriptors in an answer with a template.
const IMAGE_AT: usize = 24;
const FILES_AT: usize = 40;
/// Longer waits are hangs.
const PATIENCE: Duration = Duration::from_secs(20);

struct World {
    folder: PathBuf,
    images: [Image; 2],
    /// An answer with a template, and the descriptors of the message.
    answer: Vec<u8>,
    files: Vec<OwnedFd>,
    others: Vec<OwnedFd>,
    listener: UnixListener,
    _template: Template,
}

static WORLD: LazyLock<World> = LazyLock::new(World::new);

fn image(path: &Path, first: u64) -> Image {
    let arena = Arena::new(ByteCount::mib(4)).expect("an arena");
    let mut words = arena.slice::<u64>(CHUNK_BYTES / 8).expect("room");
    words[..600].fill(first);
    let place = Root { arena: 0, offset_bytes: 0, length_bytes: 4096 };
    let options = SaveOptions { roots: [("all".to_owned(), place)].into(), ..Default::default() };
    let frozen = arena.freeze().expect("a freeze");
    save(&[&frozen], path, &options, &mut proceed).expect("an image");
    Image::open(path).expect("an image")
}

impl World {
    fn new() -> Self {
        let folder = folder();
        let images = ["one", "two"].map(|name| image(&folder.join(name), name.len() as u64));
        let options = Options {
            images: ["one", "two"].map(|name| folder.join(name)).into(),
            opener: Opener::default(),
            most_clients: 8,
            most_memory: ByteCount::mib(2),
        };
        let server = Server::bind(&folder.join("socket"), options, |_| {}).expect("a server");
        let (never, stop) = io::pipe().expect("a pipe");
        std::thread::spawn(move || {
            let _stop = stop;
            server.run(never.as_fd()).expect("a server that runs");
        });
        let template = images[0].load(0).and_then(|loading| loading.finish()).expect("a template");
        let (ours, theirs) = UnixStream::pair().expect("sockets");
        template.send(&ours).expect("a message");
        let mut message = vec![0; 4096];
        let (length, files) = socket::receive(theirs.as_fd(), &mut message).expect("a message");
        let answer = [&[0; 8], &message[..length]].concat();
        let file = |path: &str| OwnedFd::from(File::open(path).expect("a file"));
        let others = vec![file("/dev/null"), file("/"), file("/proc/self/exe"), never_read()];
        let listener = UnixListener::bind(folder.join("hostile")).expect("a socket");
        Self { folder, images, answer, files, others, listener, _template: template }
    }

    /// The descriptors that a byte means.
    fn files(&self, choice: u8) -> Vec<&OwnedFd> {
        let all: Vec<_> = self.files.iter().chain(&self.others).collect();
        match choice {
            0..64 => vec![],
            64..128 => self.files.iter().collect(),
            128..192 => vec![all[usize::from(choice) % all.len()]],
            _ => all
                .iter()
                .cycle()
                .skip(usize::from(choice % 7))
                .take(usize::from(choice % 5))
                .copied()
                .collect(),
        }
    }
}

fn never_read() -> OwnedFd {
    io::pipe().expect("a pipe").0.into()
}

fn seeds() {
    let world = &*WORLD;
    for (kind, name) in [(1_u64, "template"), (2, "metrics"), (3, "content")] {
        let mut request = b"\0COWSLIPQ\x01\0\0\0\0\0\0\0".to_vec();
        request.extend(kind.to_le_bytes());
        request.extend([0; 24]);
        seed(name, &request);
    }
    let chunks = [0_u64, 1, 2, u64::MAX].map(u64::to_le_bytes).concat();
    seed("lend", &[&[1], &chunks[..]].concat());
    for (name, kind) in [("restored", 2), ("mapped", 3)] {
        seed(name, &[&[kind, 64, 0, 255], &world.answer[..]].concat());
    }
    let pending = [6_u64, 6, 5].map(u64::to_le_bytes).concat();
    let lent = [&[2, 0, 128, 24], &pending[..], &[0], &[0; 32]].concat();
    seed("lent", &lent);
    seed("refused", &[&[2, 0, 0, 255], &4_u64.to_le_bytes()[..]].concat());
}

/// A hostile client of a server.
fn ask(world: &World, bytes: &[u8]) {
    let mut bytes = bytes.to_vec();
    if let Some(&which) = bytes.get(IMAGE_AT).filter(|which| **which < 2) {
        put(&mut bytes, IMAGE_AT, &world.images[usize::from(which)].identity().0);
    }
    let stream = UnixStream::connect(world.folder.join("socket")).expect("a server that listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a limit");
    // A server that has heard enough closes.
    let _ = (&stream).write_all(&bytes).and_then(|()| stream.shutdown(Shutdown::Write));
    let mut answer = Vec::new();
    if let Err(error) = (&stream).read_to_end(&mut answer) {
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset, "{error}");
    }
}

/// A hostile client of an image that is being loaded.
fn borrow(world: &World, bytes: &[u8]) {
    let (client, server) = UnixStream::pair().expect("sockets");
    let loading = world.images[0].load(0).expect("an image");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _ = loading.lend(&server);
            drop(server);
        });
        let _ = (&client).write_all(bytes).and_then(|()| client.shutdown(Shutdown::Write));
        let mut answers = Vec::new();
        let _ = (&client).read_to_end(&mut answers);
    });
}

/// A hostile server, for one client.
fn serve(world: &World, input: &[u8], client: impl FnOnce(&Image, &Path)) {
    let [first, second, at, bytes @ ..] = input else { return };
    let mut bytes = bytes.to_vec();
    let parts = [world.files(*first), world.files(*second)];
    for (number, file) in parts.iter().flatten().take(3).enumerate() {
        let identity = FileIdentity::from_fd(file.as_fd()).map_or([0; 2], FileIdentity::to_numbers);
        put(&mut bytes, FILES_AT + number * 16, &identity.map(u64::to_le_bytes).concat());
    }
    let at = bytes.len().min(if *at == 255 { usize::MAX } else { usize::from(*at) });
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut stream, _) = world.listener.accept().expect("a client");
            let mut request = [0; 48];
            stream.read_exact(&mut request).expect("a request");
            for (part, files) in [&bytes[..at], &bytes[at..]].iter().zip(&parts) {
                let files: Vec<_> = files.iter().map(|file| file.as_fd()).collect();
                let sent = socket::send(stream.as_fd(), part, &files).unwrap_or(part.len());
                let _ = stream.write_all(&part[sent..]);
            }
        });
        client(&world.images[0], &world.folder.join("hostile"));
    });
}

fn restore(image: &Image, server: &Path) {
    let options = RestoreOptions { via: Via::Server(server.into()), ..Default::default() };
    let Ok(restored) = image.restore(0, &options, &mut proceed) else { return };
    let _ = restored.wait(PATIENCE);
    if let Some(place) = restored.root("all") {
        // SAFETY: the page was handed out to be read, and nothing else knows the arena.
        std::hint::black_box(unsafe { std::ptr::read_volatile(place.start as *const u8) });
    }
}

fn map(image: &Image, server: &Path) {
    let Ok(template) = image.template_via(server, 0) else { return };
    let Ok(clone) = template.map(Place::Anywhere) else { return };
    for region in template.regions() {
        if region.inherit() == Inherit::Copied && region.prot().contains(Prot::READ) {
            let bytes = clone.values::<u8>(region.range());
            std::hint::black_box(bytes.iter().step_by(4096).fold(0, |or, byte| or | byte));
        }
    }
}

fuzz_target!(init: seeds(), |input: &[u8]| {
    let world = &*WORLD;
    match input {
        [0, bytes @ ..] => ask(world, bytes),
        [1, bytes @ ..] => borrow(world, bytes),
        [2, bytes @ ..] => serve(world, bytes, restore),
        [3, bytes @ ..] => serve(world, bytes, map),
        _ => {}
    }
});
