//! Instructions of a process in user mode: huge pages do not change how many a unit of work takes.

use std::fs;
use std::io;

use cowslip_sys::perf::{Attributes, Event, Kind};

/// Counters of all threads of a process, and of the threads that they make. Its children do not count.
#[derive(Debug)]
pub(crate) struct Instructions(Vec<Event>);

impl Instructions {
    /// An error where the processor does not count them, or not for this user.
    pub(crate) fn open(pid: i32) -> io::Result<Self> {
        Self::count_of(Kind::Instructions, pid)
    }

    fn count_of(kind: Kind, pid: i32) -> io::Result<Self> {
        let attributes = Attributes {
            kind,
            period: 0,
            callers: None,
            in_kernel: false,
            in_children: false,
            follows: false,
            starts_at_exec: false,
        };
        let mut events = Vec::new();
        for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
            let Some(thread) = thread?.file_name().to_str().and_then(|name| name.parse().ok())
            else {
                continue;
            };
            events.push(Event::open_anywhere(&attributes, thread)?);
        }
        Ok(Self(events))
    }

    pub(crate) fn count(&self) -> io::Result<f64> {
        let mut sum = 0;
        for event in &self.0 {
            sum += event.count()?.value;
        }
        Ok(sum as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader, Write};
    use std::process::{Command, Stdio};

    /// A shell that grows, and that runs a child.
    const SHELL: &str =
        "echo; read go; s=x; for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18; do s=$s$s; done
                         ls / >/dev/null; echo; read end";

    /// Faults of a process without those of its children, by the kernel.
    fn faults(pid: u32) -> u64 {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let words: Vec<&str> = stat[stat.rfind(')').unwrap()..].split(' ').collect();
        words[8].parse::<u64>().unwrap() + words[10].parse::<u64>().unwrap()
    }

    /// Page faults stand for instructions, which few virtual machines count.
    #[test]
    fn a_process_counts_and_its_children_do_not() {
        let mut command = Command::new("sh");
        let mut shell = command
            .args(["-c", SHELL])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = BufReader::new(shell.stdout.take().unwrap());
        let mut line = String::new();
        said.read_line(&mut line).unwrap();
        let counted = Instructions::count_of(Kind::PageFaults, shell.id() as i32).map(|counters| {
            let (before, all_before) = (counters.count().unwrap(), faults(shell.id()));
            writeln!(shell.stdin.as_ref().unwrap()).unwrap();
            said.read_line(&mut line).unwrap();
            (counters.count().unwrap() - before, faults(shell.id()) - all_before)
        });
        shell.kill().unwrap();
        shell.wait().unwrap();
        let (counted, all) = match counted {
            Ok(counted) => counted,
            Err(error) => return println!("SKIPPED: perf: {error}"),
        };
        // Faults in the kernel are among all of them.
        assert!(counted > 0.0 && counted <= all as f64, "{counted} of {all}");
    }
}
