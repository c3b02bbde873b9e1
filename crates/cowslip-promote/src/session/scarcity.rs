//! Tells the operator when huge pages become scarce, and who has them.

use super::{Notice, Operator};
use crate::model::Look;

/// After so many looks without a shortage it is over.
const LOOKS: u32 = 12;

#[derive(Debug, Default)]
pub(super) struct Scarcity {
    /// Looks until a shortage that was told is over; 0 if none was.
    left: u32,
}

impl Scarcity {
    pub(super) fn is_told(&self) -> bool {
        self.left > 0
    }

    pub(super) fn see(&mut self, is_scarce: bool, look: &Look, operator: &mut dyn Operator) {
        if is_scarce {
            if !self.is_told() {
                operator.tell(&Notice::Scarce(&holders(look)));
            }
            self.left = LOOKS;
        } else if self.is_told() {
            self.left -= 1;
            if self.left == 0 {
                operator.tell(&Notice::NoLongerScarce);
            }
        }
    }
}

/// The targets with their huge pages, the most first.
fn holders(look: &Look) -> Vec<(String, u64)> {
    let mut holders: Vec<_> = look
        .processes
        .iter()
        .map(|process| {
            let huge = process.regions.iter().filter(|region| region.is_huge).count();
            (format!("{} ({})", process.name, process.process.pid), huge as u64)
        })
        .collect();
    holders.sort_by_key(|(_, huge)| std::cmp::Reverse(*huge));
    holders
}
