//! Names of the call stacks of an analysis.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

use serde::Serialize;

use super::{Functions, Symbols, one};
use crate::analysis::{Frame, StackSums, Sums};
use crate::model::Header;

/// Names for the call stacks of an analysis: functions, or without symbols modules and offsets.
///
/// ```
/// use cowslip_trace::analysis::Frame;
/// use cowslip_trace::model::Header;
/// use cowslip_trace::symbols::Names;
/// let place = Frame { module: Some("/none/app".into()), offset_bytes: 0x10, function: None };
/// assert_eq!(&*Names::new(&Header::default()).functions(&[place])[0], "app+0x10", "there is no such file");
/// ```
#[derive(Default)]
pub struct Names(Option<Symbols>);

impl Names {
    /// The names in the files of the programs of the trace with this header. A file that was changed since the trace
    /// began has none.
    pub fn new(header: &Header) -> Self {
        Self(Some(Symbols::new(header)))
    }

    /// The functions of a call stack, the innermost first: more than one for a frame where the compiler put a function
    /// into its caller, as far as debug information says so.
    pub fn functions(&mut self, frames: &[Frame]) -> Vec<Arc<str>> {
        match &mut self.0 {
            Some(symbols) => symbols.frames(frames),
            None => frames.iter().map(|frame| frame.to_string().into()).collect(),
        }
    }
}

/// The faults of call stacks with the same functions, regardless of the place in them.
#[derive(Clone, Debug, Serialize)]
pub struct FunctionSums {
    /// The innermost first.
    pub functions: Vec<Arc<str>>,
    /// True if further callers were left out.
    pub has_more: bool,
    /// Sums of their faults.
    #[serde(flatten)]
    pub sums: Sums,
}

impl Names {
    /// Call stacks by the names of their `depth` innermost functions, those with the most faults first.
    pub fn by_function(&mut self, stacks: &[StackSums], depth: usize) -> Vec<FunctionSums> {
        let mut sums: HashMap<Vec<Arc<str>>, (bool, Sums)> = HashMap::new();
        for stack in stacks {
            let mut functions = self.functions(&stack.frames);
            let is_longer = functions.len() > depth;
            functions.truncate(depth);
            let (has_more, sum) = sums.entry(functions).or_default();
            *has_more |= is_longer;
            *sum += &stack.sums;
        }
        let row = |(functions, (has_more, sums))| FunctionSums { functions, has_more, sums };
        let mut rows: Vec<_> = sums.into_iter().map(row).collect();
        rows.sort_by(|one, other| {
            let faults = |row: &FunctionSums| Reverse(row.sums.faults());
            faults(one).cmp(&faults(other)).then_with(|| one.functions.cmp(&other.functions))
        });
        rows
    }
}

impl Symbols {
    /// The functions of a call stack, the innermost first.
    ///
    /// A caller's frame holds the place after its call, which may belong to the next function: the place
    /// before it is looked up.
    fn frames(&mut self, frames: &[Frame]) -> Vec<Arc<str>> {
        let mut functions = |(depth, frame): (usize, &Frame)| -> Functions {
            match &frame.module {
                _ if frame.function.is_some() => one(frame.to_string().into()),
                Some(module) if module.starts_with('/') => {
                    let behind_call = u64::from(depth > 0);
                    self.functions_or_place(
                        module.clone(),
                        frame.offset_bytes.saturating_sub(behind_call),
                    )
                }
                Some(module) => one(module.clone()),
                None => one(frame.to_string().into()),
            }
        };
        frames.iter().enumerate().flat_map(|frame| functions(frame).to_vec()).collect()
    }
}
