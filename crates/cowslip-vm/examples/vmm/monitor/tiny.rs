#![allow(unsafe_code)]
//! A guest for every KVM: it writes all over its RAM, says that it is ready, writes again, and answers with its
//! generation.
//!
//! # Safety
//! The two symbols are the ends of the code below, which is never changed.

use std::arch::global_asm;

use cowslip_vm::GuestMemory;
use kvm_bindings::{kvm_regs, kvm_segment};
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend};

use super::acpi::GENERATION;
use super::devices::SERIAL_PORT;
use super::machine::{Machine, flat};
use super::{Result, during};

const CODE: u64 = 0x1000;
/// A pass adds one to the first word in each of these steps, up to the address at `END`.
const FIRST: u64 = 0x20_0000;
const STEP: u64 = 0x10_0000;
const END: u64 = 0x8000;
const STACK: u64 = 0x7000;

global_asm!(
    ".pushsection .rodata",
    "cowslip_tiny_guest:",
    ".code32",
    "mov esp, {STACK}",
    "call 5f",
    "call 7f",
    r#".asciz "cowslip: ready\n""#,
    "call 5f",
    "call 7f",
    r#".asciz "cowslip: answer ""#,
    "mov esi, {GENERATION}",
    "mov ecx, 16",
    "2: lodsb", // each byte of the generation, in two digits
    "mov ah, al",
    "shr al, 4",
    "call 3f",
    "mov al, ah",
    "and al, 15",
    "call 3f",
    "dec ecx",
    "jnz 2b",
    "mov al, 10",
    "out dx, al",
    "22: hlt",
    "jmp 22b",
    "3: add al, 48", // writes the digit in al
    "cmp al, 58",
    "jb 4f",
    "add al, 39",
    "4: mov edx, {SERIAL_PORT}",
    "out dx, al",
    "ret",
    "5: mov edi, {FIRST}", // a pass
    "6: inc dword ptr [edi]",
    "add edi, {STEP}",
    "cmp edi, dword ptr [{END}]",
    "jb 6b",
    "ret",
    "7: pop esi", // writes the text that follows the call
    "mov edx, {SERIAL_PORT}",
    "8: lodsb",
    "test al, al",
    "jz 9f",
    "out dx, al",
    "jmp 8b",
    "9: jmp esi",
    ".code64",
    "cowslip_tiny_guest_end:",
    ".popsection",
    STACK = const STACK,
    GENERATION = const GENERATION.0,
    SERIAL_PORT = const SERIAL_PORT,
    FIRST = const FIRST,
    STEP = const STEP,
    END = const END,
);

unsafe extern "C" {
    #[link_name = "cowslip_tiny_guest"]
    static START: u8;
    #[link_name = "cowslip_tiny_guest_end"]
    static STOP: u8;
}

/// Loads the guest, in 32-bit mode without paging.
pub(crate) fn load(machine: &Machine) -> Result<()> {
    let memory = machine.memory();
    // SAFETY: see the module; the code lies between the two, in one section.
    let code = unsafe {
        let start = &raw const START;
        std::slice::from_raw_parts(start, (&raw const STOP).offset_from_unsigned(start))
    };
    memory.write_slice(code, GuestAddress(CODE))?;
    memory.write_obj(memory.last_addr().0 as u32, GuestAddress(END))?;

    let mut special = machine.processor.get_sregs()?;
    let data = kvm_segment { db: 1, ..flat(16, 3) };
    special.cs = kvm_segment { db: 1, ..flat(8, 11) };
    (special.ds, special.es, special.ss) = (data, data, data);
    special.cr0 |= 1;
    machine.processor.set_sregs(&special).map_err(during("enter 32-bit mode"))?;
    let registers = kvm_regs { rip: CODE, rflags: 2, ..kvm_regs::default() };
    machine.processor.set_regs(&registers).map_err(during("enter the guest"))
}

/// Number of words that are not those after so many passes.
pub(crate) fn wrong_words(memory: &GuestMemory, passes: u32) -> Result<usize> {
    let mut wrong = 0;
    for at in (FIRST..memory.last_addr().0).step_by(STEP as usize) {
        wrong += usize::from(memory.read_obj::<u32>(GuestAddress(at))? != passes);
    }
    Ok(wrong)
}
