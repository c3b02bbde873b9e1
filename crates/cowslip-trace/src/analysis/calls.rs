//! System calls by number, with their time.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::io;

use syscalls::Sysno;

use crate::model::{Event, EventKind, Sink, StackId, SystemCall, Tick};

/// Sums up a recording of system calls ([`Detail::Calls`](crate::record::Detail::Calls)).
///
/// ```
/// use cowslip_trace::analysis::Calls;
/// use cowslip_trace::model::{Sink, SystemCall, Tick};
/// let mut calls = Calls::default();
/// let at = |time_ns, number| SystemCall { time_ns, pid: 7, tid: 7, number };
/// calls.system_call(&at(1_000, Some(35)))?;
/// calls.tick(&Tick { pid: 7, tid: 7, ip: 0, in_user_mode: false, stack: None })?;
/// calls.system_call(&at(5_000, None))?;
/// let sums = calls.finish();
/// assert_eq!((sums[0].calls, sums[0].elapsed_ns, sums[0].ticks), (1, 4_000, 1));
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug, Default)]
pub struct Calls {
    /// The call in which a thread is: its number and its beginning.
    open: HashMap<u32, (u64, u64)>,
    sums: BTreeMap<u64, CallSums>,
}

/// All calls of a number.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct CallSums {
    /// The system call's number on this machine.
    pub number: u64,
    /// The calls that began.
    pub calls: u64,
    /// Nanoseconds from their beginnings to their ends.
    pub elapsed_ns: u64,
    /// Samples of threads on a processor in such a call.
    pub ticks: u64,
}

impl CallSums {
    /// The call's name, or its number.
    pub fn name(&self) -> Cow<'static, str> {
        match usize::try_from(self.number).ok().and_then(Sysno::new) {
            Some(call) => Cow::Borrowed(call.name()),
            None => Cow::Owned(format!("call {}", self.number)),
        }
    }
}

impl Calls {
    /// The sums, by number.
    pub fn finish(self) -> Vec<CallSums> {
        self.sums.into_values().collect()
    }

    fn sums(&mut self, number: u64) -> &mut CallSums {
        self.sums.entry(number).or_insert(CallSums { number, ..CallSums::default() })
    }
}

impl Sink for Calls {
    fn stack(&mut self, _frames: &[u64]) -> io::Result<StackId> {
        Err(io::Error::other("system calls are recorded without call stacks"))
    }

    fn event(&mut self, event: &Event) -> io::Result<()> {
        if event.what == EventKind::Exit {
            self.open.remove(&event.tid);
        }
        Ok(())
    }

    fn tick(&mut self, tick: &Tick) -> io::Result<()> {
        if let Some((number, _)) = self.open.get(&tick.tid).copied().filter(|_| !tick.in_user_mode)
        {
            self.sums(number).ticks += 1;
        }
        Ok(())
    }

    fn system_call(&mut self, call: &SystemCall) -> io::Result<()> {
        if let Some(number) = call.number {
            self.open.insert(call.tid, (number, call.time_ns));
            self.sums(number).calls += 1;
        } else if let Some((number, began_ns)) = self.open.remove(&call.tid) {
            self.sums(number).elapsed_ns += call.time_ns.saturating_sub(began_ns);
        }
        Ok(())
    }
}
