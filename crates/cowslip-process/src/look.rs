//! What a copy of a process would lack, found before anything is touched.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use cowslip_sys::error::{Error, ErrorKind, Result};
use cowslip_sys::procfs::{self, Mapping};
use cowslip_sys::target::Target;
use cowslip_sys::units::ByteCount;
use cowslip_sys::units::VirtRange;
use cowslip_sys::{Errno, process};

use crate::branch::PrivateFolders;
use crate::inject::Sites;
use crate::kept::{emptied, from_smaps, out_of_core_files};
use crate::library::{Library, Own};
use crate::stop::children;
use crate::things::{Fate, Thing};
use crate::timers::PosixTimer;
use crate::{descriptors, queues, shared, things};

pub(crate) const OPERATION: &str = "hold a process";

/// The error of a call about another process.
pub(crate) fn failed(errno: Errno) -> Error {
    let error = Error::from_errno(OPERATION, errno);
    match errno {
        Errno::PERM | Errno::ACCESS => error
            .because("it may not be traced by this process")
            .advise("run as its user or as root, and see kernel.yama.ptrace_scope"),
        Errno::SRCH => error.because("it has ended, or is a thread of the kernel"),
        Errno::NODEV => {
            error.because("this processor has no XSAVE, by which its vector registers are read")
        }
        Errno::TIMEDOUT => error
            .because(
                "one of its threads is in a call that nothing interrupts, or gets no processor",
            )
            .advise("try again later"),
        _ => error,
    }
}

/// A thing of a process that a copy does not have as the process has it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Lack {
    /// Its name there, such as `descriptor 7, socket:[4711]`.
    pub what: String,
    /// Its kind.
    pub thing: &'static Thing,
}

impl Lack {
    /// True if there can be no copy.
    pub fn is_fatal(&self) -> bool {
        self.thing.fate == Fate::Refused
    }

    /// True if no thread of the process can be made to fork.
    fn forbids_calls(&self) -> bool {
        [things::STATE, things::TRACER, things::FILTER, things::SHADOW_STACKS].contains(&self.thing)
    }

    /// True if a checkpoint alone lacks it.
    pub fn is_of_checkpoint(&self) -> bool {
        self.thing.fate == Fate::LackingInCheckpoint
    }

    /// True for memory that a checkpoint [leaves out](crate::Holder::forget_secrets).
    pub fn is_secret(&self) -> bool {
        self.thing == things::SECRETS
    }
}

impl fmt::Display for Lack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.thing.why)
    }
}

/// A look at a process, to be [held](Plan::hold).
#[derive(Debug)]
pub struct Plan {
    pub(crate) target: Arc<Target>,
    pub(crate) sites: Sites,
    pub(crate) library: Option<Library>,
    /// It keeps memory from its children.
    pub(crate) keeps: bool,
    /// Memory that core files lack.
    pub(crate) secrets: Vec<VirtRange>,
    /// The ends of its own queues.
    pub(crate) queues: Vec<(i32, String)>,
    /// Folders of which copies are to have their own.
    pub(crate) private: PrivateFolders,
    /// The program does not go on after the instant.
    pub(crate) stays_stopped: bool,
    /// A copy of it will not run.
    memory_alone: bool,
    /// The program is to be taken back to the instant.
    pub(crate) is_mark: bool,
    lacks: Vec<Lack>,
}

impl Plan {
    /// Has the holder know the sizes that files in these folders have at the instant: files that the program writes meanwhile
    /// end there in [copies](crate::CopyOptions::private). Returns a list of the files there that copies share with the program.
    ///
    /// # Errors
    /// Those of [`PrivateFolders::shared`].
    pub fn keep_private(&mut self, folders: &PrivateFolders) -> Result<Vec<String>> {
        self.private = folders.clone();
        folders.shared(self.target.pid())
    }

    /// Has the program stand still from the instant until the holder is dropped. It goes on then, also if this process ends
    /// before. A program under `cowslip run` cannot be held so.
    #[must_use]
    pub fn stay_stopped(self) -> Self {
        Self { stays_stopped: true, ..self }
    }

