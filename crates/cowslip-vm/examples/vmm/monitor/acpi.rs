//! ACPI's tables of a machine: its devices, and the page with its generation, the VMGenID.
//!
//! The machine is one of reduced hardware. Its event device has one interrupt, which says that the generation is new.

use acpi_tables::aml::{
    Device, EISAName, IO, Interrupt, Memory32Fixed, Method, Name, Notify, Package, Path,
    ResourceTemplate, Scope,
};
use acpi_tables::fadt::{FADTBuilder, Flags};
use acpi_tables::madt::{
    EnabledStatus, IoApic, LocalInterruptController, MADT, ProcessorLocalApic,
};
use acpi_tables::rsdp::Rsdp;
use acpi_tables::sdt::Sdt;
use acpi_tables::xsdt::XSDT;
use acpi_tables::{Aml, AmlSink};
use cowslip_vm::GuestMemory;
use vm_memory::{Bytes, GuestAddress};

use super::Result;
use super::block;
use super::devices::{SERIAL_LINE, SERIAL_PORT};

/// Not the guest's to use, up to 1 MiB.
pub(crate) const RESERVED: GuestAddress = GENERATION;
/// 16 bytes that no other machine has.
pub(crate) const GENERATION: GuestAddress = GuestAddress(0x9_f000);
pub(crate) const GENERATION_LINE: u32 = 6;
const TABLES: GuestAddress = GuestAddress(0xe_0000);
const OEM: [u8; 6] = *b"COWSLI";
const TABLE: [u8; 8] = *b"COWSLIPV";
const LOCAL_APIC: u32 = 0xfee0_0000;
const IO_APIC: u32 = 0xfec0_0000;
/// No VGA, and no clock of CMOS.
const LACKS: u16 = 1 << 2 | 1 << 5;
/// The notification that the generation has changed.
const CHANGED: u8 = 0x80;

/// Writes the tables, and returns the address of the first.
pub(crate) fn write(memory: &GuestMemory, disk: bool) -> Result<GuestAddress> {
    let mut next = TABLES.0;
    let mut put = |table: &dyn Aml| -> Result<u64> {
        let (mut bytes, at) = (Vec::new(), next);
        table.to_aml_bytes(&mut bytes);
        memory.write_slice(&bytes, GuestAddress(at))?;
        next = (at + bytes.len() as u64).next_multiple_of(64);
        Ok(at)
    };
    let mut devices = Sdt::new(*b"DSDT", 36, 6, OEM, TABLE, 1);
    let mut aml = Vec::new();
    Devices { disk }.to_aml_bytes(&mut aml);
    devices.append_slice(&aml);

    let mut fixed = FADTBuilder::new(OEM, TABLE, 1)
        .dsdt_64(put(&devices)?)
        .flag(Flags::HwReducedAcpi)
        .flag(Flags::PwrButton)
        .flag(Flags::SlpButton);
    fixed.iapc_boot_arch = LACKS.into();
    let mut interrupts = MADT::new(OEM, TABLE, 1, LocalInterruptController::Address(LOCAL_APIC));
    interrupts.add_structure(ProcessorLocalApic::new(0, 0, EnabledStatus::Enabled));
    interrupts.add_structure(IoApic::new(0, IO_APIC, 0));
    let mut all = XSDT::new(OEM, TABLE, 1);
    all.add_entry(put(&fixed.finalize())?);
    all.add_entry(put(&interrupts)?);
    let all = put(&all)?;
    Ok(GuestAddress(put(&Rsdp::new(OEM, all))?))
}

/// Devices of the system bus.
struct Devices {
    disk: bool,
}

impl Aml for Devices {
    fn to_aml_bytes(&self, sink: &mut dyn AmlSink) {
        let edge = |line| Interrupt::new(true, true, false, false, line);
        let (serial_line, ports) = (edge(SERIAL_LINE), IO::new(SERIAL_PORT, SERIAL_PORT, 1, 8));
        let serial = [
            name("_HID", &EISAName::new("PNP0501")),
            name("_UID", &0u8),
            name("_CRS", &ResourceTemplate::new(vec![&serial_line, &ports])),
        ];
        let registers = Memory32Fixed::new(true, block::BASE as u32, block::REGISTERS as u32);
        let disk = [
            name("_HID", &"LNRO0005"),
            name("_UID", &0u8),
            name("_CCA", &1u8),
            name("_CRS", &ResourceTemplate::new(vec![&registers, &edge(block::LINE)])),
        ];
        let place = [GENERATION.0 as u32, (GENERATION.0 >> 32) as u32];
        let generation = [
            name("_HID", &"VMGENCTR"),
            name("_CID", &"VM_Gen_Counter"),
            name("_DDN", &"VM_Gen_Counter"),
            name("ADDR", &Package::new(vec![&place[0], &place[1]])),
        ];
        let events = [
            name("_HID", &"ACPI0013"),
            name("_UID", &0u8),
            name("_CRS", &ResourceTemplate::new(vec![&edge(GENERATION_LINE)])),
        ];
        let changed = Path::new("\\_SB_.VGEN");
        let tell = Notify::new(&changed, &CHANGED);
        let event = Method::new("_EVT".into(), 1, true, vec![&tell]);
        let mut events = parts(&events);
        events.push(&event);

        let serial = Device::new("COM1".into(), parts(&serial));
        let disk = Device::new("DISK".into(), parts(&disk));
        let generation = Device::new("VGEN".into(), parts(&generation));
        let events = Device::new("GED_".into(), events);
        let mut all: Vec<&dyn Aml> = vec![&serial, &generation, &events];
        all.extend(self.disk.then_some(&disk as &dyn Aml));
        Scope::new("\\_SB_".into(), all).to_aml_bytes(sink);
    }
}

fn name(name: &str, value: &dyn Aml) -> Name {
    Name::new(name.into(), value)
}

fn parts(names: &[Name]) -> Vec<&dyn Aml> {
    names.iter().map(|name| name as &dyn Aml).collect()
}
