//! The allowed content of a save, by the writers' logs, and violations of it.
//!
//! ```text
//!   writer    ──w1──▸ ──w2──▸ ──w3──▸ ──w4──▸ ──w5──▸ ──w6──▸      one request at a time
//!   control               BGSAVE sent ├───────┤ reply
//!              must be in ────────────┘ either └──────────── must not be in
//! ```
//! In between, the cut is at some instant: the save holds a prefix of each writer's log, and a write that began after
//! another had been acknowledged is in only if that other is.

use super::value::Found;

/// One acknowledged `SET`. An unanswered one has `acked_ns` = `u64::MAX`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Write {
    /// Index among the writer's own keys.
    pub(crate) slot: usize,
    pub(crate) sequence: u64,
    pub(crate) sent_ns: u64,
    pub(crate) acked_ns: u64,
}

/// Log of one writer: the state of its keys before, and its writes since, in order.
#[derive(Debug, Clone, Copy)]
pub(crate) struct History<'a> {
    /// The last earlier write of each of its keys.
    pub(crate) last_written: &'a [u64],
    pub(crate) writes: &'a [Write],
}

/// The time of the request to save, and of the reply that it had begun.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cut {
    pub(crate) sent_ns: u64,
    pub(crate) replied_ns: u64,
}

impl Cut {
    /// After all writes: the required content of a live server with idle writers.
    pub(crate) const END: Self = Self { sent_ns: u64::MAX, replied_ns: u64::MAX };
}

/// All keys of a server. Key `slot × writers + w` is slot `slot` of writer `w`.
#[derive(Debug)]
pub(crate) struct Keyspace {
    pub(crate) found: Vec<Found>,
    /// Number of keys the server says it has.
    pub(crate) size: u64,
}

/// Differences of a keyspace from its allowed content.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Violations {
    pub(crate) missing_keys: u64,
    /// Lost, early, late or torn values; and writers with writes that are in without their causes.
    pub(crate) wrong_keys: u64,
    pub(crate) extra_keys: u64,
}

