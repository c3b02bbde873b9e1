//! The description that an image has besides its chunks.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::Path;

use cowslip_sys::memory::Prot;
use serde::{Deserialize, Serialize};

/// The description of an image, JSON in the file.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Description {
    /// The arenas, in their state at the freeze.
    pub arenas: Vec<ArenaDescription>,
    /// Named places that a restored program looks for first.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub roots: BTreeMap<String, Root>,
    /// The parent's name when this image was written: a file in the same directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_file: Option<String>,
    /// Words of the program's own.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub user: BTreeMap<String, String>,
}

/// An arena in an image.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ArenaDescription {
    /// Its first address in the saved program.
    pub start_address: u64,
    /// Its capacity.
    pub length_bytes: u64,
    /// The memory allocated from it.
    pub pieces: Vec<Piece>,
}

/// An allocated part of an arena.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Piece {
    /// From the arena's start.
    pub offset_bytes: u64,
    /// Its length.
    pub length_bytes: u64,
    /// The accesses that it allowed, as in `/proc/PID/maps`: `rw-`.
    pub protection: String,
}

/// A named place in an arena.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Root {
    /// The arena, by its index in the list.
    pub arena: u32,
    /// From that arena's start.
    pub offset_bytes: u64,
    /// Its length.
    pub length_bytes: u64,
}

const LETTERS: [(Prot, char); 3] = [(Prot::READ, 'r'), (Prot::WRITE, 'w'), (Prot::EXEC, 'x')];

impl Piece {
    pub(crate) fn new(offset_bytes: u64, length_bytes: u64, prot: Prot) -> Self {
        let letter = |(flag, letter)| if prot.contains(flag) { letter } else { '-' };
        Self { offset_bytes, length_bytes, protection: LETTERS.map(letter).iter().collect() }
    }

    pub(crate) fn prot(&self) -> Prot {
        let has = |(_, letter): &(Prot, char)| self.protection.contains(*letter);
        LETTERS.iter().filter(|pair| has(pair)).fold(Prot::NONE, |prot, (flag, _)| prot | *flag)
    }
}

impl ArenaDescription {
    /// Returns true if any of these bytes was allocated.
    pub(super) fn hands_out(&self, offset_bytes: u64, length_bytes: u64) -> bool {
        let end = |piece: &Piece| piece.offset_bytes + piece.length_bytes;
        let first = self.pieces.partition_point(|piece| end(piece) <= offset_bytes);
        let mut pieces = self.pieces[first..].iter().filter(|piece| piece.length_bytes > 0);
        pieces.next().is_some_and(|piece| piece.offset_bytes < offset_bytes + length_bytes)
    }
}

impl Description {
    /// Checks that every part lies within its bounds; returns the first fault.
    pub(super) fn fault(&self) -> Option<&'static str> {
        let is_inside = |offset: u64, length: u64, whole: u64| {
            offset.checked_add(length).is_some_and(|end| end <= whole)
        };
        for arena in &self.arenas {
            let mut last_end = 0;
            for piece in &arena.pieces {
                if !is_inside(piece.offset_bytes, piece.length_bytes, arena.length_bytes) {
                    return Some("a piece lies outside its arena");
                }
                if piece.offset_bytes < last_end {
                    return Some("pieces overlap or are not sorted");
                }
                last_end = piece.offset_bytes + piece.length_bytes;
            }
        }
        let is_root = |root: &Root| {
            let arena = self.arenas.get(root.arena as usize);
            arena.is_some_and(|arena| {
                is_inside(root.offset_bytes, root.length_bytes, arena.length_bytes)
            })
        };
        if !self.roots.values().all(is_root) {
            return Some("a root lies outside its arena");
        }
        let is_beside = |name: &String| Path::new(name).file_name() == Some(OsStr::new(name));
        (!self.parent_file.as_ref().is_none_or(is_beside))
            .then_some("`parent_file` names no file in the image's own folder")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn protections_are_letters() {
        for bits in 0..8 {
            let prot = Prot::from_bits_retain(bits);
            assert_eq!(Piece::new(0, 1, prot).prot(), prot);
        }
        assert_eq!(Piece::new(0, 1, Prot::RW).protection, "rw-");
    }

    #[test]
    fn what_was_handed_out_is_known_to_the_byte() {
        let piece = |offset_bytes, length_bytes| Piece::new(offset_bytes, length_bytes, Prot::RW);
        let pieces = vec![piece(3, 0), piece(10, 5), piece(15, 5), piece(30, 10)];
        let arena = ArenaDescription { start_address: 0, length_bytes: 40, pieces };
        for (from, length, expected) in [
            (0, 10, false),
            (0, 11, true),
            (14, 1, true),
            (19, 1, true),
            (20, 10, false),
            (20, 11, true),
            (0, 40, true),
            (40, 5, false),
        ] {
            assert_eq!(arena.hands_out(from, length), expected, "{length} from {from} on");
        }
    }

    #[test]
    fn what_lies_outside_is_found() {
        let piece = |offset_bytes, length_bytes| Piece::new(offset_bytes, length_bytes, Prot::RW);
        let arena = |pieces| ArenaDescription { start_address: 0, length_bytes: 100, pieces };
        let described = |pieces| Description { arenas: vec![arena(pieces)], ..Default::default() };
        assert_eq!(described(vec![piece(0, 50), piece(50, 50)]).fault(), None);
        assert!(described(vec![piece(0, 101)]).fault().is_some());
        assert!(described(vec![piece(u64::MAX, 2)]).fault().is_some());
        assert!(described(vec![piece(0, 50), piece(49, 1)]).fault().is_some());
        let mut rooted = described(vec![piece(0, 50)]);
        rooted.roots.insert("a".into(), Root { arena: 1, offset_bytes: 0, length_bytes: 1 });
        assert!(rooted.fault().is_some());
        let beside = |name: &str| {
            Description { parent_file: Some(name.into()), ..Description::default() }
                .fault()
                .is_none()
        };
        assert!(beside("monday") && beside("..monday"));
        for name in ["", "/monday", "../monday", "days/monday", "..", ".", "monday/", "./monday"] {
            assert!(!beside(name), "{name}");
        }
    }
}
