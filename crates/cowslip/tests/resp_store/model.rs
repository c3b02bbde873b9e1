//! Numbered writes, and the content of a store after any number of them.

use std::collections::BTreeMap;

use crate::support::Scatter;

/// The number of values that a writer keeps.
pub(crate) const SLOTS: u64 = 1500;

/// The content of a writer's keys.
pub(crate) type Content = BTreeMap<Vec<u8>, Vec<u8>>;

pub(crate) fn slot_key(writer: u64, slot: u64) -> Vec<u8> {
    format!("writer:{writer}:slot:{slot}").into_bytes()
}

pub(crate) fn last_key(writer: u64) -> Vec<u8> {
    format!("writer:{writer}:last").into_bytes()
}

pub(crate) fn count_key(writer: u64) -> Vec<u8> {
    format!("writer:{writer}:count").into_bytes()
}

/// Every key that a writer may have.
pub(crate) fn keys(writer: u64) -> impl Iterator<Item = Vec<u8>> {
    let slots = (0..SLOTS).map(move |slot| slot_key(writer, slot));
    slots.chain([last_key(writer), count_key(writer)])
}

/// The `n`-th write of a writer, in one life of the server: set, increment, set, delete, and so on. A set also stores
/// its number, in the same command.
pub(crate) fn words(writer: u64, life: u64, n: u64) -> Vec<Vec<u8>> {
    match n % 4 {
        2 => vec![b"INCR".into(), count_key(writer)],
        0 => vec![b"DEL".into(), slot_key(writer, slot(writer, n - 1))],
        _ => {
            let key = slot_key(writer, slot(writer, n));
            let (value, number) = (value(writer, life, n), n.to_string().into_bytes());
            vec![b"MSET".into(), key, value, last_key(writer), number]
        }
    }
}

/// Applies the change of a write.
pub(crate) fn apply(content: &mut Content, words: &[Vec<u8>]) {
    match words {
        [_, key, value, last, number] => {
            content.insert(key.clone(), value.clone());
            content.insert(last.clone(), number.clone());
        }
        [name, key] if name == b"INCR" => {
            let before = content.get(key).map_or("0", |digits| str::from_utf8(digits).unwrap());
            let after = before.parse::<u64>().unwrap() + 1;
            content.insert(key.clone(), after.to_string().into_bytes());
        }
        [_, key] => assert!(content.remove(key).is_some(), "what was just set"),
        _ => unreachable!("no such write"),
    }
}

fn scatter(seed: [u64; 3]) -> Scatter {
    let mixed = seed.iter().fold(0x9e37_79b9_7f4a_7c15_u64, |mixed, &part| {
        (mixed ^ part).wrapping_mul(0xd134_2543_de82_ef95).rotate_left(29)
    });
    Scatter(mixed | 1)
}

fn slot(writer: u64, n: u64) -> u64 {
    (scatter([writer, 0, n]).next() >> 20) % SLOTS
}

fn value(writer: u64, life: u64, n: u64) -> Vec<u8> {
    let mut scatter = scatter([writer, life + 1, n]);
    let most = match (scatter.next() >> 20) % 512 {
        0 => 300_000,
        1..128 => 100,
        _ => 8000,
    };
    let length = (scatter.next() >> 20) as usize % most;
    let words = std::iter::repeat_with(|| scatter.next().to_le_bytes());
    words.flatten().take(length).collect()
}
