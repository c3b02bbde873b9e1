//! The traced programs, each with an address space that its forks share.

use std::collections::HashMap;
use std::sync::Arc;

use crate::model::{Event, EventKind};

/// Programs, numbered in the order of their appearance.
#[derive(Debug, Default)]
pub(super) struct Programs {
    numbers: HashMap<u32, u32>,
    pub(super) all: Vec<Program>,
}

#[derive(Debug)]
pub(super) struct Program {
    pub(super) first_pid: u32,
    /// The last name of its first thread.
    name: Option<Arc<str>>,
}

impl Programs {
    /// The picture's number of an attributor's program, which runs in a process now.
    pub(super) fn number(&mut self, program: u32, pid: u32) -> u32 {
        *self.numbers.entry(program).or_insert_with(|| {
            self.all.push(Program { first_pid: pid, name: None });
            self.all.len() as u32 - 1
        })
    }

    /// Takes the name that an event gives to the program that runs after it.
    pub(super) fn observe(&mut self, event: &Event, number: u32) {
        let program = &mut self.all[number as usize];
        let is_first = event.tid == program.first_pid;
        if let EventKind::Exec { name } | EventKind::Name { name } = &event.what
            && is_first
        {
            program.name = Some(name.clone());
        }
    }
}

impl Program {
    pub(super) fn label(&self) -> String {
        let pid = self.first_pid;
        match &self.name {
            Some(name) => format!("{name} ({pid})"),
            None => format!("process {pid}"),
        }
    }
}
