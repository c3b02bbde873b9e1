//! Progress of the moves into one file.

/// Progress of the consolidation.
#[derive(Debug, Default)]
pub(crate) struct Consolidating {
    pub(crate) next: usize,
    pub(crate) not_before_ns: u64,
    pub(crate) delay_ns: u64,
}
