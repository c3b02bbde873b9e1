//! Events on their way out, some of which are not certain yet.
//!
//! A call that changes mappings happens when it begins, as far as others can tell, but whether it succeeded is
//! known when it ends. Its event's place is held until then.

use std::collections::VecDeque;
use std::io;

use crate::model::{Event, Sink};

/// Events that may wait for one that is not certain; a call that takes longer loses its place.
const MOST_WAITING: usize = 1 << 16;

/// A place that is held.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Ticket(u64);

#[derive(Debug)]
enum Place {
    Held,
    Given(Event),
    GivenUp,
}

/// The queue in front of a sink.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    queue: VecDeque<Place>,
    /// The number of the first in the queue.
    first: u64,
}

impl Outbox {
    pub(super) fn push(&mut self, event: Event, sink: &mut dyn Sink) -> io::Result<()> {
        if self.queue.is_empty() {
            return sink.event(&event);
        }
        self.queue.push_back(Place::Given(event));
        if self.queue.len() > MOST_WAITING {
            self.queue[0] = Place::GivenUp;
            return self.flush(sink);
        }
        Ok(())
    }

    /// Holds the next place.
    pub(super) fn hold(&mut self) -> Ticket {
        self.queue.push_back(Place::Held);
        Ticket(self.first + self.queue.len() as u64 - 1)
    }

    /// Gives a held place to an event, or up; says whether it was still held.
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
        *place = event.map_or(Place::GivenUp, Place::Given);
        self.flush(sink)?;
        Ok(true)
    }

    /// Gives up every place that is still held.
    pub(super) fn finish(&mut self, sink: &mut dyn Sink) -> io::Result<()> {
        for place in &mut self.queue {
            if matches!(place, Place::Held) {
                *place = Place::GivenUp;
            }
        }
        self.flush(sink)
    }

    fn flush(&mut self, sink: &mut dyn Sink) -> io::Result<()> {
        while !matches!(self.queue.front(), None | Some(Place::Held)) {
            self.first += 1;
            if let Some(Place::Given(event)) = self.queue.pop_front() {
                sink.event(&event)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{StackId, What};

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
        Event { time_ns, pid: 1, tid: 1, what: What::Exit }
    }

    #[test]
    fn events_keep_their_places_and_those_that_come_to_nothing_leave_none() {
        let (mut outbox, mut times) = (Outbox::default(), Times::default());
        outbox.push(at(1), &mut times).unwrap();
        let [second, fifth] = [2, 5].map(|time| {
            let ticket = outbox.hold();
            outbox.push(at(time + 1), &mut times).unwrap();
            ticket
        });
        assert_eq!(times.0, [1]);
        assert!(outbox.settle(fifth, None, &mut times).unwrap());
        assert!(outbox.settle(second, Some(at(2)), &mut times).unwrap());
        assert_eq!(times.0, [1, 2, 3, 6]);
        assert!(!outbox.settle(second, Some(at(2)), &mut times).unwrap(), "settled already");
        outbox.hold();
        outbox.push(at(8), &mut times).unwrap();
        outbox.finish(&mut times).unwrap();
        assert_eq!(times.0, [1, 2, 3, 6, 8]);
    }

    #[test]
    fn what_never_settles_does_not_hold_the_rest_for_ever() {
        let (mut outbox, mut times) = (Outbox::default(), Times::default());
        let ticket = outbox.hold();
        for time in 1..=MOST_WAITING as u64 + 1 {
            outbox.push(at(time), &mut times).unwrap();
        }
        assert_eq!(times.0.len(), MOST_WAITING + 1);
        assert!(!outbox.settle(ticket, Some(at(0)), &mut times).unwrap());
    }
}
