//! Names of instructions, each stored once.

use std::collections::HashMap;
use std::sync::Arc;

use crate::analysis::Analyser;
use crate::model::Header;
use crate::symbols::Names;

/// Numbers the names of instructions.
pub(super) struct Frames {
    symbols: Names,
    /// By program and address: a program has one name at an address, unless it loads other code there later.
    known: HashMap<(u32, u64), Arc<[u32]>>,
    numbers: HashMap<Arc<str>, u32>,
    pub(super) names: Vec<Arc<str>>,
    stack_numbers: HashMap<Vec<u32>, u32>,
    /// Call stacks as numbers of names, each stored once.
    pub(super) stacks: Vec<Vec<u32>>,
}

impl Frames {
    pub(super) fn new(header: &Header) -> Self {
        Self {
            symbols: Names::new(header),
            known: HashMap::new(),
            numbers: HashMap::new(),
            names: Vec::new(),
            stack_numbers: HashMap::new(),
            stacks: Vec::new(),
        }
    }

    /// The number of the innermost function at an instruction.
    pub(super) fn innermost(&mut self, at: (u32, u32), ip: u64, analyser: &mut Analyser) -> u32 {
        self.numbers(at, ip, analyser)[0]
    }

    /// The numbers of the functions at an instruction; `at` is a program and a process that runs it now.
    fn numbers(
        &mut self,
        (program, pid): (u32, u32),
        ip: u64,
        analyser: &mut Analyser,
    ) -> Arc<[u32]> {
        if let Some(numbers) = self.known.get(&(program, ip)) {
            return numbers.clone();
        }
        let Self { symbols, numbers, names, .. } = self;
        let number = |name: &Arc<str>| {
            *numbers.entry(name.clone()).or_insert_with_key(|name| {
                names.push(name.clone());
                names.len() as u32 - 1
            })
        };
        let numbers: Arc<[u32]> =
            symbols.functions(&[analyser.frame(pid, ip)]).iter().map(number).collect();
        self.known.insert((program, ip), numbers.clone());
        numbers
    }

    /// The number of a call stack. A caller is placed at its call, one byte before the return address.
    pub(super) fn stack(&mut self, at: (u32, u32), frames: &[u64], analyser: &mut Analyser) -> u32 {
        let called = |(depth, ip): (usize, &u64)| ip.saturating_sub(u64::from(depth > 0));
        let ips = frames.iter().enumerate().map(called);
        let stack: Vec<_> = ips.flat_map(|ip| self.numbers(at, ip, analyser).to_vec()).collect();
        *self.stack_numbers.entry(stack).or_insert_with_key(|stack| {
            self.stacks.push(stack.clone());
            self.stacks.len() as u32 - 1
        })
    }
}
