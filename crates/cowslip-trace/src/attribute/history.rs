//! All mappings that a trace shows, with the spans of address and time of each.

use std::ops::Range;

use cowslip_sys::procfs::Policy;
use cowslip_sys::units::VirtRange;

use super::mapping::{Mapping, MappingId, Span};
use super::object::Objects;
use crate::model::Header;
use crate::thp::{self, Kind};

/// The state of a replay besides the address spaces.
#[derive(Debug)]
pub(super) struct MappingHistory {
    pub(super) circumstances: Circumstances,
    /// The time of the event being replayed.
    pub(super) now_ns: u64,
    pub(super) mappings: Vec<Mapping>,
    pub(super) spans: Vec<Span>,
    pub(super) objects: Objects,
    /// The number of areas and of runs of pages that living children inherited.
    pub(super) inherited_parts: usize,
}

/// Facts about the trace as a whole.
#[derive(Clone, Copy, Debug)]
pub(super) struct Circumstances {
    /// Bytes in a base page.
    pub(super) page_bytes: u64,
    /// The numbers of pages, besides one, that a fault in private memory may bring at once: a bit for each
    /// power of two.
    pub(super) private_sizes: u32,
    /// The same for shared memory.
    pub(super) shared_sizes: u32,
    /// True if the kernel aligns shared memory for huge pages.
    pub(super) aligns_shared: bool,
    /// True if the trace has unmap events, and every map is one of its own.
    pub(super) sees_unmaps: bool,
    /// True if each fault is recorded, not one in so many.
    pub(super) is_complete: bool,
    /// The number of losses of events until now.
    pub(super) losses: u32,
}

/// The number of a span.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct SpanId(u32);

impl Circumstances {
    /// The facts in a header.
    pub(super) fn new(header: &Header) -> Self {
        let machine = &header.machine;
        let page_bytes = machine.base_page_bytes();
        let sizes = |kind, largest_may_come: bool| {
            let smaller = thp::smaller_sizes(machine, kind).into_iter().map(|(size, _)| 1 << size);
            let largest = if largest_may_come { page_bytes as u32 / 8 } else { 0 };
            smaller.fold(largest, |sizes, size: u32| sizes | size)
        };
        let shared_may_be_huge = thp::shared_may_be_huge(machine);
        Self {
            page_bytes,
            private_sizes: sizes(Kind::Anonymous, thp::policy(machine) != Some(Policy::Never)),
            shared_sizes: sizes(Kind::Shared, shared_may_be_huge),
            aligns_shared: shared_may_be_huge,
            sees_unmaps: header.sources.iter().any(|source| source.contains("munmap")),
            is_complete: header.sampling_period <= 1,
            losses: 0,
        }
    }

    /// Pages in a huge page: the number of eight-byte entries in a page table of page size.
    pub(super) fn huge_pages(self) -> u64 {
        self.page_bytes / 8
    }

    /// The pages of the huge page around `page`.
    pub(super) fn huge_around(self, page: u64) -> Range<u64> {
        let first = page / self.huge_pages() * self.huge_pages();
        first..first + self.huge_pages()
    }

    /// The pages that overlap `range`.
    pub(super) fn pages(self, range: VirtRange) -> Range<u64> {
        range.start as u64 / self.page_bytes..(range.end() as u64).div_ceil(self.page_bytes)
    }

    /// The addresses of `pages`.
    pub(super) fn range(self, pages: &Range<u64>) -> VirtRange {
        let address = |page: u64| (page * self.page_bytes) as usize;
        VirtRange::between(address(pages.start), address(pages.end))
    }
}

impl MappingHistory {
    pub(super) fn new(circumstances: Circumstances) -> Self {
        Self {
            circumstances,
            now_ns: 0,
            mappings: Vec::new(),
            spans: Vec::new(),
            objects: Objects::default(),
            inherited_parts: 0,
        }
    }

    /// Adds a mapping. An inherited one maps the same object as its parent.
    pub(super) fn add(&mut self, mut mapping: Mapping) -> MappingId {
        if mapping.inherited_from.is_none() {
            mapping.object = self.objects.find_or_add(&mapping, self.circumstances.losses);
        }
        self.mappings.push(mapping);
        MappingId(last(self.mappings.len()))
    }

    pub(super) fn get(&self, id: MappingId) -> &Mapping {
        &self.mappings[id.0 as usize]
    }

    pub(super) fn get_mut(&mut self, id: MappingId) -> &mut Mapping {
        &mut self.mappings[id.0 as usize]
    }

    pub(super) fn begin(&mut self, mapping: MappingId, range: VirtRange) -> SpanId {
        self.begin_at(mapping, range, self.now_ns)
    }

    pub(super) fn begin_at(
        &mut self,
        mapping: MappingId,
        range: VirtRange,
        began_ns: u64,
    ) -> SpanId {
        self.spans.push(Span { mapping, range, began_ns, ended_ns: None });
        SpanId(last(self.spans.len()))
    }

    /// Ends the span, and begins one with another address or length.
    pub(super) fn change(&mut self, id: SpanId, range: VirtRange) -> SpanId {
        let mapping = self.spans[id.0 as usize].mapping;
        self.end(id);
        self.begin(mapping, range)
    }

    pub(super) fn end(&mut self, id: SpanId) {
        self.spans[id.0 as usize].ended_ns = Some(self.now_ns);
    }
}

/// The number of the last of `len`; a trace of 2^32 mappings would not fit into memory.
fn last(len: usize) -> u32 {
    u32::try_from(len - 1).expect("fewer than 2^32 mappings")
}