    /// Only the program's memory is wanted: a thing that a copy of it would lack does not keep it from being held. Shared
    /// memory is not of the instant.
    pub fn memory_alone(mut self) -> Self {
        self.memory_alone = true;
        self
    }

    pub(crate) fn is_of_memory_alone(&self) -> bool {
        self.memory_alone
    }

    /// Fails for the first lack that allows no copy.
    pub(crate) fn refuse(&self, lacks: &[Lack]) -> Result<()> {
        let is_fatal = |lack: &&Lack| match self.memory_alone {
            true => lack.forbids_calls(),
            false => lack.is_fatal(),
        };
        lacks.iter().find(is_fatal).map_or(Ok(()), |lack| {
            Err(Error::new(ErrorKind::Unsupported, OPERATION).because(lack.to_string()))
        })
    }

    /// True for a program under `cowslip run`, which cannot be [marked](crate::Mark).
    pub fn has_library(&self) -> bool {
        self.library.is_some()
    }

    /// True if that has its memory in files that no other process can look up: it was not started with `--backing base`.
    pub fn hides_files(&self) -> bool {
        self.library.as_ref().is_some_and(|library| library.hides_files)
    }

    /// What a copy would lack. A fatal one keeps the process from being held.
    pub fn lacks(&self) -> &[Lack] {
        &self.lacks
    }
}

/// Looks at a process, and does not touch it.
///
/// # Errors
/// [`ErrorKind::Vanished`] if there is none; [`ErrorKind::Denied`] if this process may not look;
/// [`ErrorKind::Unsupported`] if it lacks the code that a call on its behalf needs; [`ErrorKind::Usage`] for this process.
pub fn look(pid: i32) -> Result<Plan> {
    if pid == process::pid() {
        return Err(Error::new(ErrorKind::Usage, OPERATION).because("it is this process"));
    }
    let target = Arc::new(Target::open(pid).map_err(failed)?);
    look_at(&target).map_err(|error| unless_ended(&target, error))
}

/// The error of an operation, unless the process has ended meanwhile: calls fail in many ways then.
pub(crate) fn unless_ended(target: &Target, error: Error) -> Error {
    let maps = target.read_file("maps");
    match maps.is_ok_and(|maps| maps.is_empty()) || target.has_ended().unwrap_or(false) {
        true => failed(Errno::SRCH),
        false => error,
    }
}

