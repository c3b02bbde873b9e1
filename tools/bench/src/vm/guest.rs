#![allow(unsafe_code)]
//! A guest that adds one to a word of each page of its RAM, in order and again and again: a processor of KVM, or a
//! thread where there is no KVM.
//!
//! # Safety
//! RAM is readable and writable as long as its [`Ram`] lives, which a guest owns. All access is by atomic words, and by
//! the guest's processor.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use cowslip::units::VirtRange;
use cowslip_vm::GuestMemory;
use kvm_bindings::{kvm_regs, kvm_segment, kvm_sregs, kvm_userspace_memory_region};
use kvm_ioctls::{Kvm, VcpuExit, VcpuFd, VmFd};
use vm_memory::GuestMemoryBackend;

use crate::error::{Error, Result};
use crate::memory::Memory;

const CODE: u64 = 0x1000;
/// The number of passes through all pages.
const PASSES: u64 = 0x8000;
/// The end of the RAM.
const END: u64 = 0x9008;
/// The first of the pages that are written.
pub(super) const FIRST: u64 = 2 << 20;
pub(super) const PAGE: u64 = 1 << 12;
/// The processor comes back from `KVM_RUN` after so many bytes' pages.
pub(super) const STRETCH: u64 = 4 << 20;

/// 32-bit code without paging.
const PROGRAM: &[u8] = &[
    0xbf, 0x00, 0x00, 0x20, 0x00, // pass: mov edi, FIRST
    0xff, 0x07, // page: inc dword [edi]
    0x81, 0xc7, 0x00, 0x10, 0x00, 0x00, // add edi, PAGE
    0xf7, 0xc7, 0xff, 0xff, 0x3f, 0x00, // test edi, STRETCH - 1
    0x75, 0x02, // jnz on
    0xe6, 0x10, // out 0x10, al
    0x3b, 0x3d, 0x08, 0x90, 0x00, 0x00, // on: cmp edi, [END]
    0x72, 0xe6, // jb page
    0xff, 0x05, 0x00, 0x80, 0x00, 0x00, // inc dword [PASSES]
    0xeb, 0xd9, // jmp pass
];

const EINTR: i32 = 4;
const EAGAIN: i32 = 11;

/// A guest's RAM in this process.
///
/// # Safety
/// The range stays mapped, readable and writable, as long as the value lives.
pub(super) unsafe trait Ram {
    fn range(&self) -> VirtRange;
}

// SAFETY: a collection owns its regions, which own their memory.
unsafe impl Ram for GuestMemory {
    fn range(&self) -> VirtRange {
        self.iter().next().expect("at least one region").range().host
    }
}

// SAFETY: a memory is mapped as long as it lives.
unsafe impl Ram for &Memory {
    fn range(&self) -> VirtRange {
        Memory::range(self)
    }
}

fn word(ram: &impl Ram, at: u64) -> &AtomicU32 {
    let range = ram.range();
    assert!(at + 4 <= range.len as u64 && at.is_multiple_of(4));
    // SAFETY: inside the range, which is mapped as long as `ram` is borrowed; aligned, as the range is.
    unsafe { AtomicU32::from_ptr((range.start + at as usize) as *mut u32) }
}

/// Adds one to a word of the page at `at`.
pub(super) fn write_page(ram: &impl Ram, at: u64) {
    word(ram, at).fetch_add(1, Relaxed);
}

/// Reads a word of the page at `at`.
pub(super) fn read_page(ram: &impl Ram, at: u64) {
    std::hint::black_box(word(ram, at).load(Relaxed));
}

/// The registers of a processor that stands still.
#[derive(Clone)]
pub(super) enum Registers {
    Kvm(Box<(kvm_regs, kvm_sregs)>),
    /// The next page.
    Thread(u64),
}

enum Processor {
    Kvm { processor: VcpuFd, _vm: VmFd },
    Thread(u64),
}

/// A guest that stands still between [stretches](Self::stretch).
pub(super) struct Guest<R> {
    processor: Processor,
    // Dropped last: the processor has its addresses.
    pub(super) ram: R,
}

impl<R: Ram> Guest<R> {
    /// A guest with its program in RAM, which is zeroes.
    pub(super) fn new(ram: R) -> Result<Self> {
        for (at, bytes) in (CODE..).step_by(4).zip(PROGRAM.chunks(4)) {
            let mut value = [0; 4];
            value[..bytes.len()].copy_from_slice(bytes);
            word(&ram, at).store(u32::from_le_bytes(value), Relaxed);
        }
        word(&ram, END).store(ram.range().len as u32, Relaxed);
        let mut guest = Self::on(ram)?;
        if let Processor::Kvm { processor, .. } = &guest.processor {
            let special = processor.get_sregs().map_err(kvm("read registers"))?;
            let registers = kvm_regs { rip: CODE, rflags: 2, ..kvm_regs::default() };
            guest.set(&Registers::Kvm(Box::new((registers, without_paging(special)))))?;
        }
        Ok(guest)
    }

