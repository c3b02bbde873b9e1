//! The last seconds only: a sink that drops old events.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::time::Duration;

use cowslip_sys::units::ByteCount;

use super::space::Spaces;
use super::stacks::Stacks;
use crate::model::{Event, EventKind, Sink, StackId};

const SECOND_NS: u64 = 1_000_000_000;

/// Keeps the events of the last seconds, in bounded memory, and the mappings at their beginning.
///
/// ```
/// use std::time::Duration;
/// use cowslip_sys::units::ByteCount;
/// use cowslip_trace::model::{Event, Fault, Sink, EventKind};
/// use cowslip_trace::record::EventWindow;
///
/// let mut window = EventWindow::new(Duration::from_secs(2), ByteCount::mib(64));
/// for second in 0..10 {
///     let what = EventKind::Fault(Fault::at(0x1000 * second, 0));
///     window.event(&Event { time_ns: second * 1_000_000_000, pid: 7, tid: 7, what })?;
/// }
/// assert_eq!(window.len(), 3); // of seconds 7, 8 and 9
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct EventWindow {
    span_ns: u64,
    most_events: usize,
    events: VecDeque<Event>,
    before: Spaces,
    stacks: Stacks,
    /// The stack of events for whose own stack there was no room.
    no_stack: Option<StackId>,
    newest_ns: u64,
    rate: Rate,
}

/// Faults in a running second.
#[derive(Debug, Default)]
struct Rate {
    began_ns: u64,
    faults: u64,
    highest: u64,
}

impl EventWindow {
    /// A window of the last `span`, in about this much memory; it is shorter if more happens than fits.
    pub fn new(span: Duration, memory: ByteCount) -> Self {
        let span_ns = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        let half = (memory.0 / 2) as usize;
        Self {
            span_ns,
            // A queue grows by doubling.
            most_events: (half / 2 / size_of::<Event>()).max(1),
            events: VecDeque::new(),
            before: Spaces::default(),
            stacks: Stacks::new(span_ns, half),
            no_stack: None,
            newest_ns: 0,
            rate: Rate::default(),
        }
    }

    /// The number of events kept.
    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// True if no events are kept.
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// The most faults in a second.
    pub fn highest_rate(&self) -> u64 {
        self.rate.highest
    }

    /// Passes the mappings at the beginning of the window, as old ones, and then its events to `sink`.
    pub fn pour(self, sink: &mut dyn Sink) -> io::Result<()> {
        let Self { events, before, stacks, .. } = self;
        let mut ids = HashMap::new();
        let began_ns = events.front().map_or(0, |event| event.time_ns);
        for mut event in before.describe(began_ns).chain(events) {
            if let Some(stack) = stack_of(&mut event.what) {
                *stack = match ids.get(stack) {
                    Some(id) => *id,
                    None => {
                        let id = sink.stack(stacks.frames(*stack))?;
                        ids.insert(*stack, id);
                        id
                    }
                };
            }
            sink.event(&event)?;
        }
        Ok(())
    }
}

impl Sink for EventWindow {
    fn stack(&mut self, frames: &[u64]) -> io::Result<StackId> {
        // The stack without frames is always there, for those that find no room.
        if self.no_stack.is_none() {
            self.no_stack = self.stacks.id(&[], u64::MAX, [].iter());
        }
        let found = self.stacks.id(frames, self.newest_ns, self.before.stacks());
        found.or(self.no_stack).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
    }

    fn event(&mut self, event: &Event) -> io::Result<()> {
        self.newest_ns = event.time_ns;
        if matches!(event.what, EventKind::Fault(_)) {
            self.rate.add(event.time_ns);
        }
        self.events.push_back(event.clone());
        let begin = event.time_ns.saturating_sub(self.span_ns);
        while self.events.len() > self.most_events
            || self.events.front().is_some_and(|first| first.time_ns < begin)
        {
            if let Some(event) = self.events.pop_front() {
                self.before.apply(&event);
            }
        }
        Ok(())
    }
}

impl Rate {
    fn add(&mut self, time_ns: u64) {
        if time_ns.saturating_sub(self.began_ns) >= SECOND_NS {
            (self.began_ns, self.faults) = (time_ns, 0);
        }
        self.faults += 1;
        self.highest = self.highest.max(self.faults);
    }
}

fn stack_of(what: &mut EventKind) -> Option<&mut StackId> {
    match what {
        EventKind::Fault(fault) => fault.stack.as_mut(),
        EventKind::Map(map) => map.stack.as_mut(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use cowslip_sys::units::VirtRange;

    use super::*;
    use crate::model::{Fault, Map};

    #[derive(Default)]
    struct Kept {
        stacks: Vec<Vec<u64>>,
        events: Vec<Event>,
    }

    impl Sink for Kept {
        fn stack(&mut self, frames: &[u64]) -> io::Result<StackId> {
            self.stacks.push(frames.to_vec());
            Ok(StackId((self.stacks.len() as u32).try_into().unwrap()))
        }

        fn event(&mut self, event: &Event) -> io::Result<()> {
            self.events.push(event.clone());
            Ok(())
        }
    }

    #[test]
    fn what_was_mapped_before_the_window_is_told_as_old() {
        let mut window = EventWindow::new(Duration::from_secs(1), ByteCount::mib(1));
        let stack = window.stack(&[7, 8]).unwrap();
        let range = VirtRange::new(0x10000, 0x8000);
        let map = Map {
            range,
            protection: 3,
            flags: 2,
            offset_bytes: 0,
            inode: 0,
            name: None,
            is_old: false,
            stack: Some(stack),
        };
        let at = |time_ns, what| Event { time_ns, pid: 7, tid: 7, what };
        window.event(&at(0, EventKind::Map(map.clone()))).unwrap();
        let gone = VirtRange::new(0x12000, 0x2000);
        window.event(&at(1, EventKind::Unmap { range: gone })).unwrap();
        window.event(&at(2, EventKind::Name { name: "seven".into() })).unwrap();
        let fault = EventKind::Fault(Fault { stack: Some(stack), ..Fault::at(0x10000, 1) });
        for half in 4..8 {
            window.event(&at(half * SECOND_NS / 2, fault.clone())).unwrap();
        }
        assert_eq!((window.len(), window.highest_rate()), (3, 2));

        let mut kept = Kept::default();
        window.pour(&mut kept).unwrap();
        let maps = kept.events.iter().filter_map(|event| match &event.what {
            EventKind::Map(map) => Some((map.range, map.is_old)),
            _ => None,
        });
        let maps = maps.collect::<Vec<_>>();
        let rest = [VirtRange::new(0x10000, 0x2000), VirtRange::new(0x14000, 0x4000)];
        assert_eq!(maps, rest.map(|range| (range, true)));
        let name = EventKind::Name { name: "seven".into() };
        assert!(kept.events.iter().any(|event| event.what == name));
        assert_eq!(kept.events.len(), 6);
        assert!(kept.events.is_sorted_by_key(|event| event.time_ns));
        assert_eq!(kept.stacks, [[7, 8]], "once, by the id of who writes it");
    }

    #[test]
    fn memory_bounds_it_as_well() {
        let mut window = EventWindow::new(Duration::from_secs(3600), ByteCount(64 << 10));
        let most = window.most_events;
        for time_ns in 0..10 * most as u64 {
            let fault = EventKind::Fault(Fault::at(time_ns, 0));
            window.event(&Event { time_ns, pid: 7, tid: 7, what: fault }).unwrap();
            window.stack(&[time_ns; 8]).unwrap();
        }
        assert_eq!(window.len(), most);
        assert!(most * size_of::<Event>() <= 32 << 10);
    }
}
