//! Data about an arena, without a system call: the state of each chunk, the use of each address, density, pages written.

pub(crate) mod chunk_map;
pub(crate) mod deferred_free;
pub(crate) mod density;
pub(crate) mod departure;
pub(crate) mod page_size;
pub(crate) mod role;
pub(crate) mod tracking;
pub(crate) mod unmapped;
pub(crate) mod vma_map;
