//! Chunks that were given back while others read them.

/// Chunks that wait for their readers to end.
#[derive(Debug, Default)]
pub(crate) struct DeferredFree {
    pub(crate) chunks: Vec<usize>,
}

impl DeferredFree {
    /// Adds a private chunk that has nothing in use any more.
    pub(crate) fn add(&mut self, chunk: usize) {
        self.chunks.push(chunk);
    }
}
