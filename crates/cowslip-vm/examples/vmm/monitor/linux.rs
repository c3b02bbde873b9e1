//! Linux in a machine, by its 64-bit boot protocol.

use std::fs::{self, File};
use std::io::{Read, Seek};
use std::path::Path;

use cowslip_vm::GuestMemory;
use kvm_bindings::{kvm_regs, kvm_segment};
use kvm_ioctls::VcpuFd;
use linux_loader::cmdline::Cmdline;
use linux_loader::configurator::linux::LinuxBootConfigurator;
use linux_loader::configurator::{BootConfigurator, BootParams};
use linux_loader::loader::bootparam::{boot_e820_entry, boot_params, setup_header};
use linux_loader::loader::{BzImage, Elf, KernelLoader, load_cmdline};
use vm_memory::{Address, Bytes, GuestAddress, GuestMemoryBackend};

use super::acpi;
use super::machine::{Machine, flat};
use super::{Result, during};

const GDT: GuestAddress = GuestAddress(0x500);
const BOOT_PARAMS: GuestAddress = GuestAddress(0x7000);
const STACK: u64 = 0x8ff0;
/// Three pages of page tables: the first GiB at its own addresses.
const TABLES: u64 = 0x9000;
const CMDLINE: GuestAddress = GuestAddress(0x2_0000);
const CMDLINE_BYTES: usize = 2048;
const HIGH: GuestAddress = GuestAddress(0x10_0000);
/// The entry for a processor in 64-bit mode, from the start of a bzImage's code.
const ENTRY_64: u64 = 0x200;
const HAS_ENTRY_64: u16 = 1;
const USABLE: u32 = 1;
const RESERVED: u32 = 2;
/// An old kernel's limit, which is below the devices' addresses.
const INITRD_END: u64 = 0x7fff_f000;

/// Loads a kernel, so that the machine's processor starts it.
pub(crate) fn load(
    machine: &Machine,
    kernel: &Path,
    initrd: Option<&Path>,
    words: &str,
) -> Result<()> {
    let memory = machine.memory();
    let mut file = File::open(kernel).map_err(during("open the kernel"))?;
    let mut magic = [0; 4];
    file.read_exact(&mut magic)?;
    file.rewind()?;
    let (entry, header) = if &magic == b"\x7fELF" {
        let loaded = Elf::load(memory, None, &mut file, Some(HIGH))?;
        let header = setup_header {
            boot_flag: 0xaa55,
            header: u32::from_le_bytes(*b"HdrS"),
            kernel_alignment: 0x100_0000,
            ..setup_header::default()
        };
        (loaded.kernel_load, header)
    } else {
        let loaded = BzImage::load(memory, None, &mut file, Some(HIGH))?;
        let header = loaded.setup_header.ok_or("a kernel without a header")?;
        if header.xloadflags & HAS_ENTRY_64 == 0 {
            return Err("the kernel is not of 64 bits".into());
        }
        (loaded.kernel_load.unchecked_add(ENTRY_64), header)
    };
    let params = boot_params { hdr: header, ..boot_params::default() };
    let mut params = with_memory(params, memory, initrd)?;
    params.acpi_rsdp_addr = acpi::write(memory, machine.devices.has_disk())?.0;
    write_params(params, memory, words)?;
    enter(&machine.processor, memory, entry)
}

/// Adds the initial RAM disk, and the map of RAM.
fn with_memory(
    mut params: boot_params,
    memory: &GuestMemory,
    initrd: Option<&Path>,
) -> Result<boot_params> {
    let ram_end = memory.last_addr().0 + 1;
    if let Some(path) = initrd {
        let bytes = fs::read(path).map_err(during("read the initial RAM disk"))?;
        let at = ram_end.min(INITRD_END).checked_sub(bytes.len() as u64);
        let at = at.ok_or("RAM is too small for the initial RAM disk")? & !0xfff;
        memory.write_slice(&bytes, GuestAddress(at))?;
        params.hdr.ramdisk_image = at as u32;
        params.hdr.ramdisk_size = bytes.len() as u32;
    }
    let ranges = [
        (0, acpi::RESERVED.0, USABLE),
        (acpi::RESERVED.0, HIGH.0, RESERVED),
        (HIGH.0, ram_end, USABLE),
    ];
    for (entry, (addr, end, r#type)) in params.e820_table.iter_mut().zip(ranges) {
        *entry = boot_e820_entry { addr, size: end - addr, r#type };
    }
    params.e820_entries = ranges.len() as u8;
    Ok(params)
}

fn write_params(mut params: boot_params, memory: &GuestMemory, words: &str) -> Result<()> {
    let mut cmdline = Cmdline::new(CMDLINE_BYTES)?;
    cmdline.insert_str("console=ttyS0 quiet reboot=k panic=-1 no_timer_check")?;
    if !words.is_empty() {
        cmdline.insert_str(words)?;
    }
    load_cmdline(memory, CMDLINE, &cmdline)?;
    params.hdr.type_of_loader = 0xff;
    params.hdr.cmd_line_ptr = CMDLINE.0 as u32;
    params.hdr.cmdline_size = CMDLINE_BYTES as u32;
    LinuxBootConfigurator::write_bootparams(&BootParams::new(&params, BOOT_PARAMS), memory)?;
    Ok(())
}

/// Puts the processor at the kernel's entry, in 64-bit mode.
fn enter(processor: &VcpuFd, memory: &GuestMemory, entry: GuestAddress) -> Result<()> {
    let segments: [u64; 4] = [0, 0, 0x00af_9b00_0000_ffff, 0x00cf_9300_0000_ffff];
    for (at, segment) in (GDT.0..).step_by(8).zip(segments) {
        memory.write_obj(segment, GuestAddress(at))?;
    }
    memory.write_obj((TABLES + 0x1000) | 3, GuestAddress(TABLES))?;
    memory.write_obj((TABLES + 0x2000) | 3, GuestAddress(TABLES + 0x1000))?;
    for page in 0..512_u64 {
        memory.write_obj((page << 21) | 0x83, GuestAddress(TABLES + 0x2000 + 8 * page))?;
    }
    let mut special = processor.get_sregs()?;
    special.cs = kvm_segment { l: 1, ..flat(0x10, 11) };
    let data = kvm_segment { db: 1, ..flat(0x18, 3) };
    (special.ds, special.es, special.ss) = (data, data, data);
    special.gdt.base = GDT.0;
    special.gdt.limit = 8 * segments.len() as u16 - 1;
    special.cr3 = TABLES;
    special.cr4 |= 1 << 5;
    special.cr0 |= 1 << 31 | 1;
    special.efer |= 1 << 10 | 1 << 8;
    processor.set_sregs(&special).map_err(during("enter 64-bit mode"))?;
    let registers =
        kvm_regs { rip: entry.0, rsp: STACK, rsi: BOOT_PARAMS.0, rflags: 2, ..kvm_regs::default() };
    processor.set_regs(&registers).map_err(during("enter the kernel"))
}
