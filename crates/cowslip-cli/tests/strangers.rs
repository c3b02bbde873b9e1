//! What another user may put into a place that this user's commands come to: a name, a link, a FIFO, a file, a process.

mod support;

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::ops::ControlFlow;
use std::os::unix::fs::{PermissionsExt, chown, lchown, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use cowslip::Arena;
use cowslip::image::{SaveOptions, save};
use cowslip::units::ByteCount;
use support::{COWSLIP, Folder, Ran, compile, run};

const NOBODY: u32 = 65_534;
const VICTIM: &str = "a victim's file";

fn is_root() -> bool {
    let is_root = cowslip_sys::process::effective_uid() == 0;
    if !is_root {
        println!("SKIPPED: root: only root can be another user");
    }
    is_root
}

fn set(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// A folder such as `/tmp`, another one with a file that is not to be changed, and what the other user put in the first.
struct Shared {
    folder: Folder,
    own: Folder,
}

impl Shared {
    fn new(name: &str) -> Self {
        let (folder, own) = (Folder::new(name), Folder::new("strangers-own"));
        set(&folder.0, 0o1777);
        // The folder's owner may put there what it likes, and is neither of both.
        chown(&folder.0, Some(NOBODY - 1), None).unwrap();
        fs::write(own.0.join("victim"), VICTIM).unwrap();
        Self { folder, own }
    }

    fn victim(&self) -> PathBuf {
        self.own.0.join("victim")
    }

    fn place(&self, name: &str) -> PathBuf {
        self.folder.0.join(name)
    }

    /// A link, a FIFO, a file of theirs and another name of the victim's.
    fn planted(&self) -> [PathBuf; 4] {
        let [link, fifo, file, name] =
            ["link", "fifo", "file", "name"].map(|name| self.place(name));
        symlink(self.victim(), &link).unwrap();
        assert!(Command::new("mkfifo").arg("--mode=666").arg(&fifo).status().unwrap().success());
        fs::write(&file, "theirs").unwrap();
        set(&file, 0o666);
        for path in [&link, &fifo, &file] {
            lchown(path, Some(NOBODY), None).unwrap();
        }
        fs::hard_link(self.victim(), &name).unwrap();
        [link, fifo, file, name]
    }

    fn assert_untouched(&self, what: &str) {
        assert_eq!(fs::read_to_string(self.victim()).unwrap(), VICTIM, "{what}");
    }
}

/// The kernel's own rules against planted files, off as long as this is there.
struct Unprotected(Vec<(PathBuf, String)>);

impl Unprotected {
    fn new() -> Self {
        let names = ["protected_symlinks", "protected_fifos", "protected_regular"];
        let before = names.map(|name| {
            let path = Path::new("/proc/sys/fs").join(name);
            let value = fs::read_to_string(&path).unwrap();
            fs::write(&path, "0").unwrap();
            (path, value)
        });
        Self(before.into())
    }
}

impl Drop for Unprotected {
    fn drop(&mut self) {
        for (path, value) in &self.0 {
            fs::write(path, value).unwrap();
        }
    }
}

/// A program at its branch point, with this name.
fn warm(folder: &Folder, name: &str) -> Option<Killed> {
    let program = compile(folder, "branching")?;
    let mut command = Command::new(COWSLIP);
    command.args(["run", "--quiet", "--"]).arg(program).args(["content", "1", name]);
    let mut warm = Killed::start(command.env("XDG_RUNTIME_DIR", &folder.0));
    assert!(warm.line().ends_with("ready"));
    Some(warm)
}

#[test]
fn what_another_user_planted_where_everybody_may_is_not_written_to() {
    if !is_root() {
        return;
    }
    let _unprotected = Unprotected::new();
    let shared = Shared::new("strangers-planted");
    let planted = shared.planted();
    let Some(warm) = warm(&shared.own, "planted") else { return };
    let (own, pid) = (std::process::id().to_string(), warm.child.id().to_string());
    let trace = shared.own.0.join("trace");
    let [.., name] = &planted;
    for place in &planted {
        let path = place.to_str().unwrap();
        let json = format!("--json={path}");
        for words in [
            &["status", &json][..],
            &["run", "--report", path, "--", "true"],
            &["run", "--log", path, "--", "true"],
            &["setup", "--dry-run", &json],
            &["trace", "-o", path, "--", "true"],
            &["trace", "-o", trace.to_str().unwrap(), "--metrics", path, "--", "true"],
            &["promote", "--once", "--dry-run", "--pid", &own, "--record", path],
            &["branch", &pid, "--output", path],
            &["branch", &pid, "--error", path],
            &["compare", "run", "-n", "2", "--good", "true", "--bad", "true", "-o", path],
        ] {
            if place == name {
                // Other commands replaced it.
                fs::remove_file(name).unwrap();
                fs::hard_link(shared.victim(), name).unwrap();
            }
            let ran = run(Command::new(COWSLIP).args(words));
            let what = format!("{words:?}: {}", ran.stderr);
            let is_replaced = words[0] == "status" || words[0] == "setup" || words[1] == "--report";
            let is_refused = !ran.status.success() && ran.stderr.contains("another user");
            assert!(is_refused || (place == name && is_replaced), "{what}");
            shared.assert_untouched(&what);
        }
    }
    assert_eq!(fs::read_to_string(&planted[2]).unwrap(), "theirs");
    // Other places there are written, also for the second time.
    let place = shared.place("own");
    for words in [
        &["status", "--json="][..],
        &["branch", &pid, "--output"],
        &["promote", "--once", "--dry-run", "--pid", &own, "--record"],
    ] {
        for _ in 0..2 {
            let (option, others) = words.split_last().unwrap();
            let mut command = Command::new(COWSLIP);
            command.args(others);
            let ran = run(match option.ends_with('=') {
                true => command.arg(format!("{option}{}", place.display())),
                false => command.arg(option).arg(&place),
            });
            // A dry run may say that there is nothing to promote.
            assert!(matches!(ran.status.code(), Some(0 | 1)), "{words:?}: {}", ran.stderr);
            assert!(fs::metadata(&place).unwrap().len() > 0, "{words:?}");
        }
        fs::remove_file(&place).unwrap();
    }
}

/// The report has another name first, with the process' number.
#[test]
fn a_name_that_another_user_foresaw_is_not_followed() {
    if !is_root() {
        return;
    }
    let shared = Shared::new("strangers-foreseen");
    let report = shared.place("report");
    let script =
        r#"ln -s "$2" "$1.$$" && chown -h 65534 "$1.$$" && exec "$0" run --report "$1" -- true"#;
    let mut command = Command::new("sh");
    command.args(["-c", script, COWSLIP]).arg(&report).arg(shared.victim());
    let ran = run(&mut command);
    assert!(ran.status.success(), "{}", ran.stderr);
    shared.assert_untouched("its first name was a link");
    assert!(fs::symlink_metadata(&report).unwrap().is_file());
    let left = fs::read_dir(&shared.folder.0).unwrap().count();
    assert_eq!(left, 1, "the report alone is there");
}

/// A user without a runtime directory locks a file beside the socket.
#[test]
fn a_lock_that_another_user_made_a_fifo_is_an_error() {
    if !is_root() {
        return;
    }
    let shared = Shared::new("strangers-lock");
    let program = shared.own.0.join("cowslip");
    assert!(Command::new("cp").arg(COWSLIP).arg(&program).status().unwrap().success());
    set(&shared.own.0, 0o755);
    let lock = shared.place("socket.lock");
    assert!(Command::new("mkfifo").arg("--mode=666").arg(&lock).status().unwrap().success());
    let image = image(&shared.own);
    set(&image, 0o644);
    let mut command = Command::new(&program);
    command.arg("serve").arg(&image).arg("--socket").arg(shared.place("socket"));
    let refused = run(command.env_remove("XDG_RUNTIME_DIR").uid(NOBODY).current_dir("/"));
    assert_eq!(refused.status.code(), Some(4), "{}", refused.stderr);
    assert!(refused.stderr.contains("can be opened by another user"), "{}", refused.stderr);
}

/// An image of one page.
fn image(folder: &Folder) -> PathBuf {
    let arena = Arena::new(ByteCount::mib(16)).unwrap();
    arena.slice::<u64>(512).unwrap().fill(7);
    let path = folder.0.join("image");
    let options = SaveOptions::default();
    save(&[&arena.freeze().unwrap()], &path, &options, &mut |_| ControlFlow::Continue(())).unwrap();
    path
}

/// A process that is killed with this value.
struct Killed {
    child: Child,
    said: BufReader<std::process::ChildStdout>,
}

impl Killed {
    fn start(command: &mut Command) -> Self {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let said = BufReader::new(child.stdout.take().unwrap());
        Self { child, said }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.said.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// The rest of what it says.
    fn end(mut self) -> String {
        self.child.kill().unwrap();
        let mut rest = String::new();
        self.said.read_to_string(&mut rest).unwrap();
        rest
    }
}

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn branch(name: &str) -> Ran {
    let words = ["branch", name, "--timeout", "0.1", "--env", "SECRET=hunter2", "exit 0"];
    run(Command::new(COWSLIP).args(words))
}

#[test]
fn a_name_of_a_branch_point_that_another_user_took_is_told_nothing_and_hides_nobody() {
    if !is_root() {
        return;
    }
    let folder = Folder::new("strangers-branch");
    set(&folder.0, 0o755);
    let Some(impostor) = compile(&folder, "impostor") else { return };
    let theirs = folder.0.join("cowslip-branch-theirs");
    fs::create_dir(&theirs).unwrap();
    chown(&theirs, Some(NOBODY), None).unwrap();
    let name = format!("taken-{}", std::process::id());
    let mut command = Command::new(impostor);
    let mut impostor = Killed::start(command.arg(&theirs).arg(&name).uid(NOBODY).gid(NOBODY));
    assert_eq!(impostor.line(), "listens");
    let refused = branch(&name);
    assert_eq!(refused.status.code(), Some(125), "{}", refused.stderr);
    assert!(refused.stderr.contains("another user's"), "{}", refused.stderr);
    // Root's own program of that name is the one that is meant.
    let Some(_own) = warm(&folder, &name) else { return };
    let branched = branch(&name);
    assert!(branched.status.success(), "{}", branched.stderr);
    assert_eq!(impostor.end(), "", "it was told something");
}

/// In `/tmp`, where a user without a runtime directory has the sockets.
#[test]
fn a_directory_that_another_user_took_keeps_nobody_from_being_branched() {
    const USER: u32 = NOBODY - 11;
    if !is_root() {
        return;
    }
    let folder = Folder::new("strangers-squatted");
    set(&folder.0, 0o755);
    let Some(program) = compile(&folder, "branching") else { return };
    for file in ["cowslip", "libcowslip_preload.so", "libcowslip_malloc.so"] {
        let file = Path::new(COWSLIP).with_file_name(file);
        assert!(Command::new("cp").arg(file).arg(&folder.0).status().unwrap().success());
    }
    let taken = PathBuf::from(format!("/tmp/cowslip-branch-{USER}"));
    fs::create_dir(&taken).unwrap();
    chown(&taken, Some(NOBODY), None).unwrap();
    let directories = || {
        let entries = fs::read_dir("/tmp").unwrap().map(|entry| entry.unwrap().path());
        let is_ours = |path: &PathBuf| {
            path.to_str().is_some_and(|text| text.starts_with(taken.to_str().unwrap()))
        };
        entries.filter(is_ours).count()
    };
    let mut command = Command::new(folder.0.join("cowslip"));
    command.args(["run", "--quiet", "--without-userfaultfd", "--backing", "base", "--"]);
    command.arg(program).args(["obey", "1"]).env_remove("XDG_RUNTIME_DIR").current_dir("/");
    let mut program = Killed::start(command.uid(USER).gid(USER));
    let ready = program.line();
    let branch = |words: &[&str]| {
        let pid = program.child.id().to_string();
        run(Command::new(COWSLIP).args(["branch", &pid]).args(words))
    };
    let branched = branch(&["exit 3"]);
    let there = directories();
    let released = branch(&["--release"]);
    let ended = program.child.wait().unwrap();
    let left = directories();
    fs::remove_dir(&taken).unwrap();
    assert_eq!(ready, "ready");
    assert_eq!(branched.status.code(), Some(3), "{}", branched.stderr);
    assert!(released.status.success() && ended.success(), "{}", released.stderr);
    assert_eq!((there, left), (2, 1), "its own goes with it");
}
