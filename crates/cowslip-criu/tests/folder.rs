//! Checkpoints of a program that runs, without CRIU: a holder's memory is dumped by the test, kept in folders that are
//! based on each other, and read back as `criu lazy-pages` reads it.

mod support;

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::ops::ControlFlow;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use age::secrecy::ExposeSecret;
use age::x25519::Identity;
use cowslip::image::{Compression, Image, Progress, RestoreOptions, Root, SaveOptions, Via, save};
use cowslip::units::ByteCount;
use cowslip::{Arena, Error, ErrorKind};
use cowslip_criu::{About, FolderOptions, Imported, Kept, Keys, Memory, NewCheckpoint, serve};
use cowslip_process::{Holder, look};
use support::{Client, LAZY_AND_PRESENT, PAGE, PRESENT, pagemap};

const PATIENCE: Duration = Duration::from_secs(120);
const SECRET: &[u8] = b"planted in the memory of the program";

/// Memory of 8 MiB that differs page by page. Each line on standard input writes to 40 of them.
const PROGRAM: &str = r#"
import random, sys
pages = 2048
memory = bytearray(b''.join((b'%020d' % page) * 205 for page in range(pages))[:pages * 4096])
memory[:36] = b'planted in the memory of the program'
print('ready', flush=True)
for line in sys.stdin:
    random.seed(line)
    for page in random.sample(range(1, pages), 40):
        memory[page * 4096 + 1000:page * 4096 + 1010] = b'%010d' % random.randrange(10 ** 10)
    print('written', flush=True)
"#;

