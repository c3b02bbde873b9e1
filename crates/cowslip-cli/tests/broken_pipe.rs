//! Readers of the output may go away: `cowslip … | head -1`, `2>&-`, a log's reader that has ended.

mod support;

use std::fs;
use std::io;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use support::{COWSLIP, Folder, run};

const PATIENCE: Duration = Duration::from_secs(60);

/// A pipe without a reader.
fn unread() -> Stdio {
    let (reader, writer) = io::pipe().unwrap();
    drop(reader);
    writer.into()
}

/// A process that does nothing, until this value ends.
struct Sleeper(Child);

impl Sleeper {
    fn start() -> Self {
        Self(Command::new("sleep").arg("600").spawn().unwrap())
    }

    fn pid(&self) -> String {
        self.0.id().to_string()
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_command_ends_as_it_would_have_if_nobody_reads_what_it_says() {
    let folder = Folder::new("readers");
    let config = folder.0.join("promote.toml");
    fs::write(&config, "[[target]]\nmatch = \"nobody\"\n").unwrap();
    let config = config.to_str().unwrap();
    let sleeper = Sleeper::start();
    let pid = sleeper.pid();
    for (arguments, code) in [
        (&["--help"][..], 0),
        (&["no-such-command"], 2),
        (&["promote", "--config", config, "--check-config"], 0),
        (&["promote", "--once", "--dry-run", "--match", "nobody-has-this-name"], 5),
        (&["promote", "--once", "--dry-run", "--pid", &pid], 1),
        (&["promote", "top", "--once", "--pid", &pid], 0),
        (&["status", &pid], 1),
        (&["image", "info", config], 6),
    ] {
        let command = || {
            let mut command = Command::new(COWSLIP);
            command.args(arguments).stdin(Stdio::null());
            command
        };
        let read = run(&mut command());
        assert_eq!(read.status.code(), Some(code), "{arguments:?}: {}{}", read.stdout, read.stderr);
        assert!(!(read.stdout + &read.stderr).is_empty(), "{arguments:?} says something");
        let unread = command().stdout(unread()).stderr(unread()).status().unwrap();
        assert_eq!(unread.code(), Some(code), "{arguments:?} into pipes that nobody reads");
        let mut closing = Command::new("sh");
        closing.args(["-c", "exec \"$@\" >&- 2>&-", "sh", COWSLIP]).args(arguments);
        let closed = closing.status().unwrap();
        assert_eq!(closed.code(), Some(code), "{arguments:?} with nothing open to say it on");
    }
}

#[test]
fn a_full_disk_is_an_error() {
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let folder = Folder::new("readers-full");
    let config = folder.0.join("promote.toml");
    fs::write(&config, "[[target]]\nmatch = \"nobody\"\n").unwrap();
    let mut command = Command::new(COWSLIP);
    command.args(["promote", "--check-config", "--config"]).arg(config).stdout(full);
    let ended = command.stderr(Stdio::piped()).output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(70), "{said}");
    assert!(said.contains("standard output") && said.contains("os error 28"), "{said}");
}

#[test]
fn a_daemon_goes_on_when_the_reader_of_its_log_has_ended() {
    let folder = Folder::new("readers-daemon");
    let metrics = folder.0.join("metrics.prom");
    let sleeper = Sleeper::start();
    let mut command = Command::new(COWSLIP);
    command.args(["promote", "--pid", &sleeper.pid(), "--metrics-file"]).arg(&metrics);
    let mut daemon = command.stdout(unread()).stderr(unread()).spawn().unwrap();
    let deadline = Instant::now() + PATIENCE;
    // It has announced its target by then.
    while !metrics.exists() && daemon.try_wait().unwrap().is_none() && Instant::now() < deadline {
        std::thread::yield_now();
    }
    assert!(metrics.exists(), "it has looked");
    let asked = Command::new("kill").args(["-TERM", &daemon.id().to_string()]).status().unwrap();
    assert!(asked.success());
    assert_eq!(daemon.wait().unwrap().code(), Some(0));
}
