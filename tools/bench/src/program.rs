//! Programs that know nothing of Cowslip: compiled here, run as they are, with the bundled malloc alone,
//! and under `cowslip run`.

use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder, File};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use cowslip_sys::process::end_group;

use super::error::{Error, Result, during};
use super::interrupt::Interrupt;

/// Interval between checks whether a program has ended.
const LOOK: Duration = Duration::from_millis(20);
/// Time for a program to end after it was asked to.
const POLITE_END: Duration = Duration::from_secs(5);

/// Settings that make malloc request huge pages: glibc's, and jemalloc's as Debian links it or a program bundles it.
const MALLOC_WITH_THP: [(&str, &str); 3] = [
    ("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1"),
    ("MALLOC_CONF", "thp:always"),
    ("JE_MALLOC_CONF", "thp:always"),
];

/// This program, which starts itself again to measure other processes.
pub(crate) fn this() -> Result<PathBuf> {
    std::env::current_exe().map_err(during("find this program"))
}

/// The command `cowslip` beside this program.
///
/// # Errors
/// [`Error::Failed`] if there is none.
pub fn cowslip() -> Result<PathBuf> {
    beside("cowslip")
}

/// The libraries that `cowslip run` preloads: its own, and the bundled malloc.
fn libraries() -> Result<[PathBuf; 2]> {
    Ok([beside("libcowslip_preload.so")?, beside("libcowslip_malloc.so")?])
}

fn beside(name: &str) -> Result<PathBuf> {
    let path = this()?.with_file_name(name);
    match path.is_file() {
        true => Ok(path),
        false => {
            let why = "is not there; build it: cargo build --release";
            Err(Error::Failed(format!("{} {why}", path.display())))
        }
    }
}

/// A way to run a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Launch {
    /// Unchanged.
    Stock,
    /// Unchanged, with a malloc that requests huge pages.
    StockThp,
    /// With the bundled malloc.
    WithMalloc,
    /// With both libraries, as `cowslip run` does.
    Cowslip,
}

impl Launch {
    /// Its name in the report; without Cowslip, unless huge pages are requested, the program is on pages of 4 KiB.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Cowslip => "cowslip",
            Self::StockThp => "fork-thp",
            Self::Stock | Self::WithMalloc => "fork-4k",
        }
    }

    pub(crate) fn variant(self) -> Option<&'static str> {
        (self == Self::WithMalloc).then_some("jemalloc")
    }

    /// Name and variant, for the terminal.
    pub(crate) fn label(self) -> String {
        [Some(self.name()), self.variant()].into_iter().flatten().collect::<Vec<_>>().join(" ")
    }

    /// Additional variables of the environment.
    pub(crate) fn environment(self) -> &'static [(&'static str, &'static str)] {
        if self == Self::StockThp { &MALLOC_WITH_THP } else { &[] }
    }

    /// The libraries to preload to run a program this way.
    pub(crate) fn preload(self) -> Result<OsString> {
        let [cowslip, malloc] = libraries()?;
        Ok(match self {
            Self::Stock | Self::StockThp => OsString::new(),
            Self::WithMalloc => malloc.into(),
            Self::Cowslip => [cowslip, malloc].map(OsString::from).join(OsStr::new(":")),
        })
    }

    /// The command that runs `program` this way.
    pub(crate) fn command(self, program: &Path) -> Result<Command> {
        let mut command = match self {
            Self::Stock | Self::StockThp | Self::WithMalloc => Command::new(program),
            Self::Cowslip => {
                let mut command = Command::new(cowslip()?);
                command.args(["run", "--"]).arg(program);
                command
            }
        };
        command.envs(self.environment().iter().copied());
        if self == Self::WithMalloc {
            command.env("LD_PRELOAD", self.preload()?);
        }
        Ok(command)
    }
}

