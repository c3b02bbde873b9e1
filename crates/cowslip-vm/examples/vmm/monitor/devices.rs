//! Devices at ports and at addresses without RAM: a serial console, and maybe a disk.

use std::collections::VecDeque;
use std::io::Write;
use std::sync::Arc;

use cowslip_vm::GuestMemory;
use kvm_ioctls::VmFd;
use vm_superio::serial::NoEvents;
use vm_superio::{Serial, SerialState, Trigger};

use super::block::{self, Block, BlockState, Disk};
use super::{Result, during};

pub(crate) const SERIAL_PORT: u16 = 0x3f8;
pub(crate) const SERIAL_LINE: u32 = 4;
const SERIAL_PORTS: u16 = 8;
/// Keyboard's controller: Linux restarts a machine by it.
const RESET_PORT: u16 = 0x64;
const RESET: u8 = 0xfe;

/// An interrupt of the machine's.
pub(crate) struct Line {
    vm: Arc<VmFd>,
    number: u32,
}

impl Line {
    pub(crate) fn new(vm: &Arc<VmFd>, number: u32) -> Self {
        Self { vm: Arc::clone(vm), number }
    }
}

impl Trigger for Line {
    type E = kvm_ioctls::Error;

    /// Interrupts by an edge.
    fn trigger(&self) -> std::result::Result<(), Self::E> {
        self.vm.set_irq_line(self.number, true)?;
        self.vm.set_irq_line(self.number, false)
    }
}

/// The lines that a guest has written.
#[derive(Default)]
struct Written {
    lines: VecDeque<String>,
    unfinished: Vec<u8>,
    shown: bool,
}

impl Write for Written {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        for byte in bytes {
            if *byte == b'\n' {
                let line = String::from_utf8_lossy(&self.unfinished).trim_end().to_owned();
                if self.shown {
                    eprintln!("{line}");
                }
                self.lines.push_back(line);
                self.unfinished.clear();
            } else {
                self.unfinished.push(*byte);
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// The devices' state at one instant.
pub(crate) struct DevicesState {
    serial: SerialState,
    block: Option<BlockState>,
}

pub(crate) struct Devices {
    serial: Serial<Line, NoEvents, Written>,
    block: Option<Block>,
}

impl Devices {
    pub(crate) fn new(vm: &Arc<VmFd>, disk: Option<&Arc<Disk>>, shown: bool) -> Self {
        let written = Written { shown, ..Written::default() };
        let serial = Serial::new(Line::new(vm, SERIAL_LINE), written);
        let block = disk.map(|disk| Block::new(disk, Line::new(vm, block::LINE)));
        Self { serial, block }
    }

    pub(crate) fn state(&self) -> DevicesState {
        let block = self.block.as_ref().map(Block::state);
        DevicesState { serial: self.serial.state(), block }
    }

    /// Interrupts that were on their way arrive at the new machine: it has its interrupt controllers' state already.
    pub(crate) fn set(&mut self, vm: &Arc<VmFd>, state: &DevicesState) -> Result<()> {
        let (line, written) = (Line::new(vm, SERIAL_LINE), Written::default());
        let serial = Serial::from_state(&state.serial, line, NoEvents, written);
        self.serial = serial.map_err(during("restore the console"))?;
        match (&mut self.block, &state.block) {
            (Some(block), Some(state)) => block.set(state),
            _ => Ok(()),
        }
    }

    pub(crate) fn has_disk(&self) -> bool {
        self.block.is_some()
    }

    /// The next line that begins so. Those before it are forgotten.
    pub(crate) fn line(&mut self, start: &str) -> Option<String> {
        let lines = &mut self.serial.writer_mut().lines;
        while let Some(line) = lines.pop_front() {
            if line.starts_with(start) {
                return Some(line);
            }
        }
        None
    }

    /// Types on the console.
    pub(crate) fn say(&mut self, text: &str) -> Result<()> {
        let typed = self.serial.enqueue_raw_bytes(text.as_bytes());
        typed.map(drop).map_err(during("type on the console"))
    }

    pub(crate) fn read_port(&mut self, port: u16, bytes: &mut [u8]) {
        bytes.fill(0xff);
        if let (Some(register), [byte]) = (serial_register(port), bytes) {
            *byte = self.serial.read(register);
        }
    }

    pub(crate) fn write_port(&mut self, port: u16, bytes: &[u8]) -> Result<()> {
        if port == RESET_PORT && bytes == [RESET] {
            return Err("the guest has restarted".into());
        }
        let Some(register) = serial_register(port) else { return Ok(()) };
        let mut written = bytes.iter().map(|byte| self.serial.write(register, *byte));
        written.try_for_each(|done| done).map_err(during("write to the console"))
    }

    pub(crate) fn read_memory(&self, at: u64, bytes: &mut [u8]) {
        bytes.fill(0xff);
        if let (Some(block), Some(offset)) = (&self.block, block::register(at)) {
            block.read(offset, bytes);
        }
    }

    pub(crate) fn write_memory(&mut self, at: u64, bytes: &[u8], ram: &GuestMemory) -> Result<()> {
        match (&mut self.block, block::register(at), bytes.try_into()) {
            (Some(block), Some(offset), Ok(word)) => {
                block.write(offset, u32::from_le_bytes(word), ram)
            }
            _ => Ok(()),
        }
    }
}

fn serial_register(port: u16) -> Option<u8> {
    let register = port.checked_sub(SERIAL_PORT)?;
    (register < SERIAL_PORTS).then_some(register as u8)
}
