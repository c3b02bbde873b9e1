//! A program as plain data: processes of threads of calls, one call per line.
//!
//! Any list of calls is a program: a call on memory, a thread or a process that does not exist does nothing,
//! and ranges are cut to the existing part. Therefore calls can be left out one by one.
//!
//! To add an operation: a line in the table; an arm in `Me::one` and a function that performs it, checks the result and
//! updates the model, or returns `None` where it does not apply; its frequency in `generate.rs`; then
//! `cowslip-adversary run --modes native --seconds 300`.

use std::fmt::{self, Display, Formatter};

/// The kind of an argument.
pub(crate) enum Kind {
    Number(&'static str),
    Word(&'static str, &'static [&'static str]),
}

/// An operation: its name, and the kinds of its arguments.
pub(crate) struct Operation {
    pub(crate) op: Op,
    pub(crate) name: &'static str,
    pub(crate) arguments: &'static [Kind],
}

macro_rules! operations {
    ($($op:ident $name:literal [$($number:ident)*] $([$($word:ident: $($value:literal)+);+])?)+) => {
        /// The operation of a call; [`crate::perform`] implements it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Op { $($op),+ }

        /// Every operation. Numbers come first, words last.
        pub(crate) const OPERATIONS: &[Operation] = &[$(Operation {
            op: Op::$op,
            name: $name,
            arguments: &[
                $(Kind::Number(stringify!($number)),)*
                $($(Kind::Word(stringify!($word), &[$($value),+])),+)?
            ],
        }),+];
    };
}

operations! {
    Map "map" [region pages] [how: "rw" "reserve" "read" "hint" "populate" "noreserve"]
    MapOver "map-over" [region first count] [how: "rw" "reserve" "noreplace"]
    Unmap "unmap" [region first count]
    Protect "protect" [region first count] [prot: "rw" "read" "none"]
    Advise "advise" [region first count] [advice:
        "dontneed" "free" "hugepage" "nohugepage" "dontfork" "dofork" "wipeonfork" "keeponfork" "cold"
        "pageout" "willneed" "populate-read" "populate-write" "remove"; by: "madvise" "process_madvise"]
    Lock "lock" [region first count]
    Unlock "unlock" [region first count]
    Resize "resize" [region pages]
    Move "move" [region first count target at]
    LeaveBehind "leave-behind" [region target]
    Allocate "allocate" [region pages] [how: "malloc" "calloc" "memalign"]
    Free "free" [region]
    Fill "fill" [region first count]
    Touch "touch" [region first stride]
    Trap "trap" [region page] [how: "read" "write"; what: "as-it-is" "unmapped" "unmapped-in-child" "refused"]
    Segment "segment" [segment region first count] [over: "mapping" "nothing"]
    Verify "verify" [region]
    Copy "copy" [region first count target at] [via:
        "loads" "pipe" "socket" "file" "direct" "vm-read" "vm-write" "mem-read" "mem-write" "passed"
        "child"]
    Direct "direct" [region first count ms] [of: "file" "late-server"]
    Send "send" [region first count] [to: "pipe" "peer"; then: "unmap" "discard" "map-over" "keep";
        meanwhile: "nothing" "forks"]
    Fork "fork" [process] [how: "fork" "_Fork" "clone" "syscall"; hold: "free" "held" "lent"]
    Spawn "spawn" [] [how: "vfork" "posix_spawn"]
    Stop "stop" [region first count]
    Release "release" [process]
    Peek "peek" [process region first count] [through: "vm" "mem"]
    Poke "poke" [process region first] [through: "vm" "mem"]
    Look "look" [region first count] [through: "vm" "mem"]
    Kill "kill" [process]
    Wait "wait" [process]
    Exec "exec" []
    Leave "leave" []
    Start "start" [thread] [stack: "own" "mapped" "allocated"]
    Join "join" [thread]
    Stream "stream" [region pages ms]
    Count "count" [counter times]
    Futex "futex" [region page ms] [how: "sem" "shared" "private" "cond"; meanwhile: "nothing" "forks"]
    Locks "locks" [region page times] [how: "inherit" "shared" "robust" "wake-op"; meanwhile: "nothing" "forks"]
    Signals "signals" [every_ms]
    Descriptors "descriptors" [] [how: "close_range" "closefrom" "close" "few" "none"]
    Tables "tables" [] [how: "unshare" "close_range"]
    Border "border" [ms] [rights: "no-new-privileges" "same-users"; then: "goes-on" "hostile"]
    Lend "lend" [region pages] [by: "vfork" "peer" "peer-that-forks"]
    Retire "retire" [] [how: "pthread_exit" "exit"]
    Pause "pause" [ms]
}

/// One line of a program. A word is stored as its index.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) op: Op,
    pub(crate) args: Vec<u32>,
}

impl Call {
    fn operation(&self) -> &'static Operation {
        OPERATIONS.iter().find(|known| known.op == self.op).expect("every operation is listed")
    }

    /// The number at this place.
    pub(crate) fn number(&self, index: usize) -> usize {
        self.args[index] as usize
    }

    /// The word at this place.
    pub(crate) fn word(&self, index: usize) -> &'static str {
        match self.operation().arguments[index] {
            Kind::Word(_, values) => values[self.args[index] as usize],
            Kind::Number(name) => panic!("{name} is a number"),
        }
    }

