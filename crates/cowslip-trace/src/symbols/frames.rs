//! Names of the frames of an analysis.

use std::sync::Arc;

use super::Symbols;
use crate::analysis::Frame;

impl Symbols {
    /// The functions of a call stack, the innermost first.
    ///
    /// What a caller's frame holds is behind its call, and may belong to the next function: the place
    /// before it is asked for.
    pub fn frames(&mut self, frames: &[Frame]) -> Vec<Arc<str>> {
        let name = |(depth, frame): (usize, &Frame)| match &frame.module {
            Some(module) if module.starts_with('/') => {
                let behind_call = u64::from(depth > 0);
                self.name_in(module.clone(), frame.offset_bytes.saturating_sub(behind_call))
            }
            Some(module) => module.clone(),
            None => frame.to_string().into(),
        };
        frames.iter().enumerate().map(name).collect()
    }
}