fn look_at(target: &Arc<Target>) -> Result<Plan> {
    let pid = target.pid();
    let maps = target.read_file("maps").map_err(failed)?;
    if maps.is_empty() {
        return Err(failed(Errno::SRCH));
    }
    let sites = Sites::find(target, &maps).map_err(failed)?.ok_or_else(|| {
        Error::new(ErrorKind::Unsupported, OPERATION)
            .because("its program and its libraries never return from a signal handler")
    })?;
    let mut lacks = Vec::new();
    in_status(&target.read_file("status").map_err(failed)?, &mut lacks);
    let library = Library::find(target, &maps).map_err(failed)?;
    let own = library.as_ref().map(|library| library.own(&maps)).unwrap_or_default();
    in_memory(target, &maps, &own, &mut lacks).map_err(failed)?;
    let smaps = target.read_file("smaps").map_err(failed)?;
    in_flags(&smaps, &own, &mut lacks);
    // A holder is a child: the first process of its PID namespace, without which there can be no other, or with another time.
    for (kind, name) in [("pid", "PID"), ("time", "time")] {
        let of_children = namespace(&pid.to_string(), &format!("{kind}_for_children"));
        if of_children != namespace(&pid.to_string(), kind) {
            lack(&mut lacks, format!("a {name} namespace for its children"), things::NAMESPACE);
        }
    }
    // CRIU gives each process that it restores a time namespace.
    for kind in ["pid", "net", "mnt", "ipc", "uts", "user", "cgroup"] {
        let (theirs, own) = (namespace(&pid.to_string(), kind), namespace("self", kind));
        if theirs.is_none() && own.is_some() {
            // The kernel takes the namespaces of a process that ends before its memory.
            return Err(failed(Errno::SRCH));
        }
        if theirs != own {
            lack(&mut lacks, format!("its {kind} namespace"), things::NAMESPACE);
        }
    }
    if pid == 1 {
        lack(&mut lacks, "process 1", things::FIRST_PROCESS);
    }
    if !children(pid).is_empty() {
        lack(&mut lacks, "its children", things::CHILDREN);
    }
    let timers = target.read_file("timers").unwrap_or_default();
    if PosixTimer::parse_all(&timers).is_none() {
        lack(&mut lacks, "timers of timer_create(2)", things::POSIX_TIMERS);
    }
    let links = descriptors::links(pid).map_err(failed)?;
    // The holder has none of the library's.
    in_descriptors(&links, |link| library.is_none() || !is_for_service(link), &mut lacks);
    // /proc/locks names no process for locks of open files (`F_OFD_SETLK`), nor for those from before a fork.
    if descriptors::states(pid).map_err(failed)?.iter().any(|state| state.field("lock").is_some()) {
        lack(&mut lacks, "locks of files", things::FILE_LOCKS);
    }
    let keeps = library.is_none() && !from_smaps(&smaps, &own).is_empty();
    let secrets = out_of_core_files(&smaps, &own);
    let queues = queues::own(&links).map_err(failed)?;
    let private = PrivateFolders::default();
    Ok(Plan {
        target: Arc::clone(target),
        sites,
        library,
        keeps,
        secrets,
        queues,
        private,
        stays_stopped: false,
        memory_alone: false,
        is_mark: false,
        lacks,
    })
}

fn lack(lacks: &mut Vec<Lack>, what: impl Into<String>, thing: &'static Thing) {
    lacks.push(Lack { what: what.into(), thing });
}

/// A field of the text of `/proc/PID/status`.
pub(crate) fn field<'a>(status: &'a str, name: &str) -> &'a str {
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.map_or("", str::trim)
}

/// True if a filter of calls is in force (`seccomp(2)`), by the text of `/proc/PID/status`.
pub(crate) fn is_filtered(status: &str) -> bool {
    !matches!(field(status, "Seccomp"), "0" | "")
}

/// Finds lacks by the text of `/proc/PID/status`.
fn in_status(status: &str, lacks: &mut Vec<Lack>) {
    let field = |name: &str| field(status, name);
    if !matches!(field("TracerPid"), "0" | "") {
        lack(lacks, format!("tracer {}", field("TracerPid")), things::TRACER);
    }
    if [field("SigPnd"), field("ShdPnd")].iter().any(|set| set.contains(|digit| digit != '0')) {
        lack(lacks, "pending signals", things::PENDING_SIGNALS);
    }
    if !matches!(field("VmLck"), "0 kB" | "") {
        lack(lacks, format!("{} of locked memory", field("VmLck")), things::LOCKED_MEMORY);
    }
    if is_filtered(status) {
        lack(lacks, "seccomp(2)", things::FILTER);
    }
    if field("State").starts_with(['T', 't', 'Z', 'X']) {
        lack(lacks, format!("state {}", field("State")), things::STATE);
    }
    if field("x86_Thread_features").contains("shstk") {
        lack(lacks, "shadow stacks", things::SHADOW_STACKS);
    }
}

/// Finds lacks by the text of `/proc/PID/maps`.
pub(crate) fn in_memory(
    target: &Target,
    maps: &str,
    own: &Own,
    lacks: &mut Vec<Lack>,
) -> Result<(), Errno> {
    for mapping in procfs::mappings(maps) {
        if shared::is_secret(&mapping) {
            lack(lacks, format!("memory at {}", mapping.range), things::SECRET_MEMORY);
        } else if shared::is_ring(&mapping) {
            lack(lacks, format!("a ring at {}", mapping.range), things::RINGS);
        }
    }
    let mut all = shared::written(maps, own).peekable();
    if all.peek().is_none() {
        return Ok(());
    }
    let links = descriptors::links(target.pid())?;
    let is_copied = shared::can_be_copied(maps, own);
    let is_others = |mapping: &Mapping<'_>| {
        !(is_copied && shared::is_unnamed(mapping)) || shared::has_descriptor(mapping, &links)
    };
    all.filter(is_others).for_each(|mapping| lack_shared(&mapping, lacks));
    Ok(())
}

