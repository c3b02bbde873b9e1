//! Processor time by thread and call stack.

use std::collections::HashMap;
use std::io;
use std::num::NonZeroU32;
use std::sync::Arc;

use super::Frame;
use super::frames::{Site, Sites};
use crate::attribute::Attributor;
use crate::model::{Event, EventKind, Header, Sink, StackId, Tick};
use crate::perf_maps::PerfMaps;

/// Sums up a recording of processor time ([`Detail::Time`](crate::record::Detail::Time)), in memory that grows with its
/// stacks.
///
/// ```
/// use cowslip_trace::analysis::Profile;
/// use cowslip_trace::model::{Header, Sink, Tick};
/// let mut profile = Profile::new(&Header::default());
/// let tick = Tick { pid: 7, tid: 7, ip: 0x40_1000, in_user_mode: true, stack: None };
/// profile.tick(&tick)?;
/// profile.tick(&tick)?;
/// assert_eq!(profile.finish()[0].ticks, 2);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Profile {
    attributor: Attributor,
    sites: Sites,
    stacks: Vec<Box<[u64]>>,
    numbers: HashMap<Box<[u64]>, StackId>,
    /// By process and thread.
    threads: HashMap<(u32, u32), Arc<str>>,
    ticks: HashMap<(Arc<str>, bool, Site), u64>,
}

/// The samples of a call stack in threads of one name.
#[derive(Clone, Debug)]
pub struct ProfiledStack {
    /// The name of the threads; empty if it is not known.
    pub thread: Arc<str>,
    /// True if the kernel worked for the program.
    pub in_kernel: bool,
    /// The innermost frame first.
    pub frames: Arc<[Frame]>,
    /// The number of samples.
    pub ticks: u64,
}

impl Profile {
    /// A profile of the recording with this header.
    pub fn new(header: &Header) -> Self {
        let sites = Sites::with_code(PerfMaps::new(header));
        Self {
            attributor: Attributor::new(header),
            sites,
            stacks: Vec::new(),
            numbers: HashMap::new(),
            threads: HashMap::new(),
            ticks: HashMap::new(),
        }
    }

    /// The stacks, in no order.
    pub fn finish(self) -> Vec<ProfiledStack> {
        let Self { sites, ticks, .. } = self;
        let stack = |((thread, in_kernel, site), ticks)| {
            let frames = sites.frames(site);
            ProfiledStack { thread, in_kernel, frames, ticks }
        };
        ticks.into_iter().map(stack).collect()
    }

    fn name(&self, pid: u32, tid: u32) -> Arc<str> {
        self.threads.get(&(pid, tid)).cloned().unwrap_or_else(|| "".into())
    }
}

impl Sink for Profile {
    fn stack(&mut self, frames: &[u64]) -> io::Result<StackId> {
        if let Some(number) = self.numbers.get(frames) {
            return Ok(*number);
        }
        self.stacks.push(frames.into());
        let number = u32::try_from(self.stacks.len()).ok().and_then(NonZeroU32::new);
        let number = StackId(number.ok_or_else(|| io::Error::other("too many call stacks"))?);
        self.numbers.insert(frames.into(), number);
        Ok(number)
    }

    fn event(&mut self, event: &Event) -> io::Result<()> {
        self.sites.code.observe(event);
        match &event.what {
            EventKind::Exec { name } | EventKind::Name { name } => {
                self.threads.insert((event.pid, event.tid), name.clone());
            }
            EventKind::Fork { child_pid, child_tid } => {
                let name = self.name(event.pid, event.tid);
                self.threads.insert((*child_pid, *child_tid), name);
            }
            EventKind::Exit => drop(self.threads.remove(&(event.pid, event.tid))),
            _ => {}
        }
        self.attributor.observe(event);
        Ok(())
    }

    fn tick(&mut self, tick: &Tick) -> io::Result<()> {
        let Self { attributor, sites, stacks, .. } = self;
        let frames = |stack: StackId| &*stacks[stack.0.get() as usize - 1];
        let site = sites.of_tick(tick, attributor, frames);
        let key = (self.name(tick.pid, tick.tid), !tick.in_user_mode, site);
        *self.ticks.entry(key).or_default() += 1;
        Ok(())
    }
}
