//! Chooses the events to open, by the options and the permissions.

use cowslip_sys::Errno;
use cowslip_sys::perf::{
    Attributes, Callers, Event, Field, Kind, Layout, Refusal, Scope, Tracepoint,
};

use super::error::{Error, ErrorKind};
use super::options::{COPIED_BYTES, Detail, MOST_FRAMES, Options, Stacks, Unwinding};
use super::status::{self, PermissionStatus};
use crate::model::Severity;

/// The meaning of an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Role {
    /// A thread is on a processor.
    Tick,
    /// A fault ends.
    End(Severity),
    /// A fault begins, without details.
    Begin,
    /// A fault begins, with details.
    Entry,
    /// A huge page is allocated.
    HugePage,
    /// A call begins.
    Enter(Call),
    /// A call ends.
    Leave(Call),
    /// Any system call begins.
    AnyEnter,
    /// Any system call ends.
    AnyLeave,
}

/// A call that changes mappings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Call {
    Map,
    Unmap,
    Remap,
    Advise,
    Break,
}

pub(super) const CALLS: [(Call, &str); 5] = [
    (Call::Map, "mmap"),
    (Call::Unmap, "munmap"),
    (Call::Remap, "mremap"),
    (Call::Advise, "madvise"),
    (Call::Break, "brk"),
];

/// The tracepoints at the entry of a fault: touched by the program, and by the kernel.
pub(super) const ENTRIES: [&str; 2] =
    ["exceptions/page_fault_user", "exceptions/page_fault_kernel"];
pub(super) const ALLOCATION: &str = "kmem/mm_page_alloc";
/// An allocation that maps 2 MiB with pages of 4 KiB.
const HUGE_ORDER: &str = "order >= 9";

impl Role {
    /// The tracepoint's fields that are read, in this order.
    fn fields(self) -> &'static [&'static str] {
        match self {
            Self::Enter(Call::Map) => &["len", "prot", "flags", "off"],
            Self::Enter(Call::Unmap) => &["addr", "len"],
            Self::Enter(Call::Remap) => &["addr", "old_len", "new_len", "flags"],
            Self::Enter(Call::Advise) => &["start", "len_in", "behavior"],
            Self::Leave(_) => &["ret"],
            Self::AnyEnter => &["id"],
            Self::Entry => &["address", "error_code"],
            Self::Tick
            | Self::Enter(Call::Break)
            | Self::AnyLeave
            | Self::HugePage
            | Self::Begin
            | Self::End(_) => &[],
        }
    }
}

/// An event to be opened for each thread on each processor.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) role: Role,
    pub(super) attributes: Attributes,
    pub(super) filter: Option<&'static str>,
    fields: Vec<Field>,
    /// Kept until the source is used: the kernel takes 30 ms to switch off a tracepoint without users.
    probe: Option<Event>,
}

impl Source {
    fn software(kind: Kind, role: Role, period: u64) -> Self {
        let attributes = Attributes {
            kind,
            period,
            callers: None,
            in_kernel: false,
            follows: false,
            in_children: true,
            starts_at_exec: false,
        };
        Self { role, attributes, filter: None, fields: Vec::new(), probe: None }
    }

    /// # Errors
    /// The obstacle to using it, as a [`PermissionStatus`].
    pub(super) fn tracepoint(name: &str, role: Role) -> Result<Self, PermissionStatus> {
        let point = Tracepoint::find(name).map_err(status::unfound)?;
        let fields = role.fields().iter().map(|name| point.field(name)).collect::<Option<Vec<_>>>();
        let mut source = Self::software(Kind::Tracepoint(point.id), role, 1);
        source.attributes.in_kernel = true;
        source.fields = fields.ok_or(PermissionStatus::Unsupported)?;
        if role == Role::HugePage {
            source.filter = Some(HUGE_ORDER);
        }
        source.probe = Some(source.probe().map_err(status::refused)?);
        Ok(source)
    }

    /// Opens it for this thread, if that is possible here.
    fn probe(&self) -> Result<Event, Errno> {
        let event = Event::open(&self.attributes, Scope::Thread(0), 0)?;
        if let Some(filter) = self.filter {
            event.filter(filter)?;
        }
        Ok(event)
    }

