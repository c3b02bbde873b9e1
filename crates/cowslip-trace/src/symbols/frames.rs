//! Names of the call stacks of an analysis.

use std::sync::Arc;

use super::Symbols;
use crate::analysis::Frame;

/// Names for the call stacks of an analysis: functions, or without symbols modules and offsets.
#[derive(Default)]
pub struct Names(Option<Symbols>);

impl Names {
    /// Those that the files of the trace's programs have.
    pub fn new(symbols: Symbols) -> Self {
        Self(Some(symbols))
    }

    /// The functions of a call stack, the innermost first.
    pub fn of(&mut self, frames: &[Frame]) -> Vec<Arc<str>> {
        match &mut self.0 {
            Some(symbols) => symbols.frames(frames),
            None => frames.iter().map(|frame| frame.to_string().into()).collect(),
        }
    }
}

impl Symbols {
    /// The functions of a call stack, the innermost first.
    ///
    /// What a caller's frame holds is behind its call, and may belong to the next function: the place
    /// before it is asked for.
    fn frames(&mut self, frames: &[Frame]) -> Vec<Arc<str>> {
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