    /// A guest of RAM that has a program; its registers are to be [set](Self::set).
    pub(super) fn on(ram: R) -> Result<Self> {
        let Ok(kvm_system) = Kvm::new() else {
            return Ok(Self { processor: Processor::Thread(FIRST), ram });
        };
        let vm = kvm_system.create_vm().map_err(kvm("make a machine"))?;
        let range = ram.range();
        let region = kvm_userspace_memory_region {
            slot: 0,
            guest_phys_addr: 0,
            memory_size: range.len as u64,
            userspace_addr: range.start as u64,
            flags: 0,
        };
        // SAFETY: the memory stays mapped while the guest lives, which owns it and is dropped before it.
        unsafe { vm.set_user_memory_region(region) }.map_err(kvm("give a machine its RAM"))?;
        let processor = vm.create_vcpu(0).map_err(kvm("make a processor"))?;
        Ok(Self { processor: Processor::Kvm { processor, _vm: vm }, ram })
    }

    pub(super) fn registers(&self) -> Result<Registers> {
        Ok(match &self.processor {
            Processor::Thread(next) => Registers::Thread(*next),
            Processor::Kvm { processor, .. } => Registers::Kvm(Box::new((
                processor.get_regs().map_err(kvm("read registers"))?,
                processor.get_sregs().map_err(kvm("read registers"))?,
            ))),
        })
    }

    pub(super) fn set(&mut self, registers: &Registers) -> Result<()> {
        match (&mut self.processor, registers) {
            (Processor::Kvm { processor, .. }, Registers::Kvm(registers)) => {
                processor.set_sregs(&registers.1).map_err(kvm("set registers"))?;
                processor.set_regs(&registers.0).map_err(kvm("set registers"))
            }
            (Processor::Thread(next), Registers::Thread(then)) => {
                *next = *then;
                Ok(())
            }
            _ => Err(Error::Failed("KVM came or went".to_owned())),
        }
    }

    pub(super) fn ram_bytes(&self) -> u64 {
        self.ram.range().len as u64
    }

    /// Writes the next [`STRETCH`].
    pub(super) fn stretch(&mut self) -> Result<()> {
        match &mut self.processor {
            Processor::Thread(next) => loop {
                word(&self.ram, *next).fetch_add(1, Relaxed);
                *next += PAGE;
                let is_end = *next == self.ram.range().len as u64;
                if is_end {
                    word(&self.ram, PASSES).fetch_add(1, Relaxed);
                    *next = FIRST;
                }
                if is_end || next.is_multiple_of(STRETCH) {
                    return Ok(());
                }
            },
            Processor::Kvm { processor, .. } => loop {
                match processor.run() {
                    Ok(VcpuExit::IoOut(..)) => return Ok(()),
                    Ok(other) => return Err(Error::Failed(format!("KVM_RUN: {other:?}"))),
                    Err(error) if matches!(error.errno(), EINTR | EAGAIN) => {}
                    Err(error) => return Err(kvm("run a processor")(error)),
                }
            },
        }
    }

    /// Writes all pages once, or the rest of them.
    pub(super) fn pass(&mut self) -> Result<()> {
        (0..(self.ram.range().len as u64).div_ceil(STRETCH)).try_for_each(|_| self.stretch())
    }
}

/// True if guests are KVM's.
pub(super) fn has_kvm() -> bool {
    Kvm::new().is_ok()
}

/// Counts words that cannot have been in memory at one instant, where `read` reads memory of a guest with RAM of `len`
/// bytes: a processor that writes in order leaves one step, of one.
pub(super) fn wrong_words(len: u64, read: impl Fn(u64) -> Result<u32>) -> Result<u64> {
    let first = read(FIRST)?;
    let (mut last, mut wrong) = (first, 0);
    for at in (FIRST..len).step_by(PAGE as usize) {
        let value = read(at)?;
        let is_step = value.wrapping_add(1) == last && last == first;
        wrong += u64::from(value != last && !is_step);
        last = value;
    }
    let passes = read(PASSES)?;
    Ok(wrong + u64::from(passes > last || first > passes + 1))
}

/// The same of a guest that stands still.
pub(super) fn wrong_in(ram: &impl Ram) -> Result<u64> {
    wrong_words(ram.range().len as u64, |at| Ok(word(ram, at).load(Relaxed)))
}

/// 32-bit protected mode without paging.
fn without_paging(mut special: kvm_sregs) -> kvm_sregs {
    let data = kvm_segment {
        limit: u32::MAX,
        selector: 16,
        type_: 3,
        present: 1,
        db: 1,
        s: 1,
        g: 1,
        ..kvm_segment::default()
    };
    special.cs = kvm_segment { selector: 8, type_: 11, ..data };
    (special.ds, special.es, special.ss) = (data, data, data);
    special.cr0 |= 1;
    special
}

fn kvm(doing: &'static str) -> impl FnOnce(kvm_ioctls::Error) -> Error {
    crate::error::during(doing)
}
