//! Names of instructions, each stored once.

use std::collections::HashMap;
use std::sync::Arc;

use crate::model::{Event, Header};
use crate::symbols::Symbols;

/// Numbers the names of instructions.
pub(super) struct Frames {
    symbols: Symbols,
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
            symbols: Symbols::new(header),
            known: HashMap::new(),
            numbers: HashMap::new(),
            names: Vec::new(),
            stack_numbers: HashMap::new(),
            stacks: Vec::new(),
        }
    }

    pub(super) fn observe(&mut self, event: &Event) {
        self.symbols.observe(event);
    }

    /// The number of the innermost function at an instruction.
    pub(super) fn innermost(&mut self, program: u32, pid: u32, ip: u64) -> u32 {
        self.numbers(program, pid, ip)[0]
    }

    /// The numbers of the functions at an instruction, in a process that runs a program now.
    fn numbers(&mut self, program: u32, pid: u32, ip: u64) -> Arc<[u32]> {
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
        let numbers: Arc<[u32]> = symbols.functions(pid, ip).iter().map(number).collect();
        self.known.insert((program, ip), numbers.clone());
        numbers
    }

    /// The number of a call stack. A caller is placed at its call, one byte before the return address.
    pub(super) fn stack(&mut self, program: u32, pid: u32, frames: &[u64]) -> u32 {
        let called = |(depth, ip): (usize, &u64)| ip.saturating_sub(u64::from(depth > 0));
        let ips = frames.iter().enumerate().map(called);
        let stack: Vec<_> = ips.flat_map(|ip| self.numbers(program, pid, ip).to_vec()).collect();
        *self.stack_numbers.entry(stack).or_insert_with_key(|stack| {
            self.stacks.push(stack.clone());
            self.stacks.len() as u32 - 1
        })
    }
}
