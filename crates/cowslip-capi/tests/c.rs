//! The interface as programs in C and C++ see it: natively, with the address sanitizer, and under valgrind.

use std::io::{PipeWriter, Write};
use std::ops::ControlFlow;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread::JoinHandle;

use cowslip::Arena;
use cowslip::image::{Root, SaveOptions, save};
use cowslip::units::ByteCount;

const PROGRAMS: [&str; 5] = ["freeze", "fork", "template", "image", "branch"];
const STRICT: [&str; 6] = ["-std=gnu99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-O1"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The folder of the shared library: cargo builds it with the tests, beside their folder.
fn libraries() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let deps = test.parent().unwrap();
    for folder in [deps.parent().unwrap(), deps] {
        if folder.join("libcowslip_c.so").is_file() {
            return folder.to_owned();
        }
    }
    panic!("no libcowslip_c.so beside {}", test.display());
}

/// A folder with the library under its names for the linker and for the loader.
fn installed() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for name in ["libcowslip.so", "libcowslip.so.0"] {
        let library = libraries().join("libcowslip_c.so");
        std::os::unix::fs::symlink(library, folder.path().join(name)).unwrap();
    }
    folder
}

fn said(output: &Output) -> String {
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    format!("{}\n{out}{err}", output.status)
}

fn compile(compiler: &str, source: &Path, folder: &Path, options: &[&str]) -> PathBuf {
    let program = folder.join(source.file_stem().unwrap());
    let output = Command::new(compiler)
        .args(options)
        .arg(source)
        .arg("-o")
        .arg(&program)
        .arg(format!("-I{}", root().join("include").display()))
        .arg(format!("-L{}", folder.display()))
        .arg(format!("-Wl,-rpath,{}", folder.display()))
        .args(["-lcowslip", "-lpthread"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{compiler} {}: {}", source.display(), said(&output));
    program
}

fn source(name: &str) -> PathBuf {
    root().join(format!("tests/c/{name}.c"))
}

fn run(command: &mut Command, name: &str) {
    let folder = tempfile::tempdir().unwrap();
    if name == "image" {
        command.arg(folder.path());
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "{name}: {}", said(&output));
}

fn has(program: &str) -> bool {
    let found = Command::new(program).arg("--version").stdout(Stdio::null()).status();
    found.is_ok_and(|status| status.success())
}

/// Prints a skipped test, which `./test` counts.
fn skip(capability: &str, why: &str) {
    let expected = std::env::var("COWSLIP_EXPECT").unwrap_or_default();
    assert!(
        !expected.split(',').any(|word| word == capability),
        "{capability} is declared present, but: {why}"
    );
    println!("SKIPPED: {capability}: {why}");
}

#[test]
fn every_program_in_c_succeeds() {
    let folder = installed();
    for name in PROGRAMS {
        let program = compile("cc", &source(name), folder.path(), &STRICT);
        run(&mut Command::new(program), name);
    }
}

#[test]
fn the_header_is_clean_in_c_plus_plus() {
    let folder = installed();
    let file = folder.path().join("header.cc");
    std::fs::write(
        &file,
        "#include <cowslip.h>\nint main() { return cowslip_abi() >= COWSLIP_ABI ? 0 : 1; }\n",
    )
    .unwrap();
    let options = ["-std=c++11", "-Wall", "-Wextra", "-Werror", "-pedantic"];
    let program = compile("c++", &file, folder.path(), &options);
    run(&mut Command::new(program), "header");
}

#[test]
fn the_address_sanitizer_finds_nothing() {
    let folder = installed();
    for name in PROGRAMS {
        let options = [&STRICT[..], &["-fsanitize=address,undefined", "-g"]].concat();
        let program = compile("cc", &source(name), folder.path(), &options);
        run(&mut Command::new(program), name);
    }
}

#[test]
fn valgrind_finds_nothing() {
    if !has("valgrind") {
        return skip("valgrind", "it is not installed");
    }
    let folder = installed();
    // Programs that freeze twice, restore or are branched are left out: they need userfaultfd, and a thread that waits
    // for a fault stops all of valgrind.
    for name in ["freeze", "fork", "template"] {
        let program = compile("cc", &source(name), folder.path(), &[&STRICT[..], &["-g"]].concat());
        let mut command = Command::new("valgrind");
        // The counters' page and the descriptors' table live as long as the process.
        command.args([
            "-q",
            "--error-exitcode=9",
            "--leak-check=full",
            "--errors-for-leak-kinds=definite",
        ]);
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        command.arg(format!("--suppressions={}", root.join("tests/c/valgrind.supp").display()));
        command.arg(program).env("COWSLIP_TEST_PLAIN", "1");
        run(&mut command, name);
    }
}

#[test]
fn the_store_has_its_content_again() {
    let folder = installed();
    let store = compile(
        "cc",
        &root().join("examples/store.c"),
        folder.path(),
        &["-O2", "-Wall", "-Werror"],
    );
    let image = folder.path().join("store.cowslip");
    let tell = |commands: &str| {
        let mut child = Command::new(&store)
            .arg(&image)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(commands.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", said(&output));
        String::from_utf8(output.stdout).unwrap()
    };
    let sets: String = (0..1000).map(|i| format!("set key{i} value {i}\n")).collect();
    let told = tell(&format!("{sets}save\nset key7 changed\nget key7\ncount\nget none\n"));
    assert!(
        told.contains("saving, held up for ") && told.ends_with("ok\nchanged\n1000\nnone\n"),
        "{told}"
    );
    // The state of the save; it is saved again onto the image that the store lives on.
    let told = tell("get key7\ncount\nset key7 again\nsave\nwait\nset key7 lost\n");
    assert!(told.starts_with("value 7\n1000\nok\nsaving"), "{told}");
    assert_eq!(tell("get key7\nget key999\n"), "again\nvalue 999\n");
    let status = Command::new(&store).stderr(Stdio::null()).status().unwrap();
    assert_eq!(status.code(), Some(2), "no file named");
}

#[test]
fn a_child_writes_down_the_counters_of_one_instant() {
    let folder = installed();
    let example = root().join("examples/fork.c");
    let program = compile("cc", &example, folder.path(), &["-O2", "-Wall", "-Wextra", "-Werror"]);
    let output = Command::new(program).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let counters = output.stdout.chunks(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap()));
    assert!(counters.eq(0..1 << 20), "the child's counters are not those of the fork");
    let told = String::from_utf8(output.stderr).unwrap();
    let (changed, metrics) = told.split_once('\n').unwrap();
    assert_eq!(changed, "524288 counters changed");
    let metrics: serde_json::Value = serde_json::from_str(metrics).unwrap();
    assert!(metrics.as_object().unwrap().values().all(serde_json::Value::is_u64), "{metrics}");
}

/// Makes an image of the words 3, 4 ... at a root, and a server that has it, until the pipe is written to.
fn serve(image: &Path, socket: &Path) -> (PipeWriter, JoinHandle<()>) {
    const COUNT: usize = 1 << 19;
    let arena = Arena::new(ByteCount::mib(16)).unwrap();
    let mut words = arena.slice::<u64>(COUNT).unwrap();
    words.iter_mut().enumerate().for_each(|(i, word)| *word = i as u64 + 3);
    let offset_bytes = (words.range().start - arena.range().start) as u64;
    let root = Root { arena: 0, offset_bytes, length_bytes: words.range().len as u64 };
    let mut how = SaveOptions::default();
    how.roots.insert("words".into(), root);
    let view = arena.freeze().unwrap();
    save(&[&view], image, &how, &mut |_| ControlFlow::Continue(())).unwrap();
    let options = cowslip_serve::Options {
        opener: cowslip_serve::Opener::default(),
        images: vec![image.to_owned()],
        most_clients: 8,
        most_memory: ByteCount::gib(1),
    };
    let server = cowslip_serve::Server::bind(socket, options, |_| {}).unwrap();
    let (stopped, stop) = std::io::pipe().unwrap();
    (stop, std::thread::spawn(move || server.run(stopped.as_fd()).unwrap()))
}

#[test]
fn processes_that_borrow_hold_one_copy() {
    let folder = installed();
    let (image, socket) = (folder.path().join("image"), folder.path().join("socket"));
    let (mut stop, serving) = serve(&image, &socket);
    let program = compile("cc", &source("borrow"), folder.path(), &STRICT);
    let output = Command::new(&program).arg(&image).arg(&socket).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    stop.write_all(&[1]).unwrap();
    serving.join().unwrap();
}

#[test]
fn a_restore_asks_the_server_that_it_is_told_of() {
    let folder = installed();
    let (image, socket) = (folder.path().join("image"), folder.path().join("socket"));
    let (mut stop, serving) = serve(&image, &socket);
    let program = compile("cc", &source("serve"), folder.path(), &STRICT);
    let served = |environment: Option<&Path>, via: &str, expected: &str| {
        let before = handed_out(&socket);
        let mut command = Command::new(&program);
        command.arg(&image).args([via, expected]).env_remove("COWSLIP_SERVE");
        environment.map(|socket| command.env("COWSLIP_SERVE", socket));
        let output = command.output().unwrap();
        assert!(output.status.success(), "{environment:?} {via} {expected}: {}", said(&output));
        handed_out(&socket) > before
    };
    let (nowhere, there) = (folder.path().join("nowhere"), socket.to_str().unwrap());
    assert!(served(None, there, "ok"), "by name");
    assert!(served(Some(&socket), "NULL", "ok"), "by the environment");
    assert!(served(Some(&nowhere), there, "ok"), "the name goes first");
    assert!(!served(Some(&socket), "", "ok"), "the file");
    assert!(!served(None, "NULL", "ok"), "nobody is named");
    assert!(!served(Some(&nowhere), "NULL", "ok"), "nobody is there");
    assert!(
        !served(Some(&socket), nowhere.to_str().unwrap(), "file"),
        "who was named must be there"
    );
    stop.write_all(&[1]).unwrap();
    serving.join().unwrap();
}

/// The number of clients that have had the image, or a part of it.
fn handed_out(socket: &Path) -> u64 {
    let text = cowslip_serve::metrics_of(socket).unwrap();
    let names = ["cowslip_serve_templates_total ", "cowslip_serve_lent_total "];
    let count =
        |line: &str| names.iter().find_map(|name| line.strip_prefix(name)?.parse::<u64>().ok());
    text.lines().filter_map(count).sum::<u64>()
}

#[test]
fn the_fuzzers_loop_takes_its_state_back() {
    let folder = installed();
    let options = ["-O2", "-Wall", "-Werror"];
    let program = compile("cc", &root().join("examples/afl_snapshot.c"), folder.path(), &options);
    run(Command::new(program).args(["32", "300"]), "afl_snapshot");
}
