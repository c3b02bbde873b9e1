//! The examples of docs/templates.md, at a small scale, and `cowslip.branch_point` in Python.

mod support;

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use support::{COWSLIP, Folder, run};

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// Compiles an example of `crates/cowslip-capi`; `None`, reported as skipped, where that is not possible.
fn compile(folder: &Folder, name: &str, libraries: &[&str]) -> Option<PathBuf> {
    let program = folder.0.join(name);
    let source = root().join(format!("crates/cowslip-capi/examples/branch_{name}.c"));
    let mut cc = Command::new("cc");
    cc.args(["-O2", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&program).arg(source).args(libraries);
    match cc.output() {
        Ok(output) if output.status.success() => Some(program),
        Ok(output) => {
            let why = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(why.contains("sqlite3.h: No such file"), "{why}");
            println!("SKIPPED: sqlite: libsqlite3-dev is not installed");
            None
        }
        Err(error) => {
            println!("SKIPPED: cc: {error}");
            None
        }
    }
}

/// A program under Cowslip that prints a line when it is warm.
struct Warm {
    child: Child,
    output: BufReader<ChildStdout>,
    _folder: Folder,
}

impl Warm {
    fn start(folder: Folder, program: &Path, arguments: &[&str]) -> (Self, String) {
        let mut command = Command::new(COWSLIP);
        command.args(["run", "--quiet", "--"]).arg(program).args(arguments);
        command.env("XDG_RUNTIME_DIR", &folder.0).env("PYTHONDONTWRITEBYTECODE", "1");
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        (Self { child, output, _folder: folder }, line)
    }

    /// Branches the program, and returns the copies' lines, sorted.
    fn ask(&self, arguments: &[&str]) -> Vec<String> {
        let pid = self.child.id().to_string();
        let ran = run(Command::new(COWSLIP).args(["branch", &pid]).args(arguments));
        assert_eq!((ran.status.code(), ran.stderr.as_str()), (Some(0), ""));
        let mut lines: Vec<String> = ran.stdout.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    }

    /// Releases the program, and returns the rest of its own output.
    fn release(mut self) -> String {
        self.ask(&["--release"]);
        let mut rest = String::new();
        self.output.read_to_string(&mut rest).unwrap();
        assert!(self.child.wait().unwrap().success(), "{rest}");
        rest
    }
}

impl Drop for Warm {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn each_measure_against_the_epidemic_starts_from_the_same_day() {
    let folder = Folder::new("epidemic");
    let Some(program) = compile(&folder, "epidemic", &[]) else { return };
    let native = run(Command::new(&program).arg("4"));
    let (day, future) = native.stdout.split_once('\n').unwrap();
    let (warm, line) = Warm::start(folder, &program, &["4"]);
    assert_eq!(line.trim_end(), day);
    for _ in 0..2 {
        let futures = warm.ask(&["0.02", "0.05", "0.08"]);
        let infected = |line: &String| -> u64 {
            line.split_once(": ").unwrap().1.split(' ').next().unwrap().parse().unwrap()
        };
        let counts: Vec<u64> = futures.iter().map(infected).collect();
        assert!(counts.len() == 3 && counts[0] < counts[1] && counts[1] < counts[2], "{futures:?}");
        assert_eq!(futures[2], future.trim_end(), "what happens natively, without a measure");
    }
    assert_eq!(warm.release(), future);
}

#[test]
fn each_query_changes_a_database_of_its_own() {
    const ROWS: u64 = 24 << 10;
    let folder = Folder::new("shop");
    let Some(program) = compile(&folder, "sqlite", &["-lsqlite3"]) else { return };
    let (warm, line) = Warm::start(folder, &program, &["24"]);
    assert!(line.starts_with(&format!("{ROWS} rows, ")), "{line}");
    // The values that the example generates.
    let price = |id: u64| 100 + id * 7 % 9901;
    let stock = |id: u64| id * 31 % 50;
    let sum = |price: &dyn Fn(u64) -> u64| (1..=ROWS).map(price).sum::<u64>();
    let dearer = |id: u64| price(id) + if id % 97 == 3 { 1000 } else { 0 };
    let in_stock = (1..=ROWS).filter(|&id| stock(id) != 0).count();
    let question = "SELECT 'sum', sum(price) FROM product;";
    for _ in 0..2 {
        let answers = warm.ask(&[
            question,
            "UPDATE product SET price = price + 1000 WHERE category = 3; SELECT 'dearer', sum(price) FROM product",
            "DELETE FROM product WHERE stock = 0; SELECT 'left', count(*) FROM product; PRAGMA integrity_check",
            "DROP TABLE product; SELECT 'tables', count(*) FROM sqlite_master",
        ]);
        let wanted = [
            format!("dearer|{}", sum(&dearer)),
            format!("left|{in_stock}"),
            "ok".to_owned(),
            format!("sum|{}", sum(&price)),
            "tables|0".to_owned(),
        ];
        assert_eq!(answers, wanted);
    }
    let whole = format!("{ROWS}|{}|{}\n", sum(&price), (1..=ROWS).map(stock).sum::<u64>());
    assert_eq!(warm.release(), whole);
}

const PYTHON: &str = r#"
import os, sys, threading
from _branch_point import branch_point
state, ticks = list(range(200_000)), [0]
def tick():
    while True:
        ticks[0] += 1
# The interpreter's lock is asked for all the time: a copy must not hand it over.
sys.setswitchinterval(1e-6)
threading.Thread(target=tick, daemon=True).start()
print("ready", flush=True)
sys.stdout.write("held back ")
copy = branch_point(timeout=0)
assert copy is None
copy = branch_point("python")
if copy is None:
    print(sum(state), ticks[0] > 0)
else:
    state[0] = copy.index
    worker = threading.Thread(target=state.append, args=(1000,))
    worker.start(), worker.join()
    # At once: another copy writes there too.
    seed = copy.seed.hex() == os.environ["COWSLIP_BRANCH_SEED"]
    os.write(1, f"{copy.index} {copy.count} {copy.argument} {os.environ.get('COLOUR')} {sum(state)} {seed} {sys.stdin.read()}\n".encode())
"#;

#[test]
fn python_goes_on_in_each_copy() {
    let folder = Folder::new("python");
    let program = folder.0.join("warm.py");
    std::fs::write(&program, PYTHON).unwrap();
    if run(Command::new("sh").args(["-c", "command -v python3"])).stdout.is_empty() {
        println!("SKIPPED: python3 is not installed");
        return;
    }
    let module = root().join("python/cowslip/_branch_point.py");
    std::fs::copy(module, folder.0.join("_branch_point.py")).unwrap();
    let native = run(Command::new("python3").arg(&program));
    assert!(native.stderr.contains("not started with `cowslip run`"), "{}", native.stderr);
    let (warm, line) = Warm::start(folder, Path::new("python3"), &[program.to_str().unwrap()]);
    assert_eq!(line, "ready\n");
    let sum: u64 = (0..200_000).sum();
    let wanted =
        [format!("0 2 a red {} True ", sum + 1000), format!("1 2 b red {} True ", sum + 1001)];
    assert_eq!(warm.ask(&["-e", "COLOUR=red", "a", "b"]), wanted);
    assert_eq!(warm.release(), format!("held back {sum} True\n"));
}
