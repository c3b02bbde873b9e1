//! A page server, and a client that speaks like `criu lazy-pages`, over a dump that the test wrote byte by byte.

mod support;

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::ops::ControlFlow;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use cowslip::ErrorKind;
use cowslip::image::{Compression, OnProgress, Progress, RestoreOptions, Via};
use cowslip_criu::{ImportOptions, Imported, Memory, Server, import, serve};
use support::{Client, Entries, LAZY_AND_PRESENT, PAGE, PRESENT, pagemap};

const PATIENCE: Duration = Duration::from_secs(120);

/// Neighbours, a gap, a page that `criu restore` reads itself, more than an answer holds, high addresses.
const FIRST: Entries<'static> = &[
    (0x400, 3, LAZY_AND_PRESENT),
    (0x403, 1, PRESENT),
    (0x404, 2, LAZY_AND_PRESENT),
    (0x1000, 1500, LAZY_AND_PRESENT),
    (0x0007_fff0_0000, 2, LAZY_AND_PRESENT),
];
const SECOND: Entries<'static> = &[(0x400, 2, LAZY_AND_PRESENT)];

/// A directory that is removed with this value.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let folder =
            std::env::temp_dir().join(format!("cowslip-criu-{name}-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("dump")).unwrap();
        Self(folder)
    }

    fn dump(&self) -> PathBuf {
        self.0.join("dump")
    }

    fn image(&self) -> PathBuf {
        self.0.join("image")
    }

    fn write(&self, process: u32, pages_id: u64, entries: Entries<'_>) {
        let name = format!("pagemap-{process}.img");
        std::fs::write(self.dump().join(name), pagemap(pages_id, entries, false)).unwrap();
        let present = entries.iter().filter(|entry| entry.2 & PRESENT != 0);
        let pages = present.flat_map(|&(page, count, _)| page..page + count);
        let bytes: Vec<u8> = pages.flat_map(|page| content(process, page)).collect();
        std::fs::write(self.dump().join(format!("pages-{pages_id}.img")), bytes).unwrap();
    }

    /// The dump of two processes, in an image.
    fn import(&self, options: &ImportOptions) -> Imported {
        self.write(70, 1, FIRST);
        self.write(8, 2, SECOND);
        import(&self.dump(), &self.image(), options, proceed()).unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn proceed() -> OnProgress<'static> {
    Box::leak(Box::new(|_: Progress| ControlFlow::Continue(())))
}

/// The content of a page, which differs from that of all others.
fn content(process: u32, page: u64) -> Vec<u8> {
    let words = (0..PAGE as u64 / 8).map(|i| (u64::from(process) << 52) ^ (page << 12) ^ i);
    words.flat_map(u64::to_le_bytes).collect()
}

/// Checks pages that came, and returns their number.
fn checked(process: u32, page: u64, bytes: &[u8]) -> u64 {
    for (i, got) in bytes.chunks_exact(PAGE).enumerate() {
        assert!(got == content(process, page + i as u64), "page {i} from {page:#x}");
    }
    (bytes.len() / PAGE) as u64
}

fn fetch_all(client: &mut Client<impl Read + Write>) {
    for (process, entries) in [(70, FIRST), (8, SECOND)] {
        for &(page, pages, _) in entries.iter().filter(|entry| entry.2 == LAZY_AND_PRESENT) {
            checked(process, page, &client.fetch(process, page, pages));
        }
    }
}

fn options(record: bool) -> RestoreOptions {
    RestoreOptions { record, via: Via::File, ..RestoreOptions::default() }
}

/// The result of a session with a client at the other end, and its messages.
fn session<T: Send>(
    memory: &Memory,
    is_long: bool,
    talk: impl FnOnce(&mut Client<UnixStream>) -> T + Send,
) -> (T, io::Result<u64>, Vec<String>) {
    let (mut server, stream) = UnixStream::pair().unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let told = Mutex::new(Vec::new());
    let (said, served) = std::thread::scope(|scope| {
        let tell = |why: &str| told.lock().unwrap().push(why.to_owned());
        let served = scope.spawn(move || serve(memory, &mut server, &tell));
        let said = {
            let mut client = Client { stream, is_long };
            talk(&mut client)
        };
        (said, served.join().unwrap())
    });
    (said, served.map(|served| served.pages), told.into_inner().unwrap())
}

#[test]
fn every_page_comes_in_both_layouts_and_every_compression() {
    let folder = Folder::new("layouts");
    for compression in [Compression::None, Compression::Lz4, Compression::Zstd(1)] {
        let imported = folder.import(&ImportOptions { compression, rest: None });
        assert_eq!((imported.processes, imported.memory.0), (2, 1509 * PAGE as u64));
        for is_long in [false, true] {
            let memory = Memory::restore(&folder.image(), &options(false)).unwrap();
            let ((), pages, told) = session(&memory, is_long, |client| {
                fetch_all(client);
                client.close();
            });
            assert_eq!((pages.unwrap(), told), (1509, vec![]));
        }
    }
}

#[test]
fn answers_come_in_the_order_of_requests_and_are_never_longer() {
    let folder = Folder::new("order");
    folder.import(&ImportOptions::default());
    let memory = Memory::restore(&folder.image(), &options(false)).unwrap();
    let ((), pages, _) = session(&memory, false, |client| {
        // A long one of CRIU's own, faults behind it, one across the end of a run.
        client.get(70, 0x1000, 1024);
        client.get(70, 0x15db, 1);
        client.get(8, 0x401, 9);
        client.get(70, 0x0007_fff0_0001, 1);
        let first = checked(70, 0x1000, &client.receive(70, 0x1000));
        assert!((1..=1024).contains(&first));
        assert_eq!(checked(70, 0x15db, &client.receive(70, 0x15db)), 1);
        assert_eq!(checked(8, 0x401, &client.receive(8, 0x401)), 1);
        assert_eq!(checked(70, 0x0007_fff0_0001, &client.receive(70, 0x0007_fff0_0001)), 1);
        // A request that comes in two pieces.
        let bytes = [7_u32, 1].map(u32::to_ne_bytes).concat();
        client.stream.write_all(&bytes).unwrap();
        client.stream.write_all(&[0x400_000, 8_u64].map(u64::to_ne_bytes).concat()).unwrap();
        assert_eq!(checked(8, 0x400, &client.receive(8, 0x400)), 1);
    });
    assert!(pages.unwrap() > 4);
}

#[test]
fn what_the_image_does_not_have_is_never_answered() {
    let folder = Folder::new("missing");
    folder.import(&ImportOptions::default());
    let memory = Memory::restore(&folder.image(), &options(false)).unwrap();
    // Not dumped, read by `criu restore` itself, in another process, beyond all addresses.
    for (process, page) in [(70, 0x3ff), (70, 0x403), (70, 0x406), (9, 0x400), (8, u64::MAX >> 12)]
    {
        let (rest, pages, told) = session(&memory, false, |client| {
            client.fetch(8, 0x400, 2);
            client.get(process, page, 1);
            client.stream.shutdown(std::net::Shutdown::Write).unwrap();
            let mut rest = Vec::new();
            client.stream.read_to_end(&mut rest).unwrap();
            rest
        });
        assert_eq!((rest.len(), pages.unwrap()), (0, 2), "{process} {page:#x}");
        assert!(told.len() == 1 && told[0].contains("does not have"), "{told:?}");
    }
}

#[test]
fn what_is_no_request_ends_the_session() {
    let folder = Folder::new("noise");
    folder.import(&ImportOptions::default());
    let memory = Memory::restore(&folder.image(), &options(false)).unwrap();
    // Writes to a page server, an unknown command, no pages, half a page, a request cut short, TLS.
    let words = |words: [u32; 6]| words.map(u32::to_ne_bytes).concat();
    for bytes in [
        words([3, 0, 0, 0, 0x4601, 0]),
        words([99, 1, 0x400_000, 0, 8, 0]),
        words([7, 0, 0x400_000, 0, 8, 0]),
        words([7, 1, 0x400_800, 0, 8, 0]),
        words([7, 1, 0x400_000, 0, 8, 0])[..20].to_vec(),
        [&[0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3][..], &[7; 60]].concat(),
    ] {
        let (rest, pages, _) = session(&memory, false, |client| {
            client.stream.write_all(&bytes).unwrap();
            client.stream.shutdown(std::net::Shutdown::Write).unwrap();
            let mut rest = Vec::new();
            // Bytes that were not read make the end of the stream an error.
            let _ = client.stream.read_to_end(&mut rest);
            rest
        });
        assert!(rest.is_empty(), "{bytes:?}");
        let kind = pages.unwrap_err().kind();
        assert!(
            matches!(kind, io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof),
            "{kind}"
        );
    }
}

#[test]
fn a_damaged_chunk_is_told_and_never_sent() {
    let folder = Folder::new("damage");
    folder.import(&ImportOptions::default());
    // The first bytes of the last chunk are in the content of page 0x1000 of the process that comes second.
    let mut bytes = std::fs::read(folder.image()).unwrap();
    let wanted = &content(70, 0x1500)[..64];
    let at = bytes.windows(64).position(|window| window == wanted).unwrap();
    bytes[at] ^= 1;
    std::fs::write(folder.image(), bytes).unwrap();
    for record in [false, true] {
        let memory = match Memory::restore(&folder.image(), &options(record)) {
            Ok(memory) => memory,
            Err(error) if error.kind() == ErrorKind::Corrupt => continue, // an eager restore
            Err(error) => panic!("{error}"),
        };
        let (rest, _, told) = session(&memory, false, |client| {
            client.get(70, 0x1500, 1);
            client.stream.shutdown(std::net::Shutdown::Write).unwrap();
            let mut rest = Vec::new();
            client.stream.read_to_end(&mut rest).unwrap();
            rest.len()
        });
        assert!(rest <= 24, "{rest} bytes of a damaged chunk");
        assert!(told.len() == 1 && told[0].contains("0x1500000"), "{told:?}");
    }
}

#[test]
fn faults_are_recorded_and_what_criu_asks_on_its_own_is_not() {
    let folder = Folder::new("record");
    folder.import(&ImportOptions::default());
    let record = folder.0.join("image.working-set");
    let memory = match Memory::restore(&folder.image(), &options(true)) {
        Err(error) if matches!(error.kind(), ErrorKind::Denied | ErrorKind::Unsupported) => {
            return println!("SKIPPED: userfaultfd: {error}");
        }
        memory => memory.unwrap(),
    };
    let ((), pages, told) = session(&memory, false, |client| {
        client.fetch(70, 0x1000, 1500);
        client.fetch(8, 0x400, 1);
    });
    assert_eq!((pages.unwrap(), told), (1501, vec![]));
    memory.finish_recording().unwrap();
    let bytes = std::fs::read(&record).unwrap();
    // A header of 64 bytes, then an arena's and a chunk's number for each touch.
    let touches = bytes[64..].chunks(8);
    let touched: Vec<u32> =
        touches.map(|touch| u32::from_le_bytes(touch[4..].try_into().unwrap())).collect();
    assert_eq!(touched, [0]);
}

#[test]
fn many_clients_at_a_port_each_get_all_of_it_and_a_stop_waits_for_them() {
    let folder = Folder::new("port");
    folder.import(&ImportOptions::default());
    let memory = Memory::restore(&folder.image(), &options(false)).unwrap();
    let server = Server::bind("127.0.0.1:0").unwrap();
    let address: SocketAddr = server.address().unwrap();
    let (stopped, mut stop) = io::pipe().unwrap();
    let sessions = Mutex::new(Vec::new());
    let ended = |served: cowslip_criu::Served| sessions.lock().unwrap().push(served.pages);
    std::thread::scope(|scope| {
        let (server, memory, ended) = (&server, &memory, &ended);
        let running =
            scope.spawn(move || server.run(memory, stopped.as_fd(), &|why| panic!("{why}"), ended));
        let client = |is_long| {
            let stream = TcpStream::connect(address).unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            Client { stream, is_long }
        };
        let clients: Vec<_> =
            (0..8).map(|i| scope.spawn(move || fetch_all(&mut client(i % 2 == 0)))).collect();
        clients.into_iter().for_each(|client| client.join().unwrap());
        let mut last = client(false);
        last.fetch(8, 0x400, 1);
        stop.write_all(&[1]).unwrap();
        fetch_all(&mut last);
        last.close();
        drop(last);
        running.join().unwrap().unwrap();
    });
    let mut sessions = sessions.into_inner().unwrap();
    sessions.sort_unstable();
    assert_eq!(sessions, [[1509; 8].as_slice(), &[1510]].concat());
}

#[test]
fn the_rest_of_a_dump_is_what_a_lazy_dump_would_be() {
    let folder = Folder::new("rest");
    std::fs::write(folder.dump().join("core-70.img"), b"registers").unwrap();
    let rest = folder.0.join("rest");
    folder.import(&ImportOptions { rest: Some(rest.clone()), ..ImportOptions::default() });
    assert_eq!(rest.metadata().unwrap().mode() & 0o777, 0o700);
    let read = |name: &str| std::fs::read(rest.join(name)).unwrap();
    assert_eq!(read("core-70.img"), b"registers");
    assert!(read("pages-1.img") == content(70, 0x403) && read("pages-2.img").is_empty());
    let lazy: Vec<_> = FIRST
        .iter()
        .map(|&(page, pages, flags)| (page, pages, if flags == PRESENT { PRESENT } else { 2 }))
        .collect();
    assert_eq!(read("pagemap-70.img"), pagemap(1, &lazy, false));
    let again = import(&rest, &folder.0.join("again"), &ImportOptions::default(), proceed());
    assert_eq!(again.unwrap_err().kind(), ErrorKind::Usage);
}

#[test]
fn long_counts_are_read() {
    let folder = Folder::new("long");
    folder.write(8, 2, SECOND);
    std::fs::write(folder.dump().join("pagemap-8.img"), pagemap(2, SECOND, true)).unwrap();
    let done = import(&folder.dump(), &folder.image(), &ImportOptions::default(), proceed());
    assert_eq!(done.unwrap().memory.0, 2 * PAGE as u64);
}

fn kind_of_import(folder: &Folder) -> ErrorKind {
    let image: &Path = &folder.image();
    let done = import(&folder.dump(), image, &ImportOptions::default(), proceed());
    assert!(!image.exists());
    done.unwrap_err().kind()
}

#[test]
fn a_damaged_dump_is_refused() {
    let folder = Folder::new("refused");
    assert_eq!(kind_of_import(&folder), ErrorKind::Usage);
    let whole = pagemap(2, SECOND, false);
    let mut wrong_magic = whole.clone();
    wrong_magic[0] ^= 1;
    for bytes in [
        whole[..whole.len() - 1].to_vec(),
        whole[..6].to_vec(),
        wrong_magic,
        pagemap(2, &[(0x400, 1, LAZY_AND_PRESENT), (0x3ff, 1, LAZY_AND_PRESENT)], false),
        pagemap(2, &[(0x400, 2, LAZY_AND_PRESENT), (0x401, 1, LAZY_AND_PRESENT)], false),
        pagemap(2, &[(u64::MAX / 4096, 1, LAZY_AND_PRESENT)], false),
        // More pages than the file has.
        pagemap(2, &[(0x400, 1 << 43, LAZY_AND_PRESENT)], true),
        // Its pages are in an earlier dump.
        pagemap(2, &[(0x400, 1, 1)], false),
    ] {
        folder.write(8, 2, SECOND);
        std::fs::write(folder.dump().join("pagemap-8.img"), &bytes).unwrap();
        assert_eq!(kind_of_import(&folder), ErrorKind::Corrupt, "{bytes:?}");
    }
    folder.write(8, 2, SECOND);
    std::fs::write(folder.dump().join("pages-2.img"), [7; PAGE]).unwrap();
    assert_eq!(kind_of_import(&folder), ErrorKind::Corrupt);
    // Two processes have the same.
    folder.write(8, 2, SECOND);
    folder.write(9, 2, SECOND);
    assert_eq!(kind_of_import(&folder), ErrorKind::Corrupt);
}

#[test]
fn an_image_of_something_else_is_refused() {
    let folder = Folder::new("other");
    let arena = cowslip::Arena::new(cowslip::units::ByteCount::mib(2)).unwrap();
    let frozen = arena.freeze().unwrap();
    cowslip::image::save(&[&frozen], &folder.image(), &Default::default(), proceed()).unwrap();
    let refused = Memory::restore(&folder.image(), &options(false)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Corrupt);
}
