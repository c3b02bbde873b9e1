//! A machine that boots once, and clones of it.

mod acpi;
mod block;
mod devices;
mod linux;
mod machine;
mod report;
mod state;
mod tiny;

use std::error::Error;
use std::fmt::Display;
use std::fs::{self, File};
use std::io::Read;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use cowslip_sys::procfs::field_bytes;
use cowslip_vm::{GuestRam, GuestTemplate};
use vm_memory::GuestAddress;

use block::Disk;
use machine::Machine;
use state::State;

pub(crate) use machine::Host;
pub(crate) use report::{Answer, Report};

pub(crate) type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// The lines by which a guest talks with its monitor.
const READY: &str = "cowslip: ready";
const ANSWER: &str = "cowslip: answer ";
/// Longer than any device here uses RAM.
const PATIENCE: Duration = Duration::from_secs(10);
/// Passes of the tiny guest until it answers.
const PASSES: u32 = 2;

/// Names the step that failed.
fn during<E: Display>(step: &str) -> impl Fn(E) -> Box<dyn Error + Send + Sync> {
    move |error| format!("{step}: {error}").into()
}

pub(crate) enum Guest {
    /// One of the monitor's own, for each KVM.
    Tiny,
    Linux {
        kernel: PathBuf,
        initrd: Option<PathBuf>,
        words: String,
    },
}

impl Guest {
    fn load(&self, machine: &Machine) -> Result<()> {
        match self {
            Self::Tiny => tiny::load(machine),
            Self::Linux { kernel, initrd, words } => {
                linux::load(machine, kernel, initrd.as_deref(), words)
            }
        }
    }

    /// Words that are wrong in a machine with an answer, if the monitor knows what is right.
    fn wrong_words(&self, machine: &Machine) -> Result<Option<usize>> {
        match self {
            Self::Tiny => tiny::wrong_words(machine.memory(), PASSES).map(Some),
            Self::Linux { .. } => Ok(None),
        }
    }
}

pub(crate) struct Options {
    pub(crate) guest: Guest,
    pub(crate) disk: Option<PathBuf>,
    pub(crate) memory_bytes: u64,
    pub(crate) clones: usize,
    /// The console of the machine that boots is shown.
    pub(crate) console: bool,
}

/// A machine that has said that it is ready, and its RAM.
pub(crate) fn boot(
    host: &Host,
    options: &Options,
    disk: Option<&Arc<Disk>>,
) -> Result<(GuestRam, Machine)> {
    let ram = GuestRam::new(&[(GuestAddress(0), options.memory_bytes)])?;
    let mut machine = Machine::new(host, ram.memory(), disk, options.console)?;
    let mut generation = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut generation)?;
    machine.identify(&generation, false)?;
    options.guest.load(&machine)?;
    machine.run_to(READY)?;
    Ok((ram, machine))
}

/// Boots a machine, keeps it at the instant at which it is ready, and makes clones of it, which all live at once.
pub(crate) fn demonstrate(host: &Host, options: &Options) -> Result<Report> {
    let disk = options.disk.as_deref().map(Disk::open).transpose()?;
    let began = Instant::now();
    let (ram, mut machine) = boot(host, options, disk.as_ref())?;
    let booted = began.elapsed();
    let model = state::readable(host, &machine)?;

    // A monitor with more processors prepares while they run, and then stops them.
    ram.prepare_snapshot()?;
    let began = Instant::now();
    let state = State::read(&mut machine, &model)?;
    let snapshot = ram.snapshot(PATIENCE)?;
    let held = began.elapsed();
    let began = Instant::now();
    let template = snapshot.into_template()?;
    let templated = began.elapsed();

    let original = answer(&mut machine, "original")?;
    let before = own_bytes()?;
    let began = Instant::now();
    let mut clones = Vec::with_capacity(options.clones);
    for _ in 0..options.clones {
        clones.push(make(host, &template, disk.as_ref(), &state)?);
    }
    let made = began.elapsed();
    let each = |after: u64| after.saturating_sub(before) / options.clones.max(1) as u64;
    let first_bytes = each(own_bytes()?);
    let began = Instant::now();
    let (mut answers, mut wrong) = (vec![original], options.guest.wrong_words(&machine)?);
    for (number, clone) in clones.iter_mut().enumerate() {
        answers.push(answer(clone, &format!("clone-{number}"))?);
        wrong = wrong.zip(options.guest.wrong_words(clone)?).map(|(all, more)| all + more);
    }
    let answered = began.elapsed();
    let own_bytes = each(own_bytes()?);
    Ok(Report { booted, held, templated, made, answered, first_bytes, own_bytes, wrong, answers })
}

/// A machine of the template, with an identity of its own.
fn make(
    host: &Host,
    template: &GuestTemplate,
    disk: Option<&Arc<Disk>>,
    state: &State,
) -> Result<Machine> {
    let ram = GuestRam::clone_of(template)?;
    let machine = Machine::resume(host, ram.memory(), disk, state)?;
    let entropy = ram.entropy();
    machine.identify(entropy.first_chunk().expect("32 bytes"), true)?;
    Ok(machine)
}

/// Tells a machine its name, and waits for its answer: a random number, and the time if it has a clock.
fn answer(machine: &mut Machine, name: &str) -> Result<Answer> {
    machine.say(&format!("{name}\n"))?;
    let line = machine.run_to(ANSWER)?;
    let mut words = line[ANSWER.len()..].split_whitespace();
    let random = words.next().ok_or("an answer without a random number")?.to_owned();
    let now = SystemTime::UNIX_EPOCH.elapsed()?.as_secs();
    let time = words.next().map(str::parse::<u64>).transpose()?;
    let rest = words.collect::<Vec<_>>().join(" ");
    Ok(Answer { random, off_seconds: time.map(|time| time.abs_diff(now)), rest })
}

/// Pages that are this process' alone, and its page tables. Those that KVM has for the processors are not counted.
fn own_bytes() -> Result<u64> {
    let (status, memory) =
        (fs::read_to_string("/proc/self/status")?, fs::read_to_string("/proc/self/smaps_rollup")?);
    let all = [field_bytes(&status, "VmPTE"), field_bytes(&memory, "Anonymous")];
    Ok(all.into_iter().flatten().sum())
}
