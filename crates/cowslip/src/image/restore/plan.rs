//! Decides which chunk is brought in next.
//!
//! ```text
//!   absent ──claim──▶ claimed ──finish──▶ done
//!      └──want──▶ wanted ──claim──┘
//! ```
//! Wanted chunks, for which a thread waits, come first; then, unless first touches are being recorded, the working set
//! of the last time; then the rest in order. Each chunk is claimed once.

use std::collections::VecDeque;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Part {
    Absent,
    Wanted,
    Claimed,
    Done,
}

#[derive(Debug)]
pub(super) struct Plan {
    /// The chunks to restore, sorted.
    chunks: Vec<u32>,
    /// By index in `chunks`, like all that follows.
    parts: Vec<Part>,
    wanted: VecDeque<usize>,
    /// Those that [`Self::newly_wanted`] has not named yet.
    newly_wanted: Vec<u32>,
    /// The order in which chunks are brought in if no thread waits for them.
    order: Vec<usize>,
    next: usize,
    /// Entries of `order` before this index were named by [`Self::name_ahead`].
    named: usize,
    left: usize,
    is_touched: Vec<bool>,
    touched: Vec<u32>,
    is_recording: bool,
}

impl Plan {
    /// Restores `chunks`, which are sorted: those of `first` before the others. While it records, only wanted chunks.
    pub(super) fn new(chunks: Vec<u32>, first: &[u32], is_recording: bool) -> Self {
        let count = chunks.len();
        let mut is_placed = vec![false; count];
        let first = first.iter().filter_map(|chunk| chunks.binary_search(chunk).ok());
        let mut order: Vec<usize> =
            first.filter(|&place| !std::mem::replace(&mut is_placed[place], true)).collect();
        order.extend((0..count).filter(|&place| !is_placed[place]));
        Self {
            chunks,
            parts: vec![Part::Absent; count],
            wanted: VecDeque::new(),
            newly_wanted: Vec::new(),
            order,
            next: 0,
            named: 0,
            left: count,
            is_touched: vec![false; count],
            touched: Vec::new(),
            is_recording,
        }
    }

    /// A thread waits for `chunk`.
    pub(super) fn want(&mut self, chunk: u32) {
        if let Ok(place) = self.chunks.binary_search(&chunk)
            && self.parts[place] == Part::Absent
        {
            self.parts[place] = Part::Wanted;
            self.wanted.push_back(place);
            self.newly_wanted.push(chunk);
        }
    }

