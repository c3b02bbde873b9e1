#![allow(unsafe_code)]
//! A machine of KVM with one processor.
//!
//! # Safety
//! A machine owns the memory that KVM has for it, and drops it last.

use std::sync::Arc;

use cowslip_vm::GuestMemory;
use kvm_bindings::{
    CpuId, KVM_MAX_CPUID_ENTRIES, KVM_PIT_SPEAKER_DUMMY, kvm_pit_config, kvm_segment,
    kvm_userspace_memory_region,
};
use kvm_ioctls::{Cap, Kvm, VcpuExit, VcpuFd, VmFd};
use vm_memory::{Bytes, GuestMemoryBackend, GuestMemoryRegion};
use vm_superio::Trigger;

use super::acpi::{GENERATION, GENERATION_LINE};
use super::block::Disk;
use super::devices::{Devices, Line};
use super::state::State;
use super::{Result, during};

/// Pages that KVM needs on some processors, below 4 GiB and outside of RAM and devices.
const KVM_PAGES: u64 = 0xfffb_c000;
const PAGE: u64 = 4096;
const INTERRUPTED: i32 = 4;
const AGAIN: i32 = 11;

/// KVM, and what it offers a guest.
pub(crate) struct Host {
    kvm: Kvm,
    cpuid: CpuId,
    /// All model specific registers that KVM knows, also those that this processor lacks.
    pub(super) registers: Vec<u32>,
}

impl Host {
    pub(crate) fn open() -> Result<Self> {
        let kvm = Kvm::new().map_err(during("open KVM"))?;
        let mut cpuid = kvm.get_supported_cpuid(KVM_MAX_CPUID_ENTRIES)?;
        for entry in cpuid.as_mut_slice() {
            match entry.function {
                // The processor's number is 0, it is a machine's, and has a timer that works by deadlines.
                1 => {
                    entry.ebx &= 0x00ff_ffff;
                    entry.ecx |= 1 << 31;
                    entry.ecx |= u32::from(kvm.check_extension(Cap::TscDeadlineTimer)) << 24;
                }
                0xb | 0x1f => entry.edx = 0,
                _ => {}
            }
        }
        let registers = kvm.get_msr_index_list().map_err(during("list the registers"))?;
        Ok(Self { registers: registers.as_slice().to_vec(), cpuid, kvm })
    }
}

pub(crate) struct Machine {
    pub(super) vm: Arc<VmFd>,
    pub(super) processor: VcpuFd,
    pub(super) devices: Devices,
    // Dropped last: the machine has its addresses.
    memory: GuestMemory,
}

impl Machine {
    pub(crate) fn new(
        host: &Host,
        memory: GuestMemory,
        disk: Option<&Arc<Disk>>,
        shown: bool,
    ) -> Result<Self> {
        let vm = host.kvm.create_vm().map_err(during("make a machine"))?;
        vm.set_identity_map_address(KVM_PAGES).map_err(during("place KVM's pages"))?;
        vm.set_tss_address((KVM_PAGES + PAGE) as usize).map_err(during("place KVM's pages"))?;
        vm.create_irq_chip().map_err(during("make interrupt controllers"))?;
        let pit = kvm_pit_config { flags: KVM_PIT_SPEAKER_DUMMY, ..kvm_pit_config::default() };
        vm.create_pit2(pit).map_err(during("make a timer"))?;
        for (slot, region) in memory.iter().enumerate() {
            let region = kvm_userspace_memory_region {
                slot: slot as u32,
                guest_phys_addr: region.start_addr().0,
                memory_size: region.len(),
                userspace_addr: region.range().host.start as u64,
                flags: 0,
            };
            // SAFETY: see the module.
            unsafe { vm.set_user_memory_region(region) }.map_err(during("give a machine RAM"))?;
        }
        let processor = vm.create_vcpu(0).map_err(during("make a processor"))?;
        processor.set_cpuid2(&host.cpuid).map_err(during("describe the processor"))?;
        let vm = Arc::new(vm);
        Ok(Self { devices: Devices::new(&vm, disk, shown), vm, processor, memory })
    }

    /// A machine that goes on from a state, with memory of the same instant.
    pub(crate) fn resume(
        host: &Host,
        memory: GuestMemory,
        disk: Option<&Arc<Disk>>,
        state: &State,
    ) -> Result<Self> {
        let mut machine = Self::new(host, memory, disk, false)?;
        state.write(&mut machine)?;
        Ok(machine)
    }

    pub(crate) fn memory(&self) -> &GuestMemory {
        &self.memory
    }

    /// Gives the machine an identity, and tells it if it runs already: Linux then renews the state of its random numbers.
    pub(crate) fn identify(&self, generation: &[u8; 16], runs: bool) -> Result<()> {
        self.memory.write_slice(generation, GENERATION)?;
        if runs {
            let line = Line::new(&self.vm, GENERATION_LINE);
            line.trigger().map_err(during("tell of an identity"))?;
        }
        Ok(())
    }

    /// Types on the console.
    pub(crate) fn say(&mut self, text: &str) -> Result<()> {
        self.devices.say(text)
    }

    /// Runs until the guest has written a line that begins so. The processor then stands within the guest's store or
    /// `out` of the line's end.
    pub(crate) fn run_to(&mut self, start: &str) -> Result<String> {
        let Self { processor, devices, memory, .. } = self;
        loop {
            if let Some(line) = devices.line(start) {
                return Ok(line);
            }
            match processor.run() {
                Ok(VcpuExit::IoOut(port, bytes)) => devices.write_port(port, bytes)?,
                Ok(VcpuExit::IoIn(port, bytes)) => devices.read_port(port, bytes),
                Ok(VcpuExit::MmioRead(at, bytes)) => devices.read_memory(at, bytes),
                Ok(VcpuExit::MmioWrite(at, bytes)) => devices.write_memory(at, bytes, memory)?,
                Ok(VcpuExit::InternalError) => {
                    let at = processor.get_regs()?.rip;
                    return Err(format!(
                        "KVM cannot execute the guest's instruction at {at:#x}: a KVM without the processor's \
                         virtualization, such as kvm_pvm, boots no Linux; without --kernel a guest of the monitor's \
                         own runs"
                    )
                    .into());
                }
                Ok(other) => return Err(format!("the guest stopped: {other:?}").into()),
                Err(error) if matches!(error.errno(), INTERRUPTED | AGAIN) => {}
                Err(error) => return Err(during("run a processor")(error)),
            }
        }
    }

    /// Finishes the instruction in which the processor stands, so that its registers are whole.
    pub(super) fn finish_instruction(&mut self) -> Result<()> {
        self.processor.set_kvm_immediate_exit(1);
        let ran = self.processor.run().map(|exit| format!("{exit:?}"));
        self.processor.set_kvm_immediate_exit(0);
        match ran {
            Err(error) if error.errno() == INTERRUPTED => Ok(()),
            Err(error) => Err(during("finish an instruction")(error)),
            Ok(exit) => Err(format!("an instruction is followed by {exit}").into()),
        }
    }
}

/// A segment with all addresses.
pub(super) fn flat(selector: u16, type_: u8) -> kvm_segment {
    kvm_segment { limit: u32::MAX, selector, type_, present: 1, s: 1, g: 1, ..Default::default() }
}
