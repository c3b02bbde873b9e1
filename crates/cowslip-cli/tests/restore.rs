//! `cowslip restore`: the image's content dumped, inspected and served.

mod support;

use std::ops::ControlFlow;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use cowslip::image::{Root, SaveOptions, save};
use cowslip::units::ByteCount;
use cowslip::{Arena, Prot};
use support::{COWSLIP, Folder, Ran, run};

const WORDS: usize = 3 << 18;
const PATIENCE: Duration = Duration::from_secs(60);

/// An image of 6 MiB of numbers and a guard, and the offset of the numbers from the arena's start.
fn image(folder: &Folder) -> (PathBuf, usize) {
    let path = folder.0.join("image");
    let arena = Arena::new(ByteCount::mib(16)).unwrap();
    let mut slice = arena.slice::<u64>(WORDS).unwrap();
    slice.iter_mut().enumerate().for_each(|(i, value)| *value = i as u64 + 1);
    let _guard = arena.allocate(ByteCount::mib(1), Prot::NONE).unwrap();
    let offset = slice.range().start - arena.range().start;
    let mut options = SaveOptions::default();
    let length_bytes = slice.range().len as u64;
    options
        .roots
        .insert("numbers".into(), Root { arena: 0, offset_bytes: offset as u64, length_bytes });
    let mut proceed = |_| ControlFlow::Continue(());
    save(&[&arena.freeze().unwrap()], &path, &options, &mut proceed).unwrap();
    (path, offset)
}

fn restore(image: &Path, options: &[&str]) -> Ran {
    run(Command::new(COWSLIP).arg("restore").arg(image).args(options))
}

#[test]
fn a_dump_has_the_bytes_that_were_saved() {
    let folder = Folder::new("dump");
    let (image, offset) = image(&folder);
    // Eight words, the last four of a chunk and the first four of the next.
    let at = 2 * (1 << 18) - 4;
    let span = format!("{:#x}:64", offset + at * 8);
    let mut command = Command::new(COWSLIP);
    command.arg("restore").arg(&image).args(["--dump", &span]);
    let ran = command.stderr(Stdio::piped()).output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let expected: Vec<u8> = (at..at + 8).flat_map(|i| (i as u64 + 1).to_le_bytes()).collect();
    assert_eq!(ran.stdout, expected);
    for wrong in [format!("{}:1", offset + WORDS * 8 + 4096), "0x7fffffffffffffff:1M".into()] {
        let refused = restore(&image, &["--dump", &wrong]);
        assert_eq!(refused.status.code(), Some(2), "{wrong}: {}", refused.stderr);
    }
    assert_eq!(restore(&image, &["--arena", "1"]).status.code(), Some(2));
    assert_eq!(restore(&image, &["--record"]).status.code(), Some(2));
}

#[test]
fn what_a_dump_read_is_recorded_beside_the_image() {
    let folder = Folder::new("record");
    let (image, offset) = image(&folder);
    let span = format!("{:#x}:64", offset + (2 << 20));
    let ran = restore(&image, &["--dump", &span, "--record"]);
    if matches!(ran.status.code(), Some(3 | 4)) {
        return println!("SKIPPED: userfaultfd: {}", ran.stderr.trim());
    }
    assert!(ran.status.success(), "{}", ran.stderr);
    let recorded = ran.stderr.lines().find_map(|line| line.strip_prefix("recorded in "));
    assert!(Path::new(recorded.expect("it says where")).exists(), "{}", ran.stderr);
}

#[test]
fn damage_has_an_exit_code() {
    let folder = Folder::new("lie");
    let (image, offset) = image(&folder);
    // A word of the second chunk, wherever it is in the file.
    let word = ((1 << 18) + 125_000 + 1u64).to_le_bytes();
    let bytes = std::fs::read(&image).unwrap();
    let at = bytes.chunks_exact(8).position(|part| part == word).expect("stored as it is") * 8;
    let file = std::fs::OpenOptions::new().write(true).open(&image).unwrap();
    file.write_all_at(&[word[0] ^ 1], at as u64).unwrap();
    let span = format!("{:#x}:64", offset + (2 << 20));
    for options in [&["--dump", &span][..], &[]] {
        let ran = restore(&image, options);
        assert_eq!(ran.status.code(), Some(6), "{}", ran.stderr);
        assert!(ran.stderr.contains(image.to_str().unwrap()), "{}", ran.stderr);
    }
}