    /// Takes the first word of each list.
    pub(crate) fn make_ordinary(&mut self) {
        let kinds = self.operation().arguments;
        for (kind, value) in kinds.iter().zip(&mut self.args) {
            if matches!(kind, Kind::Word(..)) {
                *value = 0;
            }
        }
    }

    /// The weight for a reader: words that are not the first of their list count too.
    fn weight(&self) -> usize {
        let words = self.operation().arguments.iter().zip(&self.args);
        100 + words.filter(|(kind, value)| matches!(kind, Kind::Word(..)) && **value > 0).count()
    }

    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_whitespace();
        let name = words.next()?;
        let operation = OPERATIONS.iter().find(|known| known.name == name)?;
        let mut args = Vec::new();
        for (kind, text) in operation.arguments.iter().zip(words) {
            let value = text.split_once('=')?.1;
            args.push(match kind {
                Kind::Number(_) => value.parse().ok()?,
                Kind::Word(_, values) => values.iter().position(|known| *known == value)? as u32,
            });
        }
        (args.len() == operation.arguments.len()).then_some(Self { op: operation.op, args })
    }
}

impl Display for Call {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let operation = self.operation();
        f.write_str(operation.name)?;
        for (kind, value) in operation.arguments.iter().zip(&self.args) {
            match kind {
                Kind::Number(name) => write!(f, " {name}={value}")?,
                Kind::Word(name, values) => write!(f, " {name}={}", values[*value as usize])?,
            }
        }
        Ok(())
    }
}

pub(crate) type Thread = Vec<Call>;

/// A process. Its first thread is the one that the fork left, or `main`.
#[derive(Clone, Default)]
pub(crate) struct Process {
    pub(crate) threads: Vec<Thread>,
}

#[derive(Clone, Default)]
pub(crate) struct Program {
    /// The options for `cowslip run`.
    pub(crate) options: Vec<String>,
    /// Numbers are kept when a process is left out: it is then empty.
    pub(crate) processes: Vec<Process>,
}

impl Program {
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let mut program = Self::default();
        for (number, line) in text.lines().enumerate() {
            let wrong = || format!("line {}: {line:?}", number + 1);
            let line = line.split('#').next().unwrap_or_default().trim();
            let (first, rest) = line.split_once(' ').unwrap_or((line, ""));
            match first {
                "" => {}
                "options" => program.options = rest.split(' ').map(str::to_owned).collect(),
                "process" => {
                    let number: usize = rest.parse().map_err(|_| wrong())?;
                    program.processes.resize_with(number + 1, Process::default);
                }
                "thread" => {
                    let process = program.processes.last_mut().ok_or_else(wrong)?;
                    let number: usize = rest.parse().map_err(|_| wrong())?;
                    process.threads.resize_with(number + 1, Thread::default);
                }
                _ => {
                    let thread = program.processes.last_mut().and_then(|p| p.threads.last_mut());
                    thread.ok_or_else(wrong)?.push(Call::parse(line).ok_or_else(wrong)?);
                }
            }
        }
        Ok(program)
    }

    /// Drops processes that are never forked, and threads that are never started.
    pub(crate) fn prune(&mut self) {
        let mut forked = vec![false; self.processes.len()];
        let mut next = vec![0];
        while let Some(number) = next.pop() {
            forked[number] = true;
            let threads = &mut self.processes[number].threads;
            let starts = |call: &Call, thread| call.op == Op::Start && call.number(0) == thread;
            for thread in 1..threads.len() {
                if !threads[0].iter().any(|call| starts(call, thread)) {
                    threads[thread].clear();
                }
            }
            let forks = threads.iter().flatten().filter(|call| call.op == Op::Fork);
            next.extend(forks.map(|call| call.number(0)).filter(|&child| child < forked.len()));
        }
        for (process, forked) in self.processes.iter_mut().zip(forked) {
            if !forked {
                *process = Process::default();
            }
        }
    }

    pub(crate) fn weight(&self) -> usize {
        self.processes.iter().flat_map(|process| &process.threads).flatten().map(Call::weight).sum()
    }

    pub(crate) fn calls(&self) -> usize {
        self.processes.iter().flat_map(|process| &process.threads).map(Vec::len).sum()
    }

    /// The calls of a thread: none if it does not exist.
    pub(crate) fn thread(&self, process: usize, thread: usize) -> &[Call] {
        let process = self.processes.get(process);
        process.and_then(|process| process.threads.get(thread)).map_or(&[], Vec::as_slice)
    }
}

impl Display for Program {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if !self.options.is_empty() {
            writeln!(f, "options {}", self.options.join(" "))?;
        }
        for (number, process) in self.processes.iter().enumerate() {
            if process.threads.iter().all(Vec::is_empty) && number > 0 {
                continue;
            }
            writeln!(f, "process {number}")?;
            for (number, thread) in process.threads.iter().enumerate() {
                if thread.is_empty() && number > 0 {
                    continue;
                }
                writeln!(f, "thread {number}")?;
                for call in thread {
                    writeln!(f, "    {call}")?;
                }
            }
        }
        Ok(())
    }
}
