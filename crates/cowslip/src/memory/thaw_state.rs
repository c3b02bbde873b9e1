//! Progress of a thaw.

/// How far the thaw is.
#[derive(Debug, Default)]
pub(crate) struct ThawState {
    pub(crate) paused: bool,
    /// A child was forked from frozen memory, and the next one may follow soon.
    pub(crate) forked: bool,
    /// Until when it is worth waiting for that next child.
    pub(crate) linger_until_ns: u64,
    pub(crate) began_ns: Option<u64>,
    /// Time for which writers waited since the last look at it.
    pub(crate) felt_ns: u64,
    /// Work that this thaw took, without its pauses.
    pub(crate) busy_ns: u64,
    /// Work that the last whole thaw took.
    pub(crate) last_busy_ns: u64,
    /// No attempt before this time.
    pub(crate) not_before_ns: u64,
    pub(crate) delay_ns: u64,
    pub(crate) look: Look,
    /// While memory is short: no chunk before this one is frozen without a private page.
    pub(crate) clean_from: usize,
}

impl ThawState {
    /// Ends a round: all chunks that can be thawed now are.
    pub(crate) fn end_round(&mut self) {
        self.began_ns = None;
        let busy_ns = std::mem::take(&mut self.busy_ns);
        if busy_ns > 0 {
            self.last_busy_ns = busy_ns;
        }
    }
}

/// Progress of the search for clean chunks that were written.
#[derive(Debug, Default)]
pub(crate) struct Look {
    /// The next chunk to look at.
    pub(crate) next: usize,
    pub(crate) has_found: bool,
    /// Not before this time.
    pub(crate) not_before_ns: u64,
    pub(crate) delay_ns: u64,
}