/// A process that stays until it is told to end.
struct Staying {
    child: Child,
    told: serde_json::Value,
}

impl Staying {
    /// Returns `Err` if it ended.
    fn start(image: &Path, folder: &Folder, options: &[&str]) -> Result<Self, Ran> {
        let json = folder.0.join("where.json");
        let _ = std::fs::remove_file(&json);
        let mut command = Command::new(COWSLIP);
        command.arg("restore").arg(image).arg("--json").arg(&json).args(options);
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let deadline = Instant::now() + PATIENCE;
        while !json.exists() {
            assert!(Instant::now() < deadline, "it never said where it is");
            if child.try_wait().unwrap().is_some() {
                let ended = child.wait_with_output().unwrap();
                let stderr = String::from_utf8_lossy(&ended.stderr).into_owned();
                return Err(Ran { status: ended.status, stdout: String::new(), stderr });
            }
            std::thread::yield_now();
        }
        // It was renamed into place, whole.
        let told = serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
        Ok(Self { child, told })
    }

    fn numbers(&self) -> usize {
        self.told["roots"]["numbers"]["start_address"].as_u64().unwrap() as usize
    }

    fn end(mut self) -> ExitStatus {
        let kill = ["-TERM", &self.child.id().to_string()].map(str::to_owned);
        assert!(Command::new("kill").args(kill).status().unwrap().success());
        self.child.wait().unwrap()
    }
}

#[test]
fn another_process_can_look_at_all_of_it_until_it_is_told_to_end() {
    let folder = Folder::new("look");
    let (image, _) = image(&folder);
    let staying = Staying::start(&image, &folder, &[]).map_err(|ran| ran.stderr).unwrap();
    assert_eq!(staying.told["pid"], staying.child.id());
    let memory = std::fs::File::open(format!("/proc/{}/mem", staying.child.id())).unwrap();
    let mut seen = vec![0; WORDS * 8];
    memory.read_exact_at(&mut seen, staying.numbers() as u64).unwrap();
    let mut words = seen.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap()));
    assert!((1..=WORDS as u64).all(|i| words.next() == Some(i)));
    assert!(staying.end().success());
}

/// A server that ends with the test, even a failed one.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_served_image_is_restored_from_memory_and_outlives_the_server() {
    let folder = Folder::new("serve");
    let (image, _) = image(&folder);
    let socket = folder.0.join("socket");
    let serve = |command: &mut Command| {
        command.arg("serve").arg(&image).arg("--socket").arg(&socket);
    };
    let mut command = Command::new(COWSLIP);
    serve(&mut command);
    let mut server = Server(command.spawn().unwrap());
    let deadline = Instant::now() + PATIENCE;
    while UnixStream::connect(&socket).is_err() {
        assert!(Instant::now() < deadline, "it never listens");
        std::thread::yield_now();
    }
    let mode = std::fs::metadata(&socket).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let mut second = Command::new(COWSLIP);
    serve(&mut second);
    let refused = run(&mut second);
    assert_eq!(refused.status.code(), Some(70), "{}", refused.stderr);

    let options = ["--via", socket.to_str().unwrap()];
    let staying = Staying::start(&image, &folder, &options).map_err(|ran| ran.stderr).unwrap();
    loop {
        let mut metrics = Command::new(COWSLIP);
        let metrics = run(metrics.args(["serve", "--metrics", "--socket"]).arg(&socket));
        if metrics.stdout.contains("\ncowslip_serve_loads_total 1\n") {
            break;
        }
        assert!(Instant::now() < deadline, "{}", metrics.stdout);
    }
    let kill = ["-TERM", &server.0.id().to_string()].map(str::to_owned);
    assert!(Command::new("kill").args(kill).status().unwrap().success());
    assert!(server.0.wait().unwrap().success());
    assert!(!socket.exists(), "nothing is left");

    let memory = std::fs::File::open(format!("/proc/{}/mem", staying.child.id())).unwrap();
    let mut seen = vec![0; WORDS * 8];
    memory.read_exact_at(&mut seen, staying.numbers() as u64).unwrap();
    let mut words = seen.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap()));
    assert!((1..=WORDS as u64).all(|i| words.next() == Some(i)));
    assert!(staying.end().success());

    let gone = restore(&image, &options);
    assert_eq!(gone.status.code(), Some(2), "{}", gone.stderr);
}