/// Compares a keyspace with the writers' logs.
pub(crate) fn violations(histories: &[History<'_>], cut: Cut, keyspace: &Keyspace) -> Violations {
    let missing_keys = keyspace.found.iter().filter(|f| **f == Found::Missing).count() as u64;
    let present = keyspace.found.len() as u64 - missing_keys;
    let prefixes: Vec<_> = histories
        .iter()
        .enumerate()
        .map(|(writer, history)| {
            let own = keyspace.found.iter().skip(writer).step_by(histories.len());
            best_prefix(*history, cut, &own.copied().collect::<Vec<_>>())
        })
        .collect();

    let latest_kept = histories
        .iter()
        .zip(&prefixes)
        .filter_map(|(history, prefix)| Some(history.writes[..prefix.at_least].last()?.sent_ns))
        .max()
        .unwrap_or(0);
    let without_cause = histories.iter().zip(&prefixes).filter(|(history, prefix)| {
        history.writes.get(prefix.at_most).is_some_and(|lost| lost.acked_ns < latest_kept)
    });
    Violations {
        missing_keys,
        wrong_keys: prefixes.iter().map(|prefix| prefix.wrong_keys).sum::<u64>()
            + without_cause.count() as u64,
        extra_keys: keyspace.size.saturating_sub(present),
    }
}

/// The prefixes of a writer's log that explain its keys best.
struct Prefix {
    wrong_keys: u64,
    at_least: usize,
    at_most: usize,
}

fn best_prefix(history: History<'_>, cut: Cut, found: &[Found]) -> Prefix {
    let must = history.writes.partition_point(|write| write.acked_ns < cut.sent_ns);
    let may = history.writes.partition_point(|write| write.sent_ns <= cut.replied_ns).max(must);
    let mut state = history.last_written.to_vec();
    for write in &history.writes[..must] {
        state[write.slot] = write.sequence;
    }

    let wrong = |slot: usize, sequence: u64| {
        u64::from(found[slot] != Found::Write(sequence) && found[slot] != Found::Missing)
    };
    let mut now = state.iter().enumerate().map(|(slot, &sequence)| wrong(slot, sequence)).sum();
    let mut best = Prefix { wrong_keys: now, at_least: must, at_most: must };
    for (write, length) in history.writes[must..may].iter().zip(must + 1..) {
        now = now + wrong(write.slot, write.sequence) - wrong(write.slot, state[write.slot]);
        state[write.slot] = write.sequence;
        if now < best.wrong_keys {
            best = Prefix { wrong_keys: now, at_least: length, at_most: length };
        } else if now == best.wrong_keys {
            best.at_most = length;
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Write number `sequence` is sent at `10 × sequence` and acknowledged 5 later.
    fn write(slot: usize, sequence: u64) -> Write {
        Write { slot, sequence, sent_ns: 10 * sequence, acked_ns: 10 * sequence + 5 }
    }

    fn keyspace(sequences: &[u64]) -> Keyspace {
        let found: Vec<_> = sequences.iter().map(|&s| Found::Write(s)).collect();
        Keyspace { size: found.len() as u64, found }
    }

    /// The violations of one writer with three keys that wrote 0, 1, 2, 0, 1, 2 as 1 to 6.
    fn violations_at(cut: (u64, u64), keyspace: &Keyspace) -> Violations {
        let writes: Vec<_> = (1..=6).map(|s| write((s as usize - 1) % 3, s)).collect();
        let history = History { last_written: &[0, 0, 0], writes: &writes };
        violations(&[history], Cut { sent_ns: cut.0, replied_ns: cut.1 }, keyspace)
    }

    #[test]
    fn a_cut_between_two_writes_allows_one_state() {
        let between = (36, 38);
        assert_eq!(violations_at(between, &keyspace(&[1, 2, 3])), Violations::default());
        assert_eq!(violations_at(between, &keyspace(&[1, 2, 0])).wrong_keys, 1, "lost");
        assert_eq!(violations_at(between, &keyspace(&[4, 2, 3])).wrong_keys, 1, "late");
        assert_eq!(violations_at(between, &keyspace(&[0, 0, 0])).wrong_keys, 3, "early");
    }

    #[test]
    fn an_uncertain_cut_allows_the_prefixes_and_nothing_else() {
        let uncertain = (36, 52);
        for allowed in [[1, 2, 3], [4, 2, 3], [4, 5, 3]] {
            assert_eq!(violations_at(uncertain, &keyspace(&allowed)), Violations::default());
        }
        assert_eq!(violations_at(uncertain, &keyspace(&[1, 5, 3])).wrong_keys, 1, "not a prefix");
        assert_eq!(violations_at(uncertain, &keyspace(&[4, 5, 6])).wrong_keys, 1, "late");
        assert_eq!(violations_at(uncertain, &keyspace(&[1, 0, 3])).wrong_keys, 1, "early");
    }

    #[test]
    fn torn_missing_and_extra_keys_are_counted_apart() {
        let found = vec![Found::Torn, Found::Missing, Found::Write(3)];
        let violations = violations_at((36, 38), &Keyspace { found, size: 4 });
        assert_eq!(violations, Violations { missing_keys: 1, wrong_keys: 1, extra_keys: 2 });
    }

    #[test]
    fn an_unanswered_write_may_be_in_or_out() {
        let writes = [write(0, 1), Write { acked_ns: u64::MAX, ..write(0, 2) }];
        let history = History { last_written: &[0], writes: &writes };
        assert_eq!(violations(&[history], Cut::END, &keyspace(&[1])), Violations::default());
        assert_eq!(violations(&[history], Cut::END, &keyspace(&[2])), Violations::default());
        assert_eq!(violations(&[history], Cut::END, &keyspace(&[0])).wrong_keys, 1);
    }

    #[test]
    fn no_effect_without_its_cause() {
        // The second writer's write began after the first one's had been acknowledged.
        let (cause, effect) = ([write(0, 1)], [write(0, 2)]);
        let histories = [
            History { last_written: &[0], writes: &cause },
            History { last_written: &[0], writes: &effect },
        ];
        let cut = Cut { sent_ns: 5, replied_ns: 30 };
        for (kept, wrong_keys) in [([0, 0], 0), ([1, 0], 0), ([1, 2], 0), ([0, 2], 1)] {
            assert_eq!(violations(&histories, cut, &keyspace(&kept)).wrong_keys, wrong_keys);
        }
    }
}
