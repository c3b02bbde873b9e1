//! The table of things that a process can have, and a copy of it not, or not as the process has them.
//!
//! `docs/restore.md` has the same table.

/// What becomes of a thing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// There can be no copy of a process that has it.
    Refused,
    /// All copies lack it, or have it in part.
    Lacking,
    /// A checkpoint lacks it. A copy that [runs at once](crate::Holder::branch) has it.
    LackingInCheckpoint,
}

/// A thing that a process can have.
#[derive(PartialEq, Eq, Debug)]
pub struct Thing {
    /// Its name, in Markdown.
    pub name: &'static str,
    /// What becomes of it: a statement.
    pub why: &'static str,
    /// The same, for programs.
    pub fate: Fate,
}

macro_rules! things {
    ($($id:ident: $fate:ident, $name:literal, $why:literal;)*) => {
        $(
            pub(crate) const $id: &Thing = &Thing { name: $name, why: $why, fate: Fate::$fate };
        )*
        /// All of them, the refused first.
        pub const THINGS: &[&Thing] = &[$($id),*];
    };
}

things! {
    FIRST_PROCESS: Refused, "the number 1", "its number is that of each namespace's first process";
    NAMESPACE: Refused, "other namespaces than the command", "names and numbers mean others there";
    STATE: Refused, "a stop, by a signal or a debugger", "it does not run";
    TRACER: Refused, "a debugger (`ptrace(2)`)", "a debugger has it";
    FILTER: Refused, "a filter of calls (`seccomp(2)`)", "its filter may end it for a call on its behalf";
    SHADOW_STACKS: Refused, "shadow stacks", "they allow no call on its behalf";
    SHARED_MEMORY: Refused, "shared memory with a name or a descriptor, or more than 64 MiB", "a copy would have the memory of later";
    SECRET_MEMORY: Refused, "memory of `memfd_secret(2)`", "the kernel shows it to no other process";
    WIPED: Refused, "memory with `MADV_WIPEONFORK`", "a copy has none of it";
    POSIX_TIMERS: Refused, "timers of `timer_create(2)` with the clock of a process, a number above 4,096, or 256 others", "a copy has none";
    QUEUES_OF_KERNEL: Refused, "io_uring, userfaultfd, inotify, fanotify, perf events", "a copy has none";
    RINGS: Refused, "asynchronous I/O of `io_setup(2)`", "a copy has none";
    INSTANCES: Refused, "KVM, BPF", "a copy would share it";
    MEMORY_FILE: Refused, "`/proc/PID/mem`", "a copy would write the program's memory";
    DEVICE: Refused, "devices with a state", "a copy would share it";
    CHILDREN: Lacking, "children", "a copy has none";
    FILE_LOCKS: Lacking, "locks of files (`fcntl(2)`, `flock(2)`)", "a copy has none";
    LOCKED_MEMORY: Lacking, "locked memory (`mlock(2)`)", "a copy's is not locked, as after fork(2)";
    CONNECTIONS: Lacking, "connections", "connections are closed in a copy";
    TERMINAL: Lacking, "terminals", "a copy has the terminal of its restore";
    OTHER_INODE: Lacking, "other descriptors without a name", "a copy shares it";
    SECRETS: LackingInCheckpoint, "memory that core files lack (`MADV_DONTDUMP`)", "it is empty in a checkpoint";
    PENDING_SIGNALS: LackingInCheckpoint, "pending signals", "a checkpoint has none";
    PIPES: LackingInCheckpoint, "pipes", "its content is that of later";
    SETS: LackingInCheckpoint, "epoll, signalfd", "its set is that of later";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_guide_has_the_table() {
        let guide = include_str!("../../../docs/restore.md");
        let rows = guide.lines().skip_while(|line| !line.starts_with("| the process has |"));
        let rows: Vec<_> = rows.skip(2).take_while(|line| line.starts_with('|')).collect();
        let row = |thing: &&Thing| {
            let (checkpoint, copy) = match thing.fate {
                Fate::Refused => ("refused", "refused"),
                Fate::Lacking => ("lacking", "lacking"),
                Fate::LackingInCheckpoint => ("lacking", "its own"),
            };
            format!("| {} | {checkpoint} | {copy} | {} |", thing.name, thing.why)
        };
        let expected: Vec<_> = THINGS.iter().map(row).collect();
        assert_eq!(rows, expected, "the table in the guide is:\n{}", expected.join("\n"));
    }
}
