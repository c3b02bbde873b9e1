//! An image that a server is still loading: how a restore handles its answers, and their absence.

use std::io::Read;
use std::ops::ControlFlow;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::Duration;

use cowslip::image::served::{Answer, Request};
use cowslip::image::{
    Compression, Image, RestoreOptions, Restored, SaveOptions, Strategy, Via, save,
};
use cowslip::units::{ByteCount, CHUNK_BYTES, VirtRange};
use cowslip::{Arena, ErrorKind};
use cowslip_sys::memfile::MemfdKind;
use cowslip_sys::{AsFd, OwnedFd, memfile, socket};

const CHUNKS: usize = 12;
const WORDS: usize = CHUNKS * CHUNK_BYTES / 8;
const PATIENCE: Duration = Duration::from_secs(120);

fn proceed(_: cowslip::image::Progress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

fn word(i: usize) -> u64 {
    (i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("cowslip-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn image(&self) -> PathBuf {
        let arena = Arena::new(ByteCount::mib(64)).unwrap();
        let mut words = arena.slice::<u64>(WORDS).unwrap();
        words.iter_mut().enumerate().for_each(|(i, value)| *value = word(i));
        let path = self.0.join("image");
        let view = arena.freeze().unwrap();
        // Compressed, so that no chunk is taken from the page cache as it is.
        let compression: Compression = "lz4".parse().unwrap();
        let options = SaveOptions { compression, ..SaveOptions::default() };
        save(&[&view], &path, &options, &mut proceed).unwrap();
        path
    }

    fn socket(&self) -> PathBuf {
        self.0.join("socket")
    }

    /// Tells each of `clients` clients that it is loading, and then calls `lend`.
    fn serve(
        &self,
        clients: usize,
        lend: impl Fn(&UnixStream) + Send + Sync + 'static,
    ) -> JoinHandle<()> {
        let listener = UnixListener::bind(self.socket()).unwrap();
        std::thread::spawn(move || {
            std::thread::scope(|scope| {
                for _ in 0..clients {
                    let (client, _) = listener.accept().unwrap();
                    let lend = &lend;
                    scope.spawn(move || {
                        let mut request = [0; Request::BYTES];
                        (&client).read_exact(&mut request).unwrap();
                        let request = Request::parse(&request).unwrap();
                        assert!(matches!(request, Request::Content { arena: 0, .. }));
                        Answer::Loading.write(&client).unwrap();
                        lend(&client);
                    });
                }
            });
        })
    }

    fn restore(&self, image: &Path, strategy: Strategy) -> cowslip::Result<Restored> {
        let via = Via::Server(self.socket());
        let options = RestoreOptions { via, strategy, ..RestoreOptions::default() };
        Image::open(image).unwrap().restore(0, &options, &mut proceed)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Reads every word, the last chunk first: each read waits until the chunk is restored.
fn assert_content(restored: &Restored) {
    let range = VirtRange::new(restored.arena().range().start, WORDS * 8);
    #[allow(unsafe_code)]
    // SAFETY: only the test has the arena, and no other reference.
    let words = unsafe { restored.arena().adopt_slice::<u64>(range) }.unwrap();
    for (i, &value) in words.iter().enumerate().rev() {
        assert_eq!(value, word(i), "word {i}");
    }
    std::mem::forget(words);
}

/// Sends the first message of a server: its file.
fn send_file(client: &UnixStream, file: &OwnedFd) {
    socket::send(client.as_fd(), &[0], &[file.as_fd()]).unwrap();
}

/// The chunk that a client asks for; `None` when it has gone.
fn asked(mut client: &UnixStream) -> Option<u64> {
    let mut bytes = [0; 8];
    std::io::Read::read_exact(&mut client, &mut bytes).ok()?;
    Some(u64::from_le_bytes(bytes))
}

fn tell(mut client: &UnixStream, answer: u64) {
    let _ = std::io::Write::write_all(&mut client, &answer.to_le_bytes());
}

fn memfd() -> OwnedFd {
    memfile::memfd("lent", MemfdKind::Shmem, ByteCount::mib(64).0).unwrap()
}

const BROKEN_PIPE: i32 = 32;

#[test]
fn many_have_it_at_once_from_who_loads_it_and_keep_it() {
    let folder = Folder::new("lent-many");
    let image = folder.image();
    let loading = Image::open(&image).unwrap().load(0).unwrap();
    let serving = folder.serve(8, move |client| match loading.lend(client) {
        // On a busy machine it may have waited for long enough: it reads the file itself.
        Err(error) if error.errno() == Some(BROKEN_PIPE) => {}
        lent => lent.unwrap(),
    });
    std::thread::scope(|scope| {
        for i in 0..8 {
            let (folder, image) = (&folder, &image);
            scope.spawn(move || {
                let strategy = [Strategy::Hybrid, Strategy::Eager][i % 2];
                let restored = folder.restore(image, strategy).unwrap();
                assert_ne!(restored.strategy(), Strategy::Resident);
                assert_content(&restored);
                assert!(restored.wait(PATIENCE).unwrap());
                // An arena like any other.
                let copy = folder.0.join(format!("copy-{i}"));
                let view = restored.arena().freeze().unwrap();
                save(&[&view], &copy, &SaveOptions::default(), &mut proceed).unwrap();
                drop(view);
                let again = Image::open(&copy).unwrap();
                let options = RestoreOptions { via: Via::File, ..RestoreOptions::default() };
                assert_content(&again.restore(0, &options, &mut proceed).unwrap());
            });
        }
    });
    serving.join().unwrap();
}

#[test]
fn a_file_that_is_not_what_the_server_says_is_not_taken() {
    let folder = Folder::new("lent-lie");
    let image = folder.image();
    // Claims "It is there", for a file that is a hole: zeroes that were never written.
    let serving = folder.serve(1, |client| {
        send_file(client, &memfd());
        while asked(client).is_some() {
            tell(client, 0);
        }
    });
    let restored = folder.restore(&image, Strategy::Hybrid).unwrap();
    assert_content(&restored);
    assert!(restored.wait(PATIENCE).unwrap());
    drop(restored);
    serving.join().unwrap();
}

#[test]
fn a_server_that_goes_or_says_no_in_the_middle_costs_nothing_but_time() {
    for many in [0, 1, CHUNKS / 2] {
        for says_no in [false, true] {
            let folder = Folder::new(&format!("lent-gone-{many}-{says_no}"));
            let image = folder.image();
            let source = Image::open(&image).unwrap();
            let serving = folder.serve(1, move |client| {
                let file = memfd();
                send_file(client, &file);
                let mut content = vec![0; CHUNK_BYTES];
                let mut left = many;
                while let Some(chunk) = asked(client) {
                    if left > 0 {
                        left -= 1;
                        source.read_chunk(0, chunk as u32, &mut content).unwrap();
                        memfile::write_at(file.as_fd(), &content, chunk * CHUNK_BYTES as u64)
                            .unwrap();
                        tell(client, 0);
                    } else if says_no {
                        tell(client, 1);
                    } else {
                        return;
                    }
                }
            });
            let restored = folder.restore(&image, Strategy::Hybrid).unwrap();
            assert_content(&restored);
            assert!(restored.wait(PATIENCE).unwrap());
            drop(restored);
            serving.join().unwrap();
        }
    }
}

#[test]
fn a_server_that_stops_answering_hangs_nobody() {
    let folder = Folder::new("lent-stalled");
    let image = folder.image();
    // It hears the first question, and then only that the other side has gone.
    let serving = folder.serve(1, |client| {
        send_file(client, &memfd());
        while asked(client).is_some() {}
    });
    let restored = folder.restore(&image, Strategy::Hybrid).unwrap();
    assert_content(&restored);
    assert!(restored.wait(PATIENCE).unwrap());
    serving.join().unwrap();
}

#[test]
fn what_is_no_answer_is_refused() {
    let folder = Folder::new("lent-strange");
    let image = folder.image();
    let short = memfile::memfd("short", MemfdKind::Shmem, 4096).unwrap();
    type Lend = Box<dyn Fn(&UnixStream) + Send + Sync>;
    let answers: [Lend; 3] = [
        Box::new(|mut client| drop(std::io::Write::write_all(&mut client, &[0]))),
        Box::new(|client| drop(client.shutdown(std::net::Shutdown::Both))),
        Box::new(move |client| send_file(client, &short)),
    ];
    for lend in answers {
        let _ = std::fs::remove_file(folder.socket());
        let serving = folder.serve(1, lend);
        let refused = folder.restore(&image, Strategy::Hybrid).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Corrupt, "{refused}");
        serving.join().unwrap();
    }
}

#[test]
fn a_client_that_asks_for_what_there_is_not_is_told_so() {
    let folder = Folder::new("lent-client");
    let image = folder.image();
    let loading = Image::open(&image).unwrap().load(0).unwrap();
    let (client, server) = UnixStream::pair().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| loading.lend(&server).unwrap());
        let (_, files) = socket::receive(client.as_fd(), &mut [0]).unwrap();
        assert_eq!(files.len(), 1);
        assert!(memfile::write_at(files[0].as_fd(), &[1], 0).is_err(), "for reading only");
        let mut content = vec![0; 8];
        for chunk in [u64::MAX, 1 << 32, 32, 3, 0, 3] {
            tell(&client, chunk);
            let answer = asked(&client).unwrap();
            assert_eq!(answer, u64::from(chunk >= 32), "chunk {chunk}");
            if answer == 0 {
                let at = chunk * CHUNK_BYTES as u64;
                memfile::read_exact_at(files[0].as_fd(), &mut content, at).unwrap();
                assert_eq!(content, word(at as usize / 8).to_le_bytes());
            }
        }
        client.shutdown(std::net::Shutdown::Both).unwrap();
    });
    let template = loading.finish().unwrap();
    assert_eq!(template.regions().len(), 1);
}