/// A temporary directory, removed with this value.
#[derive(Debug)]
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new(name: &str) -> Result<Self> {
        let path = std::env::temp_dir().join(format!("cowslip-{name}-{}", std::process::id()));
        let made = DirBuilder::new().mode(0o700).create(&path);
        made.map_err(during(format_args!("make {}", path.display())))?;
        Ok(Self(path))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Writes a file into it.
    pub(crate) fn write(&self, name: &str, text: &str) -> Result<PathBuf> {
        let path = self.0.join(name);
        fs::write(&path, text).map_err(during(format_args!("write {}", path.display())))?;
        Ok(path)
    }

    /// Compiles a C program; `needs` says what to install if that fails.
    pub(crate) fn compile(
        &self,
        name: &str,
        source: &str,
        libraries: &[&str],
        needs: &str,
        stop: &Interrupt,
    ) -> Result<PathBuf> {
        let source = self.write(&format!("{name}.c"), source)?;
        let program = self.0.join(name);
        let mut cc = Command::new("cc");
        cc.args(["-O2", "-o"]).args([&program, &source]).args(libraries);
        match self.finish(&mut cc, stop) {
            Err(Error::Failed(why)) => Err(Error::Failed(format!("{why}; {needs}"))),
            done => done.map(|_| program),
        }
    }

    /// Runs `command` to its end, and returns its output. An error if it failed.
    pub(crate) fn finish(&self, command: &mut Command, stop: &Interrupt) -> Result<String> {
        let (out, err) = (self.0.join("stdout"), self.0.join("stderr"));
        let mut running = Running::start(command, &out, &err)?;
        let status = running.wait(stop)?;
        let read = |path| fs::read(path).map(|text| String::from_utf8_lossy(&text).into_owned());
        if status.success() {
            return read(&out).map_err(during("read what a program printed"));
        }
        let said = read(&err).unwrap_or_default() + &read(&out).unwrap_or_default();
        let said = reason(&said);
        let program = Path::new(command.get_program()).display();
        Err(Error::Failed(format!("{program} failed ({status}): {said}")))
    }
}

/// The line of `said` with the reason, without the escapes that colour it: a compiler's first error, AFL++'s abort, or
/// the first line.
fn reason(said: &str) -> String {
    let mut lines = said.lines().filter(|line| !line.trim().is_empty());
    let tells = |line: &&str| line.contains("error") || line.contains("ABORT");
    let line = lines.clone().find(tells).or_else(|| lines.next()).unwrap_or_default();
    let mut parts = line.split('\x1b');
    let first = parts.next().unwrap_or_default().to_owned();
    let text = parts.map(|part| part.split_once('m').map_or(part, |(_, text)| text));
    text.fold(first, |line, text| line + text).trim().to_owned()
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A program in a process group of its own, all of which ends with this value.
#[derive(Debug)]
pub(crate) struct Running {
    child: Child,
    /// Its number may be another process's by now.
    ended: bool,
}

impl Running {
    /// Starts `command`, with its output in these files.
    pub(crate) fn start(command: &mut Command, out: &Path, err: &Path) -> Result<Self> {
        let file = |path| File::create(path).map_err(during("make a file"));
        command.stdin(Stdio::null()).stdout(file(out)?).stderr(file(err)?).process_group(0);
        let program = Path::new(command.get_program()).display().to_string();
        let child = command.spawn().map_err(during(format_args!("run {program}")))?;
        Ok(Self { child, ended: false })
    }

    /// The id of the process and of its group.
    pub(crate) fn id(&self) -> i32 {
        self.child.id() as i32
    }

    /// Waits until it has ended. An error if the user wants to stop.
    pub(crate) fn wait(&mut self, stop: &Interrupt) -> Result<ExitStatus> {
        loop {
            stop.check()?;
            if let Some(status) = self.ended()? {
                return Ok(status);
            }
            thread::sleep(LOOK);
        }
    }

    /// Its exit status, if it has ended.
    pub(crate) fn ended(&mut self) -> Result<Option<ExitStatus>> {
        let status = self.child.try_wait().map_err(during("wait for a program"))?;
        self.ended |= status.is_some();
        Ok(status)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let group = self.child.id() as i32;
        let asked = Instant::now();
        if !self.ended && end_group(group, false).is_ok() {
            while asked.elapsed() < POLITE_END && matches!(self.ended(), Ok(None)) {
                thread::sleep(LOOK);
            }
        }
        if !self.ended {
            let _ = end_group(group, true);
            let _ = self.child.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons() {
        assert_eq!(reason("\n\nfirst\nsecond\n"), "first");
        assert_eq!(reason("a.c: In function main:\na.c:1: error: no\n"), "a.c:1: error: no");
        let afl = "[*] Hm\n\x1b[1;91m[-] PROGRAM ABORT : \x1b[0mno handshake\n";
        assert_eq!(reason(afl), "[-] PROGRAM ABORT : no handshake");
        assert_eq!(reason(""), "");
    }
}