/// Notes memory that a copy would share with the program.
pub(crate) fn lack_shared(mapping: &Mapping<'_>, lacks: &mut Vec<Lack>) {
    let (from, to) = (mapping.range.start, mapping.range.end());
    let what = format!("shared memory at {from:#x}..{to:#x}, {}", mapping.name);
    lack(lacks, what, things::SHARED_MEMORY);
}

/// Finds memory that a fork empties, and that core files lack, by the text of `/proc/PID/smaps`.
fn in_flags(smaps: &str, own: &Own, lacks: &mut Vec<Lack>) {
    let secrets: usize = out_of_core_files(smaps, own).iter().map(|range| range.len).sum();
    if secrets > 0 {
        let bytes = ByteCount(secrets as u64);
        lack(lacks, format!("{bytes} that core files lack (MADV_DONTDUMP)"), things::SECRETS);
    }
    if !emptied(smaps, own).is_empty() {
        lack(lacks, "memory that is empty in children (MADV_WIPEONFORK)", things::WIPED);
    }
}

/// A namespace of a process.
fn namespace(process: &str, kind: &str) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{process}/ns/{kind}")).ok()
}

/// Finds lacks by the descriptors that count.
pub(crate) fn in_descriptors(
    links: &[(i32, String)],
    counts: impl Fn(&str) -> bool,
    lacks: &mut Vec<Lack>,
) {
    for (number, link) in links.iter().filter(|(_, link)| counts(link)) {
        if let Some(thing) = of_descriptor(link) {
            lack(lacks, format!("descriptor {number}, {link}"), thing);
        }
    }
}

/// Returns true for descriptors like those that the library of `cowslip run` has for its service thread.
fn is_for_service(link: &str) -> bool {
    let is_memory = link.starts_with("/proc/") && link.ends_with("/mem");
    is_memory || link == "anon_inode:[userfaultfd]"
}

/// The kind of a descriptor that a copy lacks.
fn of_descriptor(link: &str) -> Option<&'static Thing> {
    let kind = link.strip_prefix("anon_inode:").map(|kind| kind.trim_matches(['[', ']']));
    match kind {
        Some("eventfd" | "timerfd") => None,
        Some("eventpoll" | "signalfd") => Some(things::SETS),
        Some("io_uring" | "userfaultfd" | "perf_event" | "inotify" | "fanotify") => {
            Some(things::QUEUES_OF_KERNEL)
        }
        Some(kind) if kind.starts_with("bpf") || kind.starts_with("kvm") => Some(things::INSTANCES),
        Some(_) => Some(things::OTHER_INODE),
        None if link.starts_with("socket:") => Some(things::CONNECTIONS),
        None if link.starts_with("/proc/") && link.ends_with("/mem") => Some(things::MEMORY_FILE),
        None if is_terminal(link) => Some(things::TERMINAL),
        None if link.starts_with("/dev/") && !link.starts_with("/dev/shm/") => {
            const WITHOUT_STATE: [&str; 5] = ["null", "zero", "full", "random", "urandom"];
            let has_state = !WITHOUT_STATE.contains(&&link["/dev/".len()..]);
            has_state.then_some(things::DEVICE)
        }
        None if link.starts_with("pipe:") => Some(things::PIPES),
        None => None,
    }
}

/// Returns true for the name of a terminal.
pub(crate) fn is_terminal(link: &str) -> bool {
    ["/dev/pts/", "/dev/tty", "/dev/console"].iter().any(|name| link.starts_with(name))
}
