//! The parts of an address space, by address; no two overlap.

use std::collections::BTreeMap;

use cowslip_sys::units::VirtRange;

/// A part of an address space.
pub(crate) trait Part {
    fn range(&self) -> VirtRange;
}

#[derive(Clone, Debug)]
pub(crate) struct Parts<T>(BTreeMap<usize, T>);

impl<T> Default for Parts<T> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<T: Part> Parts<T> {
    pub(crate) fn at(&self, address: usize) -> Option<&T> {
        let (_, part) = self.0.range(..=address).next_back()?;
        part.range().contains(address).then_some(part)
    }

    #[cfg(feature = "analysis")]
    pub(crate) fn at_mut(&mut self, address: usize) -> Option<&mut T> {
        let (_, part) = self.0.range_mut(..=address).next_back()?;
        part.range().contains(address).then_some(part)
    }

    /// The first one that begins at `address` or above.
    #[cfg(feature = "analysis")]
    pub(crate) fn above(&self, address: usize) -> Option<&T> {
        self.0.range(address..).next().map(|(_, part)| part)
    }

    /// Those that overlap `range`, in order.
    pub(crate) fn within(&self, range: VirtRange) -> impl DoubleEndedIterator<Item = &T> {
        let first = self.at(range.start).map_or(range.start, |part| part.range().start);
        self.0.range(first..range.end().max(first)).map(|(_, part)| part)
    }

    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = &T> {
        self.0.values()
    }

    #[cfg(feature = "analysis")]
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Inserts a part where there is none. An empty one is left out.
    pub(crate) fn insert(&mut self, part: T) {
        if !part.range().is_empty() {
            self.0.insert(part.range().start, part);
        }
    }

    /// Takes out the part that begins at `start`.
    pub(crate) fn remove(&mut self, start: usize) -> Option<T> {
        self.0.remove(&start)
    }
}