    pub(super) fn layout(&self) -> Layout {
        let has_fields = matches!(self.attributes.kind, Kind::Tracepoint(_));
        let callers = self.attributes.callers;
        Layout {
            has_stack: matches!(callers, Some(Callers::FramePointers(_))),
            has_fields,
            has_copy: matches!(callers, Some(Callers::Copy(_))),
        }
    }

    /// The fields of its role; missing ones are 0.
    pub(super) fn read(&self, bytes: &[u8]) -> [u64; 4] {
        let mut values = [0; 4];
        for (value, field) in values.iter_mut().zip(&self.fields) {
            *value = field.read(bytes).unwrap_or(0);
        }
        values
    }
}

fn callers(options: &Options) -> Callers {
    match options.unwinding {
        Unwinding::FramePointers => Callers::FramePointers(MOST_FRAMES),
        Unwinding::Dwarf => Callers::Copy(COPIED_BYTES),
    }
}

/// The events to open, and the events that are therefore missing.
#[derive(Debug)]
pub(super) struct Plan {
    /// The first one owns the rings, and follows threads, processes and mappings.
    pub(super) sources: Vec<Source>,
    /// The names of the events, as in `perf list`.
    pub(super) names: Vec<String>,
    pub(super) unseen: Vec<String>,
}

impl Plan {
    pub(super) fn new(options: &Options, starts_at_exec: bool) -> Result<Self, Error> {
        if options.period == 0 || (options.period > 1 && options.detail == Detail::Access) {
            let what =
                "one of 0 faults, or of many with their ends and beginnings, cannot be recorded";
            return Err(Error::new(ErrorKind::Usage, what));
        }
        let mut plan = Self { sources: Vec::new(), names: Vec::new(), unseen: Vec::new() };
        match options.detail {
            Detail::Time => plan.add_clock(options, Some(callers(options)))?,
            Detail::Calls => {
                plan.add_clock(options, None)?;
                plan.add_any_call()?;
            }
            Detail::Faults | Detail::Access => {
                plan.add_faults(options)?;
                plan.add_calls((options.stacks != Stacks::None).then(|| callers(options)));
            }
        }
        if options.detail == Detail::Access {
            plan.add_access();
        }
        plan.sources[0].attributes.follows = true;
        for source in &mut plan.sources {
            source.attributes.starts_at_exec = starts_at_exec;
        }
        if options.stacks != Stacks::None && options.unwinding == Unwinding::FramePointers {
            plan.unseen.push(
                "callers compiled without frame pointers: stacks end there; record with --unwind dwarf, or build \
                 with -fno-omit-frame-pointer"
                    .into(),
            );
        }
        plan.unseen.push(
            "pages that the kernel brings in without a fault of the program (MAP_POPULATE, mlock, \
             O_DIRECT)"
                .into(),
        );
        Ok(plan)
    }

    /// True if events have copies of stacks, which are large, or are of every system call, which are many.
    pub(super) fn needs_room(&self) -> bool {
        let needs = |source: &Source| source.layout().has_copy || source.role == Role::AnyEnter;
        self.sources.iter().any(needs)
    }

    /// Closes the probes, once every event is open.
    pub(super) fn drop_probes(&mut self) {
        for source in &mut self.sources {
            source.probe = None;
        }
    }

    fn add_clock(&mut self, options: &Options, callers: Option<Callers>) -> Result<(), Error> {
        let mut clock = Source::software(Kind::Clock, Role::Tick, options.period);
        clock.attributes.callers = callers;
        clock.attributes.in_kernel = true;
        if clock.probe().is_err() {
            clock.attributes.in_kernel = false;
            clock.probe().map_err(|errno| {
                Error::refused("open the event of processor time", errno)
                    .advise(format!("run `{}`", status::PERMIT_OWN))
            })?;
            self.unseen.push(format!("time in the kernel; run `{}`", status::PERMIT_KERNEL));
        }
        self.sources.push(clock);
        self.names.push("cpu-clock".to_owned());
        Ok(())
    }

