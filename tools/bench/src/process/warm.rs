//! Python with numpy, started warm, from the beginning, and by Python's own fork server.

use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use cowslip_sys::procfs::MappingUse;

use super::{COWSLIP, FORK};
use crate::bench::Bench;
use crate::error::{Error, Result, during};
use crate::program::{self, Folder, Running};
use crate::report::Row;
use crate::rows::push_durations;

const PYTHON: &str = "/usr/bin/python3";
pub(super) const SPAWN: &str = "spawn";
const FORK_SERVER: &str = "forkserver";
/// Time from a start to the first output.
pub(super) const FIRST_OUTPUT: &str = "warm_first_output";
const RATE: &str = "warm_starts";
const MEMORY: &str = "warm_private_bytes";
const NEEDS: &str = "apt-get install python3-numpy";
const PATIENCE: Duration = Duration::from_secs(60);
/// Its first read is its point. Started from the beginning, it finds its input at its end.
const PROGRAM: &str = "import numpy, sys
sys.stdin.readline()
print(numpy.arange(1000).sum(), flush=True)
print(open('/proc/self/smaps_rollup').read())";
/// Prints the time of each of some starts, in ns.
const SERVED: &str = "import multiprocessing, sys, time
def work(began, pipe):
    import numpy
    numpy.arange(1000).sum()
    pipe.send(time.monotonic_ns() - began)
if __name__ == '__main__':
    context = multiprocessing.get_context('forkserver')
    context.set_forkserver_preload(['numpy'])
    for turn in range(int(sys.argv[1]) + 1):
        reader, writer = context.Pipe(False)
        process = context.Process(target=work, args=(time.monotonic_ns(), writer))
        process.start()
        took = reader.recv()
        process.join()
        if turn:
            print(took)";
const SERVED_STARTS: u32 = 20;
/// The same program forked by itself, as many at once: prints the rate last.
const FORKED: &str = "import numpy, os, sys, time
starts, at_once = int(sys.argv[1]), int(sys.argv[2])
began = time.monotonic()
for start in range(starts):
    if start >= at_once:
        os.wait()
    if os.fork() == 0:
        print(numpy.arange(1000).sum(), flush=True)
        sys.exit()
for _ in range(at_once):
    os.wait()
print(starts / (time.monotonic() - began))";
/// Starts for the rate, by this many commands at once.
const STARTS: u32 = 100;
const AT_ONCE: u32 = 4;

pub(super) fn measure(bench: &mut Bench<'_>, runs: u32) -> Result<()> {
    let folder = Folder::new("warm")?;
    let numpy = folder.finish(Command::new(PYTHON).args(["-c", "import numpy"]), bench.stop);
    numpy.map_err(|error| Error::Failed(format!("{error}; {NEEDS}")))?;
    let from_start = || {
        let mut command = Command::new(PYTHON);
        command.args(["-c", PROGRAM]);
        command
    };
    let name = format!("bench-{}", std::process::id());
    let _warm = keep_warm(&folder, &name, bench)?;
    let cowslip = program::cowslip()?;
    let started = || {
        let mut command = Command::new(&cowslip);
        command.args(["start", &name]);
        command
    };
    bench.progress.phase("first output, from the beginning and warm");
    let (mut spawned, mut warm, mut private) = (Vec::new(), Vec::new(), 0);
    for round in bench.clock.rounds(0.5, 3, 1 + 3 * runs) {
        bench.stop.check()?;
        let spawn = first_output(&mut from_start())?;
        let start = first_output(&mut started())?;
        if round > 0 {
            spawned.push(spawn.0);
            warm.push(start.0);
            private = private.max(MappingUse::rollup(&start.1).private_bytes);
        }
    }
    for (name, times) in [(SPAWN, &spawned), (COWSLIP, &warm)] {
        push_durations(bench.report, &Row::new(name, FIRST_OUTPUT, "", 0.0, "ns"), times);
    }
    bench.report.row(Row::new(COWSLIP, MEMORY, "max", private as f64, "bytes"));

    bench.progress.phase("starts a second");
    let began = Instant::now();
    thread::scope(|scope| {
        let work =
            || (0..STARTS / AT_ONCE).try_for_each(|_| first_output(&mut started()).map(drop));
        let threads: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(work)).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("it does not panic"))
    })?;
    let rate = f64::from(STARTS) / began.elapsed().as_secs_f64();
    bench.report.row(Row::new(COWSLIP, RATE, "value", rate, "1/s").n(STARTS.into()));
    let script = folder.write("forked.py", FORKED)?;
    let mut command = Command::new(PYTHON);
    command.arg(script).args([STARTS, AT_ONCE].map(|number| number.to_string()));
    let printed = folder.finish(&mut command, bench.stop)?;
    let rate = printed.lines().last().and_then(|line| line.parse().ok());
    let rate = rate.ok_or_else(|| Error::Failed(format!("no rate of forks: {printed}")))?;
    bench.report.row(Row::new(FORK, RATE, "value", rate, "1/s").n(STARTS.into()));

    bench.progress.phase("Python's fork server");
    let script = folder.write("served.py", SERVED)?;
    let mut command = Command::new(PYTHON);
    let printed = folder.finish(command.arg(script).arg(SERVED_STARTS.to_string()), bench.stop)?;
    let times: Vec<f64> = printed.lines().filter_map(|line| line.parse().ok()).collect();
    push_durations(bench.report, &Row::new(FORK_SERVER, FIRST_OUTPUT, "", 0.0, "ns"), &times);
    Ok(())
}

/// Starts `cowslip warm`, and waits until the program is at its point.
fn keep_warm(folder: &Folder, name: &str, bench: &Bench<'_>) -> Result<Running> {
    let [out, err] = ["warm.out", "warm.err"].map(|name| folder.path().join(name));
    let mut command = Command::new(program::cowslip()?);
    command.args(["warm", name, "--", PYTHON, "-c", PROGRAM]);
    let mut running = Running::start(&mut command, &out, &err)?;
    let began = Instant::now();
    let said = |path: &Path| std::fs::read_to_string(path).unwrap_or_default();
    while !said(&err).contains(" is warm after ") {
        bench.stop.check()?;
        if running.ended()?.is_some() || began.elapsed() > PATIENCE {
            return Err(Error::Failed(format!("cowslip warm: {}", said(&err).trim())));
        }
        thread::sleep(Duration::from_millis(1));
    }
    Ok(running)
}

/// The time until a command printed its first byte, in ns, and all that it printed.
fn first_output(command: &mut Command) -> Result<(f64, String)> {
    let began = Instant::now();
    let spawned = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
    let mut child = spawned.map_err(during("start a program"))?;
    let mut output = child.stdout.take().expect("it is piped");
    let (mut first, mut rest) = ([0], String::new());
    let read = output.read_exact(&mut first);
    let took = began.elapsed().as_nanos() as f64;
    let read = read.and_then(|()| output.read_to_string(&mut rest));
    let status = child.wait().map_err(during("wait for a program"))?;
    if !status.success() {
        return Err(Error::Failed(format!("a start failed ({status})")));
    }
    read.map_err(during("read what a program printed"))?;
    Ok((took, rest))
}
