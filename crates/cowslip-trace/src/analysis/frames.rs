//! Call stacks by module and offset, so that they are the same wherever modules are loaded.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use serde::Serialize;

use crate::attribute::{Attributor, Place};
use crate::model::{Fault, StackId, Tick};
use crate::perf_maps::PerfMaps;

/// The kernel's addresses begin here; they differ at each boot.
const KERNEL: u64 = 1 << 63;
/// The addresses at which programs may have code, with the widest page tables that there are. Another frame is a
/// remnant of a stack that could not be followed.
const PROGRAMS: Range<u64> = 4096..1 << 56;

/// An instruction, regardless of where its module is loaded.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
pub struct Frame {
    /// The file that is mapped there, or a name in brackets; `None` if no known mapping is there.
    pub module: Option<Arc<str>>,
    /// The place in the file, in bytes; the address if there is no file.
    pub offset_bytes: u64,
    /// The name that a program gave to code which it generated; then the other fields mean nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub function: Option<Arc<str>>,
}

impl Frame {
    const fn in_module(module: Option<Arc<str>>, offset_bytes: u64) -> Self {
        Self { module, offset_bytes, function: None }
    }
}

impl fmt::Display for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.module {
            _ if self.function.is_some() => {
                f.write_str(self.function.as_deref().unwrap_or_default())
            }
            Some(module) => write!(f, "{module}+{:#x}", self.offset_bytes),
            None => write!(f, "{:#x}", self.offset_bytes),
        }
    }
}

/// The number of a call stack by module and offset.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Site(u32);

/// Holds each call stack once.
#[derive(Debug, Default)]
pub(super) struct Sites {
    /// By program, because the same addresses differ between programs, and by the trace's number.
    by_stack: HashMap<(u32, StackId), Site>,
    /// For faults without a stack: by program and instruction.
    by_instruction: HashMap<(u32, u64), Site>,
    known: HashMap<Arc<[Frame]>, Site>,
    frames: Vec<Arc<[Frame]>>,
    pub(super) code: PerfMaps,
}

impl Sites {
    /// No stacks yet, and these names of generated code.
    pub(super) fn with_code(code: PerfMaps) -> Self {
        Self { code, ..Self::default() }
    }

    /// The site of a fault: its stack, or at least its instruction.
    pub(super) fn of_fault<'a>(
        &mut self,
        fault: &Fault,
        pid: u32,
        attributor: &Attributor,
        frames: impl Fn(StackId) -> &'a [u64],
    ) -> Site {
        if let Some(stack) = fault.stack {
            return self.of_stack(stack, pid, attributor, frames);
        }
        let program = attributor.program(pid);
        if let Some(site) = self.by_instruction.get(&(program, fault.ip)) {
            return *site;
        }
        let frame = resolve(fault.ip, pid, attributor, &mut self.code);
        let site = self.intern([frame].into());
        self.by_instruction.insert((program, fault.ip), site);
        site
    }

    /// The site of a stack, or of an instruction without one.
    pub(super) fn of_tick<'a>(
        &mut self,
        tick: &Tick,
        attributor: &Attributor,
        frames: impl Fn(StackId) -> &'a [u64],
    ) -> Site {
        let fault = Fault { stack: tick.stack, ..Fault::at(0, tick.ip) };
        self.of_fault(&fault, tick.pid, attributor, frames)
    }

    pub(super) fn of_stack<'a>(
        &mut self,
        stack: StackId,
        pid: u32,
        attributor: &Attributor,
        frames: impl Fn(StackId) -> &'a [u64],
    ) -> Site {
        let program = attributor.program(pid);
        if let Some(site) = self.by_stack.get(&(program, stack)) {
            return *site;
        }
        let users = frames(stack).iter().filter(|address| PROGRAMS.contains(address));
        let code = &mut self.code;
        let resolved = users.map(|address| resolve(*address, pid, attributor, code)).collect();
        let site = self.intern(resolved);
        self.by_stack.insert((program, stack), site);
        site
    }

    pub(super) fn frames(&self, site: Site) -> Arc<[Frame]> {
        self.frames[site.index()].clone()
    }

    /// All stacks, in the order of [`Site::index`].
    pub(super) fn into_frames(self) -> Vec<Arc<[Frame]>> {
        self.frames
    }

    fn intern(&mut self, frames: Arc<[Frame]>) -> Site {
        let next = Site(u32::try_from(self.frames.len()).expect("fewer than 2^32 stacks"));
        let site = *self.known.entry(frames.clone()).or_insert(next);
        if site == next {
            self.frames.push(frames);
        }
        site
    }
}

impl Site {
    pub(super) fn index(self) -> usize {
        self.0 as usize
    }
}

/// The frame at an address of a process, by the mappings and the code up to now.
pub(super) fn resolve(
    address: u64,
    pid: u32,
    attributor: &Attributor,
    code: &mut PerfMaps,
) -> Frame {
    if address >= KERNEL {
        return Frame::in_module(Some("[kernel]".into()), 0);
    }
    let found = attributor.locate(pid, address);
    let found = found.map(|(id, into)| (&attributor.mappings()[id.0 as usize], into));
    if let Some((mapping, into_bytes)) = found
        && let Place::File(name) = &mapping.place
    {
        let offset_bytes = mapping.file_offset_bytes.saturating_add(into_bytes);
        return Frame::in_module(Some(name.clone()), offset_bytes);
    }
    if let function @ Some(_) = code.find(pid, address) {
        return Frame { function, ..Frame::in_module(Some("[made by the program]".into()), 0) };
    }
    let Some((mapping, into_bytes)) = found else { return Frame::in_module(None, address) };
    match &mapping.place {
        Place::MemoryFile(name) => Frame::in_module(
            Some(name.clone()),
            mapping.file_offset_bytes.saturating_add(into_bytes),
        ),
        Place::Kernel(name) => Frame::in_module(Some(name.clone()), into_bytes),
        other => Frame::in_module(Some(format!("[{other}]").into()), into_bytes),
    }
}
