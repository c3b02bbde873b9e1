//! An unmodified `redis-server` that answers GETs, natively and under `cowslip run`, in turns.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use crate::report::Row;

use super::{Bench, LEAST_ROUNDS, MOST_ROUNDS, Options};
use crate::error::{Error, Result};
use crate::interrupt::Interrupt;
use crate::program::{Folder, Launch, Running};
use crate::rows::median;

pub(in crate::fork) const METRIC: &str = "redis_get";
const NEEDS: &str = "apt-get install redis-server redis-tools";
const LAUNCHES: [Launch; 3] = [Launch::Stock, Launch::StockThp, Launch::Cowslip];
const VALUE_BYTES: u64 = 1000;
const GETS: &str = "1000000";
const FIRST_ANSWER: Duration = Duration::from_secs(30);

/// A server on a socket in a folder, both of which end with it.
struct Server {
    _running: Running,
    folder: Folder,
    launch: Launch,
    keys: String,
}

pub(super) fn measure(bench: &mut Bench<'_>, options: &Options) -> Result<()> {
    let bytes = options.working_bytes() as u64;
    let mut servers = Vec::new();
    for launch in LAUNCHES {
        bench.progress.phase(&format!("Redis GET: filling {}", launch.label()));
        match Server::start(launch, bytes / VALUE_BYTES, bench) {
            Ok(server) => servers.push((server, Vec::new())),
            Err(Error::Failed(why)) => {
                let row = Row::skipped(launch.name(), METRIC, format!("{why}; {NEEDS}"));
                bench.report.row(row.size_bytes(bytes));
            }
            Err(error) => return Err(error),
        }
    }
    // The first round warms up.
    for round in bench.clock.rounds(1.0, 1 + LEAST_ROUNDS, 1 + MOST_ROUNDS) {
        bench.progress.phase(&format!("Redis GET: round {round} of {MOST_ROUNDS}"));
        for (server, log) in &mut servers {
            let rate = server.gets_per_second(bench.stop)?;
            if round > 0 {
                log.push(rate);
            }
        }
    }
    for (server, log) in &servers {
        let rate = median(log).unwrap_or(f64::NAN);
        let row = Row::new(server.launch.name(), METRIC, "p50", rate, "1/s");
        bench.report.row(row.size_bytes(bytes).n(log.len() as u64));
    }
    Ok(())
}

impl Server {
    fn start(launch: Launch, keys: u64, bench: &Bench<'_>) -> Result<Self> {
        let stop = bench.stop;
        let folder = Folder::new(&format!("redis-{}", launch.name()))?;
        let mut command = launch.command(Path::new("redis-server"))?;
        command.args(["--port", "0", "--save", "", "--appendonly", "no", "--unixsocket"]);
        command.arg(folder.path().join("socket")).arg("--dir").arg(folder.path());
        if launch == Launch::StockThp {
            // By default Redis declines the huge pages that malloc requests.
            command.args(["--disable-thp", "no"]);
        }
        let log = folder.path().join("log");
        let running = Running::start(&mut command, &log, &log)?;
        let mut server = Self { _running: running, folder, launch, keys: keys.to_string() };
        server.wait_ready(stop)?;
        let (values, value_bytes) = ((2 * keys).to_string(), VALUE_BYTES.to_string());
        server.benchmark(&["-t", "set", "-n", &values, "-d", &value_bytes, "-P", "64"], stop)?;
        Ok(server)
    }

    fn wait_ready(&mut self, stop: &Interrupt) -> Result<()> {
        let began = Instant::now();
        loop {
            let answer = self.client("redis-cli", &["ping"], stop);
            match answer {
                Ok(answer) if answer.trim() == "PONG" => return Ok(()),
                Err(Error::Interrupted) => return Err(Error::Interrupted),
                Ok(why) | Err(Error::Failed(why)) if began.elapsed() > FIRST_ANSWER => {
                    return Err(Error::Failed(format!("redis-server does not answer: {why}")));
                }
                _ => thread::sleep(Duration::from_millis(20)),
            }
        }
    }

    fn gets_per_second(&self, stop: &Interrupt) -> Result<f64> {
        let printed = self.benchmark(&["-t", "get", "-n", GETS, "-P", "16"], stop)?;
        rate(&printed).ok_or_else(|| Error::Failed(format!("redis-benchmark printed {printed:?}")))
    }

    fn benchmark(&self, arguments: &[&str], stop: &Interrupt) -> Result<String> {
        let all = [&["--csv", "-c", "20", "-r", &self.keys], arguments].concat();
        self.client("redis-benchmark", &all, stop)
    }

    fn client(
        &self,
        tool: &str,
        arguments: &[impl AsRef<OsStr>],
        stop: &Interrupt,
    ) -> Result<String> {
        let mut command = Command::new(tool);
        command.arg("-s").arg(self.folder.path().join("socket")).args(arguments);
        self.folder.finish(&mut command, stop)
    }
}

/// The second word of the last line: `"GET","123456.78",...`.
fn rate(printed: &str) -> Option<f64> {
    let words = printed.lines().last()?.split(',');
    words.map(|word| word.trim_matches('"')).nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_of_redis_benchmark() {
        let printed = "\"test\",\"rps\",\"avg_latency_ms\"\n\"GET\",\"65359.48\",\"0.219\"\n";
        assert_eq!(rate(printed), Some(65_359.48));
        assert_eq!(rate("\"test\",\"rps\"\n"), None);
        assert_eq!(rate(""), None);
    }
}