    /// The chunks for which waits have begun since the last call; each is named once.
    pub(super) fn newly_wanted(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.newly_wanted)
    }

    /// The program touched `chunk`, and waits for it.
    pub(super) fn touch(&mut self, chunk: u32) {
        if self.is_recording
            && let Ok(place) = self.chunks.binary_search(&chunk)
            && !std::mem::replace(&mut self.is_touched[place], true)
        {
            self.touched.push(chunk);
        }
        self.want(chunk);
    }

    /// Claims a wanted chunk for the caller to bring in.
    pub(super) fn claim_wanted(&mut self) -> Option<u32> {
        let place = self.wanted.pop_front()?;
        self.parts[place] = Part::Claimed;
        Some(self.chunks[place])
    }

    /// Claims the next chunk for the caller to bring in.
    pub(super) fn claim(&mut self) -> Option<u32> {
        if let Some(chunk) = self.claim_wanted() {
            return Some(chunk);
        }
        while !self.is_recording
            && let Some(&place) = self.order.get(self.next)
        {
            self.next += 1;
            if self.parts[place] == Part::Absent {
                self.parts[place] = Part::Claimed;
                return Some(self.chunks[place]);
            }
        }
        None
    }

    /// The chunk that [`Self::claim`] would return if no chunk were wanted.
    pub(super) fn next(&self) -> Option<u32> {
        let mut left = self.order[self.next..].iter();
        let next = left.find(|&&place| self.parts[place] == Part::Absent);
        next.filter(|_| !self.is_recording).map(|&place| self.chunks[place])
    }

    /// The chunks that come next, up to `most` named but unclaimed ones; each is named once. Returns none until half of
    /// those are claimed: neighbours come in one request if they are named together.
    pub(super) fn name_ahead(&mut self, most: usize) -> Vec<u32> {
        if self.is_recording {
            return Vec::new();
        }
        let is_absent = |place: &usize| self.parts[*place] == Part::Absent;
        let over = self.order[self.next..].iter().take_while(|place| !is_absent(place)).count();
        self.next += over;
        self.named = self.named.max(self.next);
        let mut named =
            self.order[self.next..self.named].iter().filter(|place| is_absent(place)).count();
        let mut ahead = Vec::new();
        if named > most / 2 {
            return ahead;
        }
        while named < most
            && let Some(&place) = self.order.get(self.named)
        {
            self.named += 1;
            if is_absent(&place) {
                named += 1;
                ahead.push(self.chunks[place]);
            }
        }
        ahead
    }

    /// Like [`Self::claim`], but for the first named chunk that is ready.
    pub(super) fn claim_ready(&mut self, is_ready: impl Fn(u32) -> bool) -> Option<u32> {
        let is_here = |place: usize| is_ready(self.chunks[place]);
        let place = match self.wanted.iter().position(|&place| is_here(place)) {
            Some(at) => self.wanted.remove(at)?,
            None => *self.order[self.next..self.named.max(self.next)]
                .iter()
                .find(|&&place| self.parts[place] == Part::Absent && is_here(place))?,
        };
        self.parts[place] = Part::Claimed;
        Some(self.chunks[place])
    }

    /// Records that a claimed chunk is in, or lost; returns the number left.
    pub(super) fn finish(&mut self, chunk: u32) -> usize {
        if let Ok(place) = self.chunks.binary_search(&chunk)
            && self.parts[place] != Part::Done
        {
            self.parts[place] = Part::Done;
            self.left -= 1;
        }
        self.left
    }

    /// Chunks not yet done.
    pub(super) fn left(&self) -> usize {
        self.left
    }

    /// Chunks altogether.
    pub(super) fn total(&self) -> usize {
        self.chunks.len()
    }

    /// Ends the recording; returns the first touches so far, in order.
    pub(super) fn end_recording(&mut self) -> Vec<u32> {
        self.is_recording = false;
        self.touched.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(plan: &mut Plan) -> Vec<u32> {
        std::iter::from_fn(|| plan.claim()).collect()
    }

    #[test]
    fn wanted_come_first_then_the_recorded_then_the_rest_each_once() {
        let mut plan = Plan::new(vec![2, 3, 5, 7, 11], &[7, 4, 2, 7], false);
        assert_eq!(plan.claim(), Some(7));
        for chunk in [11, 7, 4, 11] {
            plan.touch(chunk);
        }
        assert_eq!(plan.claim_wanted(), Some(11));
        assert_eq!(all(&mut plan), [2, 3, 5]);
        let left: Vec<_> = [11, 3, 3, 7, 5, 2].map(|chunk| plan.finish(chunk)).into();
        assert_eq!(left, [4, 3, 3, 2, 1, 0]);
        assert!(plan.end_recording().is_empty());
    }

    #[test]
    fn what_comes_next_is_told_before_it_is_claimed() {
        let mut plan = Plan::new((0..4).collect(), &[2], false);
        assert_eq!([plan.next(), plan.next(), plan.claim()], [Some(2); 3]);
        plan.touch(0);
        assert_eq!(plan.next(), Some(1), "0 is wanted");
        assert_eq!(all(&mut plan), [0, 1, 3]);
        assert_eq!(plan.next(), None);
        assert_eq!(Plan::new(vec![0, 1], &[1], true).next(), None, "nobody knows");
    }

    #[test]
    fn what_is_ready_is_claimed_first_and_what_was_named_is_bounded() {
        let mut plan = Plan::new((0..8).collect(), &[5], false);
        assert_eq!(plan.claim_ready(|_| true), None, "none was named");
        assert_eq!(plan.name_ahead(3), [5, 0, 1]);
        assert_eq!(plan.claim_ready(|chunk| chunk == 1), Some(1));
        assert!(plan.name_ahead(3).is_empty(), "more than half are to come");
        assert_eq!(plan.name_ahead(4), [2, 3]);
        plan.touch(7);
        plan.touch(2);
        assert_eq!(plan.newly_wanted(), [7, 2]);
        assert!(plan.newly_wanted().is_empty());
        assert_eq!(plan.claim_ready(|chunk| chunk != 7), Some(2), "somebody waits for it");
        assert_eq!(plan.claim_ready(|_| true), Some(7));
        assert_eq!(plan.name_ahead(8), [4, 6]);
        let rest = std::iter::from_fn(|| plan.claim_ready(|_| true));
        assert_eq!(rest.collect::<Vec<_>>(), [5, 0, 3, 4, 6]);
        assert!(Plan::new(vec![0, 1], &[1], true).name_ahead(2).is_empty(), "nobody knows");
    }

    #[test]
    fn while_it_records_only_what_is_touched_comes() {
        let mut plan = Plan::new((0..10).collect(), &[], true);
        assert_eq!(plan.claim(), None);
        for chunk in [9, 3, 9] {
            plan.touch(chunk);
        }
        assert_eq!(all(&mut plan), [9, 3]);
        plan.want(5);
        assert_eq!(plan.claim(), Some(5), "for a caller inside, not the program");
        assert_eq!(plan.end_recording(), [9, 3]);
        assert_eq!(all(&mut plan), [0, 1, 2, 4, 6, 7, 8]);
    }
}
