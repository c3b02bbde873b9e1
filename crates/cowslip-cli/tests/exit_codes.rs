//! Exit code 70: a failure for lack of memory or room, or because something is in use, is neither a "no" nor a wrong
//! request.

mod support;

use std::fs;
use std::net::TcpListener;
use std::ops::ControlFlow;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use cowslip::Arena;
use cowslip::image::{SaveOptions, save};
use cowslip::units::ByteCount;
use support::{COWSLIP, Folder, Ran, run};

const FAILED: Option<i32> = Some(70);

fn image(folder: &Folder, name: &str) -> PathBuf {
    let path = folder.0.join(name);
    let arena = Arena::new(ByteCount::mib(16)).unwrap();
    let mut slice = arena.slice::<u64>(1 << 19).unwrap();
    slice
        .iter_mut()
        .enumerate()
        .for_each(|(i, value)| *value = (i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let frozen = arena.freeze().unwrap();
    save(&[&frozen], &path, &SaveOptions::default(), &mut |_| ControlFlow::Continue(())).unwrap();
    path
}

fn cowslip<'a>(words: impl IntoIterator<Item = &'a str>) -> Command {
    let mut command = Command::new(COWSLIP);
    command.args(words);
    command
}

/// Runs a program after a command of the shell, such as a limit.
fn after(shell: &str, program: &Path, words: &[&str]) -> Ran {
    let mut command = Command::new("sh");
    run(command.args(["-c", &format!("{shell} && exec \"$0\" \"$@\"")]).arg(program).args(words))
}

fn assert_failed(ran: &Ran, reason: &str) {
    assert_eq!(ran.status.code(), FAILED, "{}{}", ran.stdout, ran.stderr);
    assert!(ran.stderr.contains(reason), "{reason}: {}", ran.stderr);
}

/// A process that does nothing, until this value ends.
struct Sleeper(Child);

impl Sleeper {
    fn start() -> Self {
        Self(Command::new("sleep").arg("600").stdin(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_full_device_is_no_wrong_request() {
    let folder = Folder::new("exit-full");
    let first = image(&folder, "first");
    let first = first.to_str().unwrap();
    let (good, bad) = (folder.0.join("good.csv"), folder.0.join("bad.csv"));
    fs::write(&good, "seconds\n1\n1.1\n1\n1.05\n").unwrap();
    fs::write(&bad, "seconds\n2\n2.1\n2\n2.05\n").unwrap();
    let (good, bad) = (good.to_str().unwrap(), bad.to_str().unwrap());
    for words in [
        &["image", "info", first, "--json", "/dev/full"][..],
        &["image", "diff", first, first, "--json", "/dev/full"],
        &["compare", good, "--json=/dev/full", "--", bad],
        &["compare", good, "--html", "/dev/full", "--", bad],
        &["status", "--json=/dev/full"],
        &["doctor", "--json", "/dev/full"],
        &["setup", "--dry-run", "--json=/dev/full"],
    ] {
        let ran = run(&mut cowslip(words.iter().copied()));
        assert_failed(&ran, "No space left on device");
    }
    // Standard output may be full as well.
    let full = || fs::File::options().write(true).open("/dev/full").unwrap();
    for words in [&["image", "info", first][..], &["status"], &["restore", first, "--dump", "0:4K"]]
    {
        let mut command = cowslip(words.iter().copied());
        let ended = command.stdout(full()).stderr(Stdio::piped()).output().unwrap();
        assert_eq!(ended.status.code(), FAILED, "{words:?} {ended:?}");
    }
}

#[test]
fn a_full_file_system_is_no_wrong_request() {
    let folder = Folder::new("exit-tmpfs");
    let first = image(&folder, "first");
    let small = folder.0.join("small");
    fs::create_dir(&small).unwrap();
    let (first, output) = (first.to_str().unwrap(), small.join("merged"));
    let mount = format!("mount -t tmpfs -o size=256k none {}", small.display());
    let inside = |words: &[&str]| {
        let mut command = Command::new("unshare");
        let script = format!(
            "{mount} || exit 99; \"$0\" \"$@\"; code=$?; ls -A {}; exit $code",
            small.display()
        );
        run(command.args(["--mount", "sh", "-c", &script, COWSLIP]).args(words))
    };
    let ran = inside(&["image", "merge", first, "-o", output.to_str().unwrap()]);
    if matches!(ran.status.code(), Some(1 | 99)) {
        println!("SKIPPED: a file system of its own: {}", ran.stderr);
        return;
    }
    assert_failed(&ran, "No space left on device");
    assert_eq!(ran.stdout, "", "nothing is left of it");
}

#[test]
fn memory_that_runs_out_has_an_exit_code_and_no_signal() {
    let folder = Folder::new("exit-memory");
    let first = image(&folder, "first");
    let first = first.to_str().unwrap();
    let large = folder.0.join("large.csv");
    fs::write(&large, "seconds\n".to_owned() + &"1.5\n".repeat(40 << 20)).unwrap();
    let large = large.to_str().unwrap();
    // 128 MiB hold neither the file nor its values.
    let ran = after("ulimit -v 131072", Path::new(COWSLIP), &["compare", large, "--", large]);
    assert_eq!(ran.status.code(), FAILED, "{}", ran.stderr);
    let mut codes = Vec::new();
    for mib in (16..320).step_by(8) {
        let limit = format!("ulimit -v {}", mib << 10);
        for words in [&["image", "verify", first][..], &["restore", first, "--dump", "0:4K"]] {
            let ran = after(&limit, Path::new(COWSLIP), words);
            let code = ran.status.code();
            // Codes of the kernel or the loader, for a program that does not even begin.
            let is_loaded = !ran.stderr.contains("error while loading shared libraries");
            let began = is_loaded && ran.stderr.contains("cowslip: ") || codes.contains(&FAILED);
            if !began && !matches!(code, Some(0 | 70)) {
                continue;
            }
            assert!(
                matches!(code, Some(0 | 70)),
                "{limit} {words:?}: {:?} {}",
                ran.status,
                ran.stderr
            );
            codes.push(code);
        }
    }
    assert!(codes.contains(&FAILED) && codes.contains(&Some(0)), "{codes:?}");
}

#[test]
fn too_many_open_files_are_no_wrong_request() {
    let folder = Folder::new("exit-files");
    let (first, second) = (image(&folder, "first"), image(&folder, "second"));
    let words = ["image", "diff", first.to_str().unwrap(), second.to_str().unwrap()];
    let ran = after("ulimit -n 4", Path::new(COWSLIP), &words);
    assert_failed(&ran, "Too many open files");
    let sleeper = Sleeper::start();
    let (pid, output) = (sleeper.0.id().to_string(), folder.0.join("a.trace"));
    let ran = after(
        "ulimit -n 8",
        Path::new(COWSLIP),
        &["trace", "--pid", &pid, "-o", output.to_str().unwrap()],
    );
    match ran.status.code() {
        Some(3 | 4) => println!("SKIPPED: a trace: {}", ran.stderr),
        _ => assert_failed(&ran, "Too many open files"),
    }
}

#[test]
fn an_address_that_is_taken_is_no_wrong_request() {
    let folder = Folder::new("exit-taken");
    let (first, socket) = (image(&folder, "first"), folder.0.join("socket"));
    let (first, taken) = (first.to_str().unwrap(), UnixListener::bind(&socket).unwrap());
    let ran = run(&mut cowslip(["serve", first, "--socket", socket.to_str().unwrap()]));
    assert_failed(&ran, "Address already in use");
    assert!(socket.exists());
    drop(taken);

    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let sleeper = Sleeper::start();
    let pid = sleeper.0.id().to_string();
    let ran = run(&mut cowslip(["promote", "--pid", &pid, "--dry-run", "--metrics", &address]));
    match ran.status.code() {
        Some(3 | 4) => println!("SKIPPED: promote: {}", ran.stderr),
        _ => assert_failed(&ran, "Address already in use"),
    }
}
