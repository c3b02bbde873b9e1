//! The allowed content of a save: exactly the `SET`s up to some instant between the call and its return.
//!
//! There is one writer, and it stores word after word. A save therefore holds its first `n` `SET`s whole, at most the
//! first words of the next one, and nothing of any later one; `n` is not less than the number completed before the
//! call, nor more than the number begun before it returned.

use std::collections::HashMap;

use super::table::{EMPTY, SLOT_WORDS, Slot, Table, compose, key_of};

/// The number of `SET`s completed before the snapshot, and begun by its end.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cut {
    pub(crate) completed: u64,
    pub(crate) begun: u64,
}

/// Differences of a copy of the store from its allowed content.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Violations {
    /// Lost, early, late or torn values.
    pub(crate) wrong_keys: u64,
    pub(crate) missing_keys: u64,
    pub(crate) extra_keys: u64,
}

/// The store as it must be after a number of `SET`s.
#[derive(Debug)]
pub(crate) struct Model {
    /// Indexed by key less one.
    slot_of: Vec<u32>,
    /// Each slot's key and the key's last `SET`; key 0 marks an empty slot.
    state: Vec<(u64, u64)>,
    sets: u64,
}

impl Model {
    /// The model of a table that was just filled.
    pub(crate) fn new(table: Table<'_>) -> Self {
        let slot_of: Vec<_> = (1..=table.keys()).map(|key| table.find(key) as u32).collect();
        let mut state = vec![(0, 0); table.slots()];
        for (slot, key) in slot_of.iter().zip(1..) {
            state[*slot as usize] = (key, 0);
        }
        Self { slot_of, state, sets: 0 }
    }

    /// Slot and key of a `SET`.
    fn target(&self, sequence: u64) -> (usize, u64) {
        let key = key_of(sequence, self.slot_of.len() as u64);
        (self.slot_of[key as usize - 1] as usize, key)
    }

    /// Advances to the state after `sets` `SET`s.
    pub(crate) fn advance(&mut self, sets: u64) {
        for sequence in self.sets + 1..=sets {
            let (slot, key) = self.target(sequence);
            self.state[slot] = (key, sequence);
        }
        self.sets = sets;
    }

    /// Compares every byte of a copy. Advances the model to the state at `cut.completed`.
    pub(crate) fn compare(&mut self, copy: impl Iterator<Item = Slot>, cut: Cut) -> Violations {
        self.advance(cut.completed);
        let mut violations = Violations::default();
        let mut different = HashMap::new();
        let mut slots = 0;
        for (slot, (found, &state)) in copy.zip(&self.state).enumerate() {
            slots = slot + 1;
            match (found == expected(state), state.0, found == EMPTY) {
                (true, ..) => {}
                (false, 0, _) => violations.extra_keys += 1,
                (false, _, true) => violations.missing_keys += 1,
                (false, _, false) => {
                    different.insert(slot, found);
                }
            }
        }
        violations.missing_keys += self.state[slots..].iter().filter(|s| s.0 != 0).count() as u64;
        violations.wrong_keys = self.fewest_wrong(&different, cut);
        violations
    }

    /// The number of wrong slots under the number of `SET`s that explains them best; `different` are the slots that
    /// differ from the state at the first number.
    fn fewest_wrong(&self, different: &HashMap<usize, Slot>, cut: Cut) -> u64 {
        let mut newer: HashMap<usize, (u64, u64)> = HashMap::new();
        let mut wrong = different.len() as u64;
        let mut fewest = wrong;
        for sequence in cut.completed + 1..=cut.begun {
            let (slot, key) = self.target(sequence);
            let old = expected(*newer.get(&slot).unwrap_or(&self.state[slot]));
            let new = compose(key, sequence);
            let found = *different.get(&slot).unwrap_or(&expected(self.state[slot]));
            fewest = fewest.min(wrong - u64::from(is_between(&found, &old, &new)));
            wrong = wrong - u64::from(found != old) + u64::from(found != new);
            fewest = fewest.min(wrong);
            newer.insert(slot, (key, sequence));
        }
        fewest
    }
}

fn expected((key, sequence): (u64, u64)) -> Slot {
    if key == 0 { EMPTY } else { compose(key, sequence) }
}

/// Returns true if a `SET` that was interrupted after its first words leaves `found`.
fn is_between(found: &Slot, old: &Slot, new: &Slot) -> bool {
    let done = found.iter().zip(new).take_while(|(found, new)| found == new).count();
    found != old && done < SLOT_WORDS && found[done..] == old[done..]
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;

    const SLOTS: usize = 64;

    /// The store after this many `SET`s.
    fn store(sets: u64) -> Vec<Slot> {
        let words: Vec<_> = (0..SLOTS * SLOT_WORDS).map(|_| AtomicU64::new(0)).collect();
        let table = Table::new(&words);
        (1..=table.keys()).for_each(|key| table.set(&compose(key, 0)));
        (1..=sets).for_each(|set| table.set(&compose(key_of(set, table.keys()), set)));
        (0..SLOTS).map(|slot| table.get(slot)).collect()
    }

    fn model() -> Model {
        let words: Vec<_> = store(0).into_iter().flatten().map(AtomicU64::new).collect();
        Model::new(Table::new(&words))
    }

    fn violations(copy: &[Slot], completed: u64, begun: u64) -> Violations {
        model().compare(copy.iter().copied(), Cut { completed, begun })
    }

    #[test]
    fn every_state_in_between_is_right_and_a_late_or_a_missing_set_is_found() {
        for sets in 100..=120 {
            assert_eq!(violations(&store(sets), 100, 120), Violations::default());
        }
        assert_eq!(violations(&store(99), 100, 120).wrong_keys, 1, "missing");
        assert_eq!(violations(&store(121), 100, 120).wrong_keys, 1, "late");
        assert_eq!(violations(&store(100), 100, 100), Violations::default());
        assert_eq!(violations(&store(101), 100, 100).wrong_keys, 1, "late, the writer was still");
    }

    #[test]
    fn a_set_without_the_one_before_it_is_found() {
        let (slot, _) = model().target(110);
        let mut copy = store(115);
        copy[slot] = store(109)[slot];
        assert_eq!(violations(&copy, 100, 120).wrong_keys, 1);
    }

    #[test]
    fn the_first_words_of_the_next_set_may_be_in_and_no_others() {
        let (slot, _) = model().target(111);
        let (mut copy, new) = (store(110), store(111)[slot]);
        copy[slot][..5].copy_from_slice(&new[..5]);
        assert_eq!(violations(&copy, 100, 120), Violations::default());
        assert_eq!(violations(&copy, 100, 110).wrong_keys, 1, "it began later");
        copy[slot][9] = new[9];
        assert_eq!(violations(&copy, 100, 120).wrong_keys, 1, "out of order");
        copy[slot] = new;
        copy[slot][15] ^= 1;
        assert_eq!(violations(&copy, 100, 120).wrong_keys, 1, "one bit");
    }

    #[test]
    fn keys_that_are_gone_or_came_from_nowhere_are_counted_apart() {
        let mut copy = store(100);
        let used = copy.iter().position(|slot| *slot != EMPTY).unwrap();
        let free = copy.iter().position(|slot| *slot == EMPTY).unwrap();
        copy.swap(used, free);
        let swapped = Violations { wrong_keys: 0, missing_keys: 1, extra_keys: 1 };
        assert_eq!(violations(&copy, 100, 100), swapped);
        let keys = store(100)[60..].iter().filter(|slot| **slot != EMPTY).count() as u64;
        assert_eq!(violations(&store(100)[..60], 100, 100).missing_keys, keys, "cut off");
    }
}