    fn add_any_call(&mut self) -> Result<(), Error> {
        for (name, role) in
            [("raw_syscalls/sys_enter", Role::AnyEnter), ("raw_syscalls/sys_exit", Role::AnyLeave)]
        {
            let source = Source::tracepoint(name, role).map_err(|why| {
                let kind = match why {
                    PermissionStatus::Denied { .. } => ErrorKind::Denied,
                    _ => ErrorKind::Unsupported,
                };
                Error::new(kind, format!("record system calls{}", why.or_fix()))
            })?;
            self.sources.push(source);
            self.names.push(name.replace('/', ":"));
        }
        Ok(())
    }

    fn add_faults(&mut self, options: &Options) -> Result<(), Error> {
        let kinds = [(Kind::MinorFaults, Severity::Minor), (Kind::MajorFaults, Severity::Major)];
        let mut sources = kinds
            .map(|(kind, severity)| Source::software(kind, Role::End(severity), options.period));
        if options.stacks == Stacks::Faults {
            for source in &mut sources {
                source.attributes.callers = Some(callers(options));
            }
        }
        sources[0].probe().map_err(|errno| {
            let error = Error::refused("open the event of page faults", errno);
            match Refusal::from_errno(errno) {
                Refusal::Denied => error.advise(format!("run `{}`", status::PERMIT_OWN)),
                _ => error,
            }
        })?;
        for source in &mut sources {
            source.attributes.in_kernel = true;
        }
        if let Err(errno) = sources[0].probe() {
            for source in &mut sources {
                source.attributes.in_kernel = false;
            }
            let fix = status::status_of::<()>(Err(errno), status::PERMIT_KERNEL).or_fix();
            self.unseen.push(format!(
                "faults that the kernel takes for the program (read(2) into fresh memory){fix}"
            ));
        }
        self.names.extend(["minor-faults", "major-faults"].map(str::to_owned));
        self.sources.extend(sources);
        Ok(())
    }

    fn add_calls(&mut self, callers: Option<Callers>) {
        let mut added = Vec::new();
        let mut names = Vec::new();
        for (call, name) in CALLS {
            for (step, role) in [("enter", Role::Enter(call)), ("exit", Role::Leave(call))] {
                match Source::tracepoint(&format!("syscalls/sys_{step}_{name}"), role) {
                    Ok(mut source) => {
                        if role == Role::Enter(Call::Map) {
                            source.attributes.callers = callers;
                        }
                        names.push(format!("syscalls:sys_{step}_{name}"));
                        added.push(source);
                    }
                    Err(why) => {
                        let fix = why.or_fix();
                        self.unseen.push(format!(
                            "munmap, mremap and madvise, where a mapping begins that the kernel joined to \
                             its neighbours, and who mapped it{fix}"
                        ));
                        return;
                    }
                }
            }
        }
        self.sources.append(&mut added);
        self.names.append(&mut names);
    }

    fn add_access(&mut self) {
        let entries: Result<Vec<_>, _> =
            ENTRIES.iter().map(|name| Source::tracepoint(name, Role::Entry)).collect();
        let mut entries = match entries {
            Ok(entries) => entries,
            Err(why) => {
                let fix = why.or_fix();
                self.unseen.push(format!(
                    "whether memory was read or written, whether a page was there, and huge pages{fix}"
                ));
                let mut begin = Source::software(Kind::PageFaults, Role::Begin, 1);
                begin.attributes.in_kernel = self.sources[0].attributes.in_kernel;
                self.sources.push(begin);
                self.names.push("page-faults".into());
                return;
            }
        };
        self.sources.append(&mut entries);
        self.names.extend(ENTRIES.map(|name| name.replace('/', ":")));
        match Source::tracepoint(ALLOCATION, Role::HugePage) {
            Ok(source) => {
                self.sources.push(source);
                self.names.push(ALLOCATION.replace('/', ":"));
            }
            Err(why) => {
                let fix = why.or_fix();
                self.unseen.push(format!("huge pages{fix}"));
            }
        }
    }
}
