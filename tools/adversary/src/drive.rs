//! Many programs, each natively and then in every mode.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::generate::generate;
use crate::late::Late;
use crate::program::Program;
use crate::run::{self, Done, Mode, Place};
use crate::shrink::Shrinker;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Seconds to run, if no rounds are given
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Number of programs
    #[arg(long)]
    rounds: Option<u64>,
    /// The first seed; the others follow. Random if it is not given
    #[arg(long)]
    seed: Option<u64>,
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Mode::ALL)]
    modes: Vec<Mode>,
    /// Number of programs that run at once
    #[arg(long, default_value_t = 3)]
    jobs: usize,
    /// Operations and words to leave out, such as `direct,futex,_Fork`
    #[arg(long, value_delimiter = ',')]
    without: Vec<String>,
    /// Seconds after which a program counts as hanging
    #[arg(long, default_value_t = 20)]
    limit_s: u64,
    /// Seconds for making a failing program smaller
    #[arg(long, default_value_t = 60)]
    shrink_s: u64,
    /// Number of failures after which to end
    #[arg(long, default_value_t = 1)]
    failures: usize,
    /// File for the totals
    #[arg(long)]
    json: Option<PathBuf>,
}

type Failure = Box<dyn std::error::Error>;

/// The totals of each mode.
#[derive(Default)]
struct Totals(BTreeMap<&'static str, (u64, u64, Done)>);

impl Totals {
    fn add(&mut self, mode: Mode, done: &Done) {
        let (programs, failures, sum) = self.0.entry(mode.name()).or_default();
        *programs += 1;
        *failures += u64::from(done.failure.is_some());
        sum.calls += done.calls;
        sum.forks += done.forks;
        sum.processes += done.processes;
        sum.pages += done.pages;
        sum.refused += done.refused;
        sum.freezes += done.freezes;
        sum.thaws += done.thaws;
    }

    fn print(&self, seconds: f64, seeds: u64) {
        for (mode, (programs, failures, done)) in &self.0 {
            let Done { calls, forks, processes, pages, refused, freezes, thaws, .. } = done;
            println!(
                "adversary {mode}: {programs} programs, {processes} processes, {forks} forks, {calls} calls, \
                 {pages} pages looked at, {refused} refused, {freezes} freezes and {thaws} thaws of the \
                 first process, {failures} failures"
            );
        }
        let (failures, all) =
            self.0.values().fold((0, 0), |sum, counts| (sum.0 + counts.1, sum.1 + counts.0));
        println!("adversary: {seeds} seeds, {all} runs in {seconds:.0} s, {failures} failures");
    }

    fn json(&self, seconds: f64) -> serde_json::Value {
        let modes = self.0.iter().map(|(mode, (programs, failures, done))| {
            serde_json::json!({
                "mode": mode, "programs": programs, "failures": failures, "calls": done.calls,
                "forks": done.forks, "processes": done.processes, "pages": done.pages,
                "refused": done.refused, "freezes": done.freezes, "thaws": done.thaws,
            })
        });
        let modes: Vec<_> = modes.collect();
        serde_json::json!({ "schema": "cowslip.adversary/1", "seconds": seconds, "modes": modes })
    }
}

/// The place of the binaries, and a folder of this run, removed when this is dropped.
struct Scratch(Place, Option<Late>);

impl Scratch {
    fn new() -> Result<Self, Failure> {
        let program = std::env::current_exe()?;
        let beside = || program.with_file_name("cowslip");
        let cowslip = std::env::var_os("COWSLIP_PROGRAM").map_or_else(beside, PathBuf::from);
        if !cowslip.exists() {
            return Err(format!("{} is missing: build the workspace", cowslip.display()).into());
        }
        let name = format!("cowslip-adversary-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder)?;
        let interposer = folder.join("interposer.so");
        let late = match Late::mount(&folder) {
            Ok(late) => Some(late),
            Err(error) => {
                println!("SKIPPED: adversary, reads of a FUSE file system: {error}");
                None
            }
        };
        Ok(Self(Place { program, cowslip, folder, interposer }, late))
    }

    /// Builds the library of [`Mode::Interposed`].
    fn build_interposer(&self) -> Result<(), Failure> {
        let source = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../crates/cowslip-cli/tests/programs/interposer.c"
        );
        let mut cc = Command::new("cc");
        cc.args(["-O1", "-fno-builtin", "-shared", "-fPIC", "-o"]).arg(&self.0.interposer);
        let status = cc.arg(source).status().map_err(|error| format!("cc: {error}"))?;
        if status.success() { Ok(()) } else { Err(format!("cc: {status}").into()) }
    }

    /// The modes that work here; the reason is printed for those that do not.
    fn modes(&self, wanted: &[Mode]) -> Result<Vec<Mode>, Failure> {
        let probe = "process 0\nthread 0\nmap region=1 pages=100 how=rw\nfill region=1 first=0 count=100\n\
                     fork process=1 how=fork hold=free\nprocess 1\nthread 0\nverify region=1\n";
        let probe = Program::parse(probe)?;
        let mut modes = vec![Mode::Native];
        for mode in Mode::ALL {
            if mode == Mode::Native || !wanted.contains(&mode) {
                continue;
            }
            let built = if mode == Mode::Interposed { self.build_interposer() } else { Ok(()) };
            let run = || Ok(self.0.run(&probe, mode, 0, Duration::from_secs(20))?);
            let why = match built.and_then(|()| run()) {
                Err(error) => error.to_string(),
                Ok(ran) if ran.calls == 0 => ran.failure.unwrap_or_default(),
                Ok(ran) if ran.freezes == 0 => "it does not freeze".to_owned(),
                Ok(ran) if mode.has_userfaultfd() && !ran.has_userfaultfd => {
                    "userfaultfd is not to be had".to_owned()
                }
                Ok(_) => {
                    modes.push(mode);
                    continue;
                }
            };
            let needs = if mode.has_userfaultfd() { "userfaultfd" } else { "root" };
            let expected = std::env::var("COWSLIP_EXPECT").unwrap_or_default();
            if expected.split(',').any(|capability| capability == needs) {
                return Err(format!("adversary {}: {}", mode.name(), why.trim()).into());
            }
            println!("SKIPPED: adversary {}: {}", mode.name(), why.trim());
        }
        Ok(modes)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        drop(self.1.take());
        let _ = std::fs::remove_dir_all(&self.0.folder);
    }
}

/// Runs many programs; true if none failed.
pub(crate) fn run(options: &Options) -> Result<bool, Failure> {
    run::collect_orphans();
    let scratch = Scratch::new()?;
    let modes = scratch.modes(&options.modes)?;
    let first = options.seed.unwrap_or_else(|| fastrand::u64(..1 << 40));
    println!("adversary: seeds from {first} on, {modes:?}");
    let (begun, next) = (Instant::now(), AtomicU64::new(0));
    let until = begun + Duration::from_secs(options.seconds);
    let failures = AtomicUsize::new(0);
    let totals = Mutex::new(Totals::default());
    std::thread::scope(|scope| {
        for job in 0..options.jobs {
            let (scratch, modes, next, failures, totals) =
                (&scratch.0, &modes, &next, &failures, &totals);
            scope.spawn(move || {
                loop {
                    let round = next.fetch_add(1, Relaxed);
                    let is_over = match options.rounds {
                        Some(rounds) => round >= rounds,
                        None => Instant::now() > until,
                    };
                    if is_over || failures.load(Relaxed) >= options.failures {
                        return;
                    }
                    let seed = first + round;
                    let program = generate(seed, &options.without);
                    let fails = try_modes(scratch, options, modes, job, seed, &program, totals);
                    failures.fetch_add(usize::from(fails), Relaxed);
                }
            });
        }
    });
    let seconds = begun.elapsed().as_secs_f64();
    let totals = totals.into_inner()?;
    totals.print(seconds, next.load(Relaxed).saturating_sub(options.jobs as u64));
    if let Some(path) = &options.json {
        std::fs::write(path, totals.json(seconds).to_string() + "\n")?;
    }
    Ok(failures.load(Relaxed) == 0)
}

/// Runs a program natively first; true if it fails in one of the modes. That mode is printed with a smaller
/// program.
fn try_modes(
    place: &Place,
    options: &Options,
    modes: &[Mode],
    job: usize,
    seed: u64,
    program: &Program,
    totals: &Mutex<Totals>,
) -> bool {
    for mode in modes {
        let limit = Duration::from_secs(options.limit_s);
        let done = match place.run(program, *mode, job, limit) {
            Ok(done) => done,
            Err(error) => Done { failure: Some(error.to_string()), ..Done::default() },
        };
        totals.lock().expect("nobody panics with it").add(*mode, &done);
        let Some(failure) = done.failure else { continue };
        // A smaller program may fail for another reason.
        println!("seed {seed} {} fails, and is made smaller:\n{failure}", mode.name());
        let until = Instant::now() + Duration::from_secs(options.shrink_s);
        let limit = limit.min(Duration::from_secs(3));
        let shrinker = Shrinker { place, mode: *mode, job, limit, until };
        let (small, said) = shrinker.shrink(program.clone(), failure);
        let whose = if *mode == Mode::Native { " (the generator's own bug)" } else { "" };
        let options = options.without.iter().map(String::as_str).collect::<Vec<_>>().join(",");
        println!(
            "FAILED: seed {seed} {}{whose}, {} of its {} calls:\n{said}\n{small}\
             again: cowslip-adversary replay {seed} --modes {} --without '{options}'",
            mode.name(),
            small.calls(),
            program.calls(),
            mode.name(),
        );
        return true;
    }
    false
}

/// Repeats a program from a seed or a file in each mode.
pub(crate) fn replay(what: &str, times: u64, options: &Options) -> Result<bool, Failure> {
    run::collect_orphans();
    let scratch = Scratch::new()?;
    let program = match what.parse() {
        Ok(seed) => generate(seed, &options.without),
        Err(_) => Program::parse(&std::fs::read_to_string(what)?)?,
    };
    println!("{program}");
    let modes = scratch.modes(&options.modes)?;
    let mut failures = 0;
    for mode in modes {
        for _ in 0..times {
            let begun = Instant::now();
            let done = scratch.0.run(&program, mode, 0, Duration::from_secs(options.limit_s))?;
            let took = begun.elapsed().as_millis();
            let Done { calls, forks, freezes, .. } = done;
            let said = done.failure.as_deref().unwrap_or("as it must be");
            println!(
                "{}: {took} ms, {calls} calls, {forks} forks, {freezes} freezes: {said}",
                mode.name()
            );
            failures += u64::from(done.failure.is_some());
        }
    }
    Ok(failures == 0)
}
