//! Puts events into the order of time on their way out: they wait while an earlier one is uncertain.
//!
//! To other threads, a call that changes mappings happens when it begins, but its success is known when it
//! ends. Until then, the place of its event is held.

use std::collections::VecDeque;
use std::io;

use crate::model::{Event, Sink};

/// Events that may wait for an uncertain one; a call that takes longer loses its place.
const MOST_WAITING: usize = 1 << 16;

/// A held place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Ticket(u64);

#[derive(Debug)]
enum Place {
    Pending,
    Ready(Event),
    Cancelled,
}

/// The queue in front of a sink.
#[derive(Debug, Default)]
pub(super) struct ReorderBuffer {
    queue: VecDeque<Place>,
    /// The number of the first place in the queue.
    first: u64,
}

impl ReorderBuffer {
    pub(super) fn push(&mut self, event: Event, sink: &mut dyn Sink) -> io::Result<()> {
        if self.queue.is_empty() {
            return sink.event(&event);
        }
        self.queue.push_back(Place::Ready(event));
        if self.queue.len() > MOST_WAITING {
            self.queue[0] = Place::Cancelled;
            return self.flush(sink);
        }
        Ok(())
    }

    /// Holds the next place.
    pub(super) fn hold(&mut self) -> Ticket {
        self.queue.push_back(Place::Pending);
        Ticket(self.first + self.queue.len() as u64 - 1)
    }

    /// Fills a held place with an event, or releases it; false if it was no longer held.
    pub(super) fn settle(
        &mut self,
        ticket: Ticket,
        event: Option<Event>,
        sink: &mut dyn Sink,
    ) -> io::Result<bool> {
        let place = ticket.0.checked_sub(self.first);
        let Some(place) = place.and_then(|place| self.queue.get_mut(place as usize)) else {
            return Ok(false);
        };
        *place = event.map_or(Place::Cancelled, Place::Ready);
        self.flush(sink)?;
        Ok(true)
    }

    /// Releases every place that is still held.
    pub(super) fn finish(&mut self, sink: &mut dyn Sink) -> io::Result<()> {
        for place in &mut self.queue {
            if matches!(place, Place::Pending) {
                *place = Place::Cancelled;
            }
        }
        self.flush(sink)
    }

    fn flush(&mut self, sink: &mut dyn Sink) -> io::Result<()> {
        while !matches!(self.queue.front(), None | Some(Place::Pending)) {
            self.first += 1;
            if let Some(Place::Ready(event)) = self.queue.pop_front() {
                sink.event(&event)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{EventKind, StackId};

    #[derive(Default)]
    struct Times(Vec<u64>);

    impl Sink for Times {
        fn stack(&mut self, _: &[u64]) -> io::Result<StackId> {
            unreachable!("no event here has one")
        }

        fn event(&mut self, event: &Event) -> io::Result<()> {
            self.0.push(event.time_ns);
            Ok(())
        }
    }

    fn at(time_ns: u64) -> Event {
        Event { time_ns, pid: 1, tid: 1, what: EventKind::Exit }
    }

    #[test]
    fn events_keep_their_places_and_those_that_come_to_nothing_leave_none() {
        let (mut reorder_buffer, mut times) = (ReorderBuffer::default(), Times::default());
        reorder_buffer.push(at(1), &mut times).unwrap();
        let [second, fifth] = [2, 5].map(|time| {
            let ticket = reorder_buffer.hold();
            reorder_buffer.push(at(time + 1), &mut times).unwrap();
            ticket
        });
        assert_eq!(times.0, [1]);
        assert!(reorder_buffer.settle(fifth, None, &mut times).unwrap());
        assert!(reorder_buffer.settle(second, Some(at(2)), &mut times).unwrap());
        assert_eq!(times.0, [1, 2, 3, 6]);
        assert!(
            !reorder_buffer.settle(second, Some(at(2)), &mut times).unwrap(),
            "settled already"
        );
        reorder_buffer.hold();
        reorder_buffer.push(at(8), &mut times).unwrap();
        reorder_buffer.finish(&mut times).unwrap();
        assert_eq!(times.0, [1, 2, 3, 6, 8]);
    }

    #[test]
    fn what_never_settles_does_not_hold_the_rest_for_ever() {
        let (mut reorder_buffer, mut times) = (ReorderBuffer::default(), Times::default());
        let ticket = reorder_buffer.hold();
        for time in 1..=MOST_WAITING as u64 + 1 {
            reorder_buffer.push(at(time), &mut times).unwrap();
        }
        assert_eq!(times.0.len(), MOST_WAITING + 1);
        assert!(!reorder_buffer.settle(ticket, Some(at(0)), &mut times).unwrap());
    }
}