/// A directory that is removed with this value.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let name = format!("cowslip-folder-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// A key's file.
    fn key(&self, key: &Identity) -> PathBuf {
        let path = self.at("key");
        fs::write(&path, format!("# a key\n{}\n", key.to_string().expose_secret())).unwrap();
        path
    }

    /// Keys to write and to read with.
    fn keys(&self, key: &Identity) -> Keys {
        let mut keys = Keys::default();
        keys.add_key_file(&self.key(key)).unwrap();
        keys
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The program, which does one thing at a time.
struct Program(Child, BufReader<std::process::ChildStdout>);

impl Program {
    fn start() -> Option<Self> {
        let mut command = Command::new("python3");
        command.args(["-c", PROGRAM]).stdin(Stdio::piped()).stdout(Stdio::piped());
        match command.spawn() {
            Err(error) => {
                println!("SKIPPED: python3: {error}");
                None
            }
            Ok(mut child) => {
                let output = BufReader::new(child.stdout.take().unwrap());
                let mut program = Self(child, output);
                program.answers("ready");
                Some(program)
            }
        }
    }

    fn answers(&mut self, word: &str) {
        let mut line = String::new();
        self.1.read_line(&mut line).unwrap();
        assert_eq!(line.trim(), word);
    }

    fn write(&mut self, round: u32) {
        writeln!(self.0.stdin.as_mut().unwrap(), "{round}").unwrap();
        self.answers("written");
    }

    /// Its memory of one instant; `None`, reported as skipped, without the right to trace it.
    fn hold(&self) -> Option<Snapshot> {
        match look(self.0.id() as i32).and_then(|plan| plan.hold()) {
            Err(error) if error.kind() == ErrorKind::Denied => {
                println!("SKIPPED: ptrace: {error}");
                None
            }
            held => Some(Snapshot::new(held.unwrap())),
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Pages of a holder that are not zeroes: the first of neighbours, and their content.
struct Snapshot {
    process: u32,
    holder: Holder,
    runs: Vec<(u64, Vec<u8>)>,
}

impl Snapshot {
    fn new(holder: Holder) -> Self {
        let mut runs: Vec<(u64, Vec<u8>)> = Vec::new();
        let maps = fs::read_to_string(format!("/proc/{}/maps", holder.pid())).unwrap();
        let memory = File::open(format!("/proc/{}/mem", holder.pid())).unwrap();
        for map in maps.lines().filter(|map| map.contains(" rw-p ")) {
            let (start, rest) = map.split_once('-').unwrap();
            let end = rest.split_once(' ').unwrap().0;
            let number = |text| usize::from_str_radix(text, 16).unwrap();
            let mut page = vec![0; PAGE];
            for address in (number(start)..number(end)).step_by(PAGE) {
                memory.read_exact_at(&mut page, address as u64).unwrap();
                if page.iter().all(|byte| *byte == 0) {
                    continue;
                }
                let number = (address / PAGE) as u64;
                match runs.last_mut() {
                    Some((first, content)) if *first + (content.len() / PAGE) as u64 == number => {
                        content.extend(&page);
                    }
                    _ => runs.push((number, page.clone())),
                }
            }
        }
        Self { process: holder.program() as u32, holder, runs }
    }

    fn pages(&self) -> u64 {
        self.runs.iter().map(|(_, content)| (content.len() / PAGE) as u64).sum()
    }

    /// Keeps it as `cowslip checkpoint` does. A page that `criu restore` reads itself is among them.
    fn keep(&self, folder: &Path, options: &FolderOptions) -> Result<Imported, Error> {
        let entries = self
            .runs
            .iter()
            .map(|(page, content)| (*page, (content.len() / PAGE) as u64, LAZY_AND_PRESENT));
        let entries: Vec<_> = entries.chain([(1 << 40, 1, PRESENT)]).collect();
        let mut pages: Vec<u8> =
            self.runs.iter().flat_map(|(_, content)| content.clone()).collect();
        pages.extend([9; PAGE]);
        let about = About {
            pid: self.process as i32,
            threads: vec![self.process as i32],
            name: self.holder.threads()[0].name.clone(),
            pause_ns: 1,
            criu: "4.2".into(),
        };
        keep(folder, options, &about, &pagemap(1, &entries, false), &pages)
    }

    /// Compares all of it with a memory, by its page server.
    fn check(&self, memory: &Memory) {
        let live = File::open(format!("/proc/{}/mem", self.holder.pid())).unwrap();
        talk(memory, |client| {
            for (page, content) in &self.runs {
                let got = client.fetch(self.process, *page, (content.len() / PAGE) as u64);
                let mut now = vec![0; content.len()];
                live.read_exact_at(&mut now, page * PAGE as u64).unwrap();
                assert!(got == now, "{} pages from {page:#x}", content.len() / PAGE);
            }
            client.close();
        });
    }
}

fn keep(
    folder: &Path,
    options: &FolderOptions,
    about: &About,
    pagemap: &[u8],
    pages: &[u8],
) -> Result<Imported, Error> {
    let new = NewCheckpoint::create(folder, options)?;
    let pid = about.pid;
    fs::write(new.dump().join(format!("pagemap-{pid}.img")), pagemap).unwrap();
    fs::write(new.dump().join("pages-1.img"), pages).unwrap();
    fs::write(new.dump().join(format!("core-{pid}.img")), SECRET).unwrap();
    new.finish(about, &mut |_: Progress| ControlFlow::Continue(()))
}

fn talk(memory: &Memory, talk: impl FnOnce(&mut Client<UnixStream>)) {
    let (mut server, stream) = UnixStream::pair().unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    std::thread::scope(|scope| {
        let served = scope.spawn(move || serve(memory, &mut server, &|why| panic!("{why}")));
        talk(&mut Client { stream, is_long: true });
        served.join().unwrap().unwrap();
    });
}

fn memory(folder: &Path, keys: &Keys, places: &[PathBuf]) -> Result<Memory, Error> {
    let options = RestoreOptions { via: Via::File, ..RestoreOptions::default() };
    Kept::open(folder, keys, places)?.into_memory(&options)
}

/// The error of opening a checkpoint.
fn refusal(folder: &Path, keys: &Keys, places: &[PathBuf]) -> (ErrorKind, String) {
    let error = Kept::open(folder, keys, places).map(drop).unwrap_err();
    (error.kind(), error.to_string())
}

/// Options with a base, if one is named.
fn based_on(base: Option<&Path>, keys: &Keys) -> FolderOptions {
    let bases = base.iter().map(|base| base.to_path_buf()).collect();
    FolderOptions { compression: Compression::Lz4, bases, keys: keys.clone() }
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for file in fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        if path.is_dir() { files.extend(self::files(&path)) } else { files.push(path) }
    }
    files
}

fn has(bytes: &[u8], wanted: &[u8]) -> bool {
    bytes.windows(wanted.len()).any(|window| window == wanted)
}

#[test]
fn a_program_is_kept_day_by_day_and_each_day_comes_back() {
    for key in [None, Some(Identity::generate())] {
        let Some(mut program) = Program::start() else { return };
        let folder = Folder::new(if key.is_some() { "secret-days" } else { "days" });
        let keys = key.as_ref().map_or(Keys::default(), |key| folder.keys(key));
        let days = [0, 1, 2].map(|day| folder.at(&format!("day-{day}")));
        let mut snapshots = Vec::new();
        for day in 0..3 {
            program.write(day);
            let Some(snapshot) = program.hold() else { return };
            let base = day.checked_sub(1).map(|day| &*days[day as usize]);
            let done = snapshot.keep(&days[day as usize], &based_on(base, &keys)).unwrap();
            assert_eq!(done.memory.0, snapshot.pages() * PAGE as u64);
            // The interpreter writes pages of its own.
            let most = if day == 0 { u64::MAX } else { 400 };
            let own = done.own_memory.0 / PAGE as u64;
            assert!((40..most).contains(&own), "day {day}: {own} of {} pages", snapshot.pages());
            snapshots.push(snapshot);
        }
        for (day, snapshot) in days.iter().zip(&snapshots) {
            snapshot.check(&memory(day, &keys, &[]).unwrap());
        }
        let about = Kept::open(&days[2], &keys, &[]).unwrap().about().clone();
        assert_eq!((about.pid, &*about.criu), (program.0.id() as i32, "4.2"));
        // Memory, CRIU's files and their names can be read, or cannot.
        let (pid, kept) = (about.pid.to_string(), files(&days[0]));
        let is_named = kept.iter().any(|file| file.to_string_lossy().contains(&format!("-{pid}.")));
        let contents: Vec<_> = kept.iter().map(|file| fs::read(file).unwrap()).collect();
        let is_anywhere = |wanted: &[u8]| contents.iter().any(|bytes| has(bytes, wanted));
        for found in [is_named, is_anywhere(SECRET), is_anywhere(b"COWSLIPI")] {
            assert_eq!(found, key.is_none());
        }

        // A base elsewhere, and another in its place.
        let moved = folder.at("moved");
        fs::rename(&days[0], &moved).unwrap();
        let identity = image(&moved, key.as_ref()).identity().to_string();
        let (kind, told) = refusal(&days[2], &keys, &[]);
        assert_eq!(kind, ErrorKind::Corrupt);
        assert!(told.contains(&identity) && told.contains("--base"), "{told}");
        snapshots[2].check(&memory(&days[2], &keys, std::slice::from_ref(&moved)).unwrap());
        snapshots[0].keep(&days[0], &based_on(None, &keys)).unwrap();
        let (kind, told) = refusal(&days[2], &keys, &[]);
        assert_eq!(kind, ErrorKind::Corrupt);
        assert!(told.contains(&identity) && told.contains("day-0 is "), "{told}");
        // All in another place.
        fs::remove_dir_all(&days[0]).unwrap();
        fs::rename(&moved, &days[0]).unwrap();
        let other = folder.at("other");
        fs::create_dir(&other).unwrap();
        for day in &days {
            fs::rename(day, other.join(day.file_name().unwrap())).unwrap();
        }
        snapshots[2].check(&memory(&other.join("day-2"), &keys, &[]).unwrap());
    }
}

/// The image in a checkpoint's folder. That of an encrypted one is decrypted, as by `age --decrypt`.
fn image(folder: &Path, key: Option<&Identity>) -> Image {
    let Some(key) = key else { return Image::open(&folder.join("memory.image")).unwrap() };
    let bytes = fs::read(folder.join("memory.image.age")).unwrap();
    let path = folder.with_file_name("decrypted");
    fs::write(&path, age::decrypt(key, &bytes).unwrap()).unwrap();
    let image = Image::open(&path).unwrap();
    fs::remove_file(path).unwrap();
    image
}

/// Keeps a process of two pages, of which the second is all of a byte.
fn small(folder: &Path, options: &FolderOptions, byte: u8) -> Result<Imported, Error> {
    let threads = vec![70];
    let about = About { pid: 70, threads, name: "small".into(), pause_ns: 1, criu: "4.2".into() };
    let pages = [[7; PAGE], [byte; PAGE]].concat();
    keep(folder, options, &about, &pagemap(1, &[(0x400, 2, LAZY_AND_PRESENT)], false), &pages)
}

fn check_small(memory: &Memory, byte: u8) {
    talk(memory, |client| {
        assert!(client.fetch(70, 0x400, 2) == [[7; PAGE], [byte; PAGE]].concat());
    });
}

#[test]
fn what_no_page_is_needed_of_is_no_base() {
    let (folder, keys) = (Folder::new("needed"), Keys::default());
    let [first, second, third] = ["first", "second", "third"].map(|name| folder.at(name));
    small(&first, &based_on(None, &keys), 1).unwrap();
    let done = small(&second, &based_on(Some(&first), &keys), 2).unwrap();
    assert_eq!(done.own_memory.0, PAGE as u64);
    // All of it is in the second, which it does not need the first for but for one page.
    let done = small(&third, &based_on(Some(&second), &keys), 2).unwrap();
    assert_eq!((done.own_memory.0, done.memory.0), (0, 2 * PAGE as u64));
    check_small(&memory(&third, &keys, &[]).unwrap(), 2);
    fs::remove_dir_all(&third).unwrap();
    // The base is not asked for a process that it does not have at these addresses.
    let threads = vec![70];
    let about = About { pid: 70, threads, name: "a".into(), pause_ns: 1, criu: "4.2".into() };
    let pagemap = pagemap(1, &[(0x900, 1, LAZY_AND_PRESENT)], false);
    keep(&third, &based_on(Some(&second), &keys), &about, &pagemap, &[7; PAGE]).unwrap();
    fs::remove_dir_all(&second).unwrap();
    fs::remove_dir_all(&first).unwrap();
    let memory = memory(&third, &keys, &[]).unwrap();
    talk(&memory, |client| assert!(client.fetch(70, 0x900, 1) == [7; PAGE]));
}

#[test]
fn bases_that_cannot_be_are_refused_by_name() {
    let (folder, keys) = (Folder::new("refused"), Keys::default());
    let first = folder.at("0");
    small(&first, &based_on(None, &keys), 0).unwrap();
    let refused = |folder: &Path, base: &Path, keys: &Keys| {
        let options = based_on(Some(base), keys);
        let error = NewCheckpoint::create(folder, &options).map(drop).unwrap_err();
        (error.kind(), error.to_string())
    };
    let (kind, told) = refused(&first, &first, &keys);
    assert!(kind == ErrorKind::Usage && told.contains("it exists"), "{told}");
    let (kind, told) = refused(&folder.at("new"), &folder.at("nothing"), &keys);
    assert!(kind == ErrorKind::File && told.contains("nothing/process.json"), "{told}");

    let mut last = first.clone();
    for number in 1..=32_u64 {
        let next = folder.at(&number.to_string());
        // Page by page, so that each has a page that the next needs.
        let about = About {
            pid: 70,
            threads: vec![70],
            name: "chain".into(),
            pause_ns: 1,
            criu: "4.2".into(),
        };
        let pages: Vec<u8> = (0..=number).flat_map(|page| [page as u8; PAGE]).collect();
        let entry = [(0x401, number + 1, LAZY_AND_PRESENT)];
        let pagemap = pagemap(1, &entry, false);
        let done = keep(&next, &based_on(Some(&last), &keys), &about, &pagemap, &pages).unwrap();
        assert_eq!(done.own_memory.0, PAGE as u64);
        last = next;
    }
    let expected: Vec<u8> = (0..=32).flat_map(|page| [page; PAGE]).collect();
    talk(&memory(&last, &keys, &[]).unwrap(), |client| {
        assert!(client.fetch(70, 0x401, 33) == expected);
    });
    let (kind, told) = refused(&folder.at("new"), &last, &keys);
    assert!(kind == ErrorKind::Usage && told.contains("32 bases"), "{told}");

    let about = first.join("process.json");
    let text = fs::read_to_string(&about).unwrap();
    for (from, to) in
        [("cowslip.process/1", "cowslip.process/2"), ("{", r#"{"encryption": "later","#)]
    {
        fs::write(&about, text.replacen(from, to, 1)).unwrap();
        let (kind, told) = refused(&folder.at("new"), &first, &keys);
        assert!(kind == ErrorKind::Corrupt && told.contains(&to[3..10]), "{told}");
    }
    fs::write(&about, text).unwrap();
    // A refused checkpoint leaves no file.
    assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 33);
}

#[test]
fn words_of_a_stranger_are_refused() {
    let (folder, keys) = (Folder::new("words"), Keys::default());
    let [base, forged] = ["base", "forged"].map(|name| folder.at(name));
    small(&base, &based_on(None, &keys), 1).unwrap();
    small(&forged, &based_on(Some(&base), &keys), 2).unwrap();
    let identity = image(&base, None).identity();
    let arena = Arena::new(ByteCount::mib(2)).unwrap();
    let bytes = arena.slice::<u8>(2 * PAGE).unwrap();
    let frozen = arena.freeze().unwrap();
    let forge = |words: &[(&str, String)], pages: usize| {
        let root = Root {
            arena: 0,
            offset_bytes: (bytes.range().start - arena.range().start) as u64,
            length_bytes: (pages * PAGE) as u64,
        };
        let words = words.iter().map(|(key, word)| ((*key).to_owned(), word.clone()));
        let roots = [("criu.pages".to_owned(), root)].into();
        let options = SaveOptions { roots, user: words.collect(), ..SaveOptions::default() };
        let proceed = &mut |_: Progress| ControlFlow::Continue(());
        save(&[&frozen], &forged.join("memory.image"), &options, proceed).unwrap();
    };
    let pages = |word: &str| ("criu.pages.70", word.to_owned());
    let named = |path: &str| format!("{identity} {path}");
    forge(&[pages("400+1 0+1@1:1"), ("criu.base.1", named("../base"))], 1);
    memory(&forged, &keys, &[]).unwrap();
    for (words, own) in [
        // No base, another than it has, more than it has pages.
        (vec![pages("400+1 0+1@1:1")], 1),
        (vec![pages("400+1 0+1@2:1"), ("criu.base.1", named("../base"))], 1),
        (vec![pages("400+1 0+1@1:2"), ("criu.base.1", named("../base"))], 1),
        (vec![pages("400+1 0+1@1:1"), ("criu.base.2", named("../base"))], 1),
        // One twice, a path that is no way from here, no path.
        (
            vec![
                pages("400+1 0+1@1:1"),
                ("criu.base.1", named("../base")),
                ("criu.base.2", named("../base")),
            ],
            1,
        ),
        (vec![pages("400+1 0+1@1:1"), ("criu.base.1", named(base.to_str().unwrap()))], 1),
        (vec![pages("400+1 0+1@1:1"), ("criu.base.1", identity.to_string())], 1),
        // Itself, which is another identity each time.
        (vec![pages("400+1 0+1@1:1"), ("criu.base.1", named("../forged"))], 1),
        // Fewer pages than it says, more, none at all.
        (vec![pages("400+2")], 1),
        (vec![pages("400+1")], 2),
        (vec![], 1),
        ((1..=33).map(|_| pages("400+1")).chain(many(&identity.to_string())).collect(), 1),
    ] {
        forge(&words, own);
        let (kind, told) = refusal(&forged, &keys, &[]);
        assert_eq!(kind, ErrorKind::Corrupt, "{words:?}: {told}");
    }
}

/// The names of more bases than there may be.
fn many(identity: &str) -> Vec<(&'static str, String)> {
    let names = (1..=33).map(|number| &*format!("criu.base.{number}").leak());
    names.map(|name| (name, format!("{identity} ../base"))).collect()
}

#[test]
fn an_encrypted_checkpoint_opens_with_its_keys_alone() {
    let folder = Folder::new("keys");
    let [key, second, wrong] = [(); 3].map(|()| Identity::generate());
    let mut writing = Keys::default();
    writing.add_recipient(&key.to_public().to_string()).unwrap();
    let list = folder.at("recipients");
    fs::write(&list, format!("# all\n{}\n", second.to_public())).unwrap();
    writing.add_recipients_file(&list).unwrap();
    let kept = folder.at("kept");
    small(&kept, &based_on(None, &writing), 1).unwrap();
    for key in [&key, &second] {
        check_small(&memory(&kept, &folder.keys(key), &[]).unwrap(), 1);
    }
    let (kind, told) = refusal(&kept, &folder.keys(&wrong), &[]);
    assert!(kind == ErrorKind::Denied && told.contains("other keys"), "{told}");
    let (kind, told) = refusal(&kept, &writing, &[]);
    assert!(kind == ErrorKind::Usage && told.contains("--identity"), "{told}");
    let mut names: Vec<_> =
        files(&kept).iter().map(|file| file.file_name().unwrap().to_owned()).collect();
    names.sort();
    assert_eq!(names, ["memory.image.age", "process.json", "state.age"]);
    let text = fs::read_to_string(kept.join("process.json")).unwrap();
    assert_eq!(text.lines().count(), 4, "{text}");
    let nothing = folder.at("nothing");
    fs::write(&nothing, "").unwrap();
    assert_eq!(writing.add_key_file(&nothing).unwrap_err().kind(), ErrorKind::Usage);

    // A base needs a key too, and nothing of an encrypted one goes into a plain one.
    let next = folder.at("next");
    let kind = |keys: &Keys| small(&next, &based_on(Some(&kept), keys), 2).unwrap_err().kind();
    assert_eq!(kind(&writing), ErrorKind::Usage);
    assert_eq!(kind(&folder.keys(&wrong)), ErrorKind::Denied);
    let mut reading = Keys::default();
    reading.add_identities(&folder.key(&key)).unwrap();
    assert_eq!(kind(&reading), ErrorKind::Usage);
    writing.add_identities(&folder.key(&second)).unwrap();
    let done = small(&next, &based_on(Some(&kept), &writing), 2).unwrap();
    assert_eq!(done.own_memory.0, PAGE as u64);
    check_small(&memory(&next, &folder.keys(&key), &[]).unwrap(), 2);
    // A plain base may be of an encrypted one.
    let plain = folder.at("plain");
    small(&plain, &based_on(None, &Keys::default()), 1).unwrap();
    fs::remove_dir_all(&next).unwrap();
    small(&next, &based_on(Some(&plain), &writing), 2).unwrap();
    check_small(&memory(&next, &folder.keys(&key), &[]).unwrap(), 2);
}

#[test]
fn damage_is_told_and_never_served() {
    let folder = Folder::new("damage");
    let key = Identity::generate();
    let kept = folder.at("kept");
    let keys = folder.keys(&key);
    small(&kept, &based_on(None, &keys), 1).unwrap();
    for name in ["memory.image.age", "state.age"] {
        let path = kept.join(name);
        let whole = fs::read(&path).unwrap();
        let refused = |bytes: &[u8], case: &str| {
            fs::write(&path, bytes).unwrap();
            let eager = RestoreOptions {
                via: Via::File,
                strategy: cowslip::image::Strategy::Eager,
                ..RestoreOptions::default()
            };
            let opened = Kept::open(&kept, &keys, &[]);
            let error = opened.and_then(|kept| kept.into_memory(&eager)).map(drop).unwrap_err();
            // A damaged header may be one for other keys.
            let kinds = [ErrorKind::Corrupt, ErrorKind::Denied];
            assert!(kinds.contains(&error.kind()), "{name}, {case}: {error}");
        };
        for length in [0, 1, 21, 100, whole.len() / 2, whole.len() - 17, whole.len() - 1] {
            refused(&whole[..length], &format!("cut to {length}"));
        }
        for at in (0..whole.len()).step_by(whole.len() / 60) {
            let mut bytes = whole.clone();
            bytes[at] ^= 1;
            refused(&bytes, &format!("byte {at}"));
        }
        refused(&[&whole[..], &[0]].concat(), "longer");
        fs::write(&path, &whole).unwrap();
    }
    check_small(&memory(&kept, &keys, &[]).unwrap(), 1);
    assert_eq!(fs::metadata(&kept).unwrap().mode() & 0o777, 0o700);
}
