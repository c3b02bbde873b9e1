//! Call stacks in bounded memory: unreferenced ones make room.

use std::collections::{HashMap, HashSet};
use std::num::NonZeroU32;

use crate::model::StackId;

const SECOND_NS: u64 = 1_000_000_000;
/// The longest time between a stack and its event.
const ON_THE_WAY_NS: u64 = 10 * SECOND_NS;

/// Stacks by their ids, kept for as long as events of this age.
#[derive(Debug)]
pub(super) struct Stacks {
    span_ns: u64,
    most_words: usize,
    words: usize,
    ids: HashMap<Box<[u64]>, StackId>,
    slots: Vec<Slot>,
    free: Vec<StackId>,
    swept_ns: u64,
}

#[derive(Debug)]
struct Slot {
    frames: Box<[u64]>,
    used_ns: u64,
}

impl Stacks {
    pub(super) fn new(span_ns: u64, memory_bytes: usize) -> Self {
        Self {
            span_ns,
            // Each is stored twice: by its id, and as a key.
            most_words: memory_bytes / size_of::<u64>() / 2,
            words: 0,
            ids: HashMap::new(),
            slots: Vec::new(),
            free: Vec::new(),
            swept_ns: 0,
        }
    }

    /// The id of a stack, which is used at about `now_ns`; `None` if there is no room, even after removing
    /// old ones that are not among `kept`.
    pub(super) fn id<'a>(
        &mut self,
        frames: &[u64],
        now_ns: u64,
        kept: impl Iterator<Item = &'a StackId>,
    ) -> Option<StackId> {
        if let Some(id) = self.ids.get(frames) {
            self.slots[place(*id)].used_ns = now_ns;
            return Some(*id);
        }
        let is_full = |stacks: &Self| stacks.words + frames.len() > stacks.most_words;
        if is_full(self) && now_ns >= self.swept_ns + SECOND_NS {
            self.sweep(now_ns, &kept.copied().collect());
        }
        if is_full(self) {
            return None;
        }
        let slot = Slot { frames: frames.into(), used_ns: now_ns };
        let id = match self.free.pop() {
            Some(id) => {
                self.slots[place(id)] = slot;
                id
            }
            None => {
                self.slots.push(slot);
                StackId(NonZeroU32::new(self.slots.len() as u32)?)
            }
        };
        self.words += frames.len();
        self.ids.insert(frames.into(), id);
        Some(id)
    }

    pub(super) fn frames(&self, id: StackId) -> &[u64] {
        &self.slots[place(id)].frames
    }

    fn sweep(&mut self, now_ns: u64, kept: &HashSet<StackId>) {
        let oldest = now_ns.saturating_sub(self.span_ns + ON_THE_WAY_NS);
        let Self { ids, slots, free, words, .. } = self;
        ids.retain(|frames, id| {
            let is_used = slots[place(*id)].used_ns >= oldest || kept.contains(id);
            if !is_used {
                *words -= frames.len();
                slots[place(*id)].frames = Box::default();
                free.push(*id);
            }
            is_used
        });
        self.swept_ns = now_ns;
    }
}

fn place(id: StackId) -> usize {
    id.0.get() as usize - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_stacks_make_room_and_ids_in_use_stay() {
        let mut stacks = Stacks::new(SECOND_NS, 4 * 2 * size_of::<u64>());
        let old = stacks.id(&[1, 2], 0, [].iter()).unwrap();
        let kept = stacks.id(&[3], 0, [].iter()).unwrap();
        let new = stacks.id(&[4], 12 * SECOND_NS, [].iter()).unwrap();
        assert_eq!(stacks.id(&[1, 2], 0, [].iter()), Some(old), "it is the same one");
        let newer = stacks.id(&[5, 6], 12 * SECOND_NS, [kept].iter()).unwrap();
        assert_eq!(newer, old, "its id is used again");
        for (id, frames) in [(kept, &[3][..]), (new, &[4]), (newer, &[5, 6])] {
            assert_eq!(stacks.frames(id), frames);
        }
        assert_eq!(stacks.id(&[7], 12 * SECOND_NS, [].iter()), None, "all are in use");
    }
}
