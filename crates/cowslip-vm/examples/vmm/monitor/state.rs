#![allow(unsafe_code)]
//! The state of a machine at one instant: all but its RAM.
//!
//! # Safety
//! The extended state of a processor is as large as its structure here: nothing in this process enables parts of it
//! that are larger.

use std::time::{Duration, SystemTime};

use kvm_bindings::{
    KVM_IRQCHIP_IOAPIC, KVM_IRQCHIP_PIC_MASTER, KVM_IRQCHIP_PIC_SLAVE, Msrs, kvm_clock_data,
    kvm_debugregs, kvm_irqchip, kvm_lapic_state, kvm_mp_state, kvm_msr_entry, kvm_pit_state2,
    kvm_regs, kvm_sregs, kvm_vcpu_events, kvm_xcrs, kvm_xsave,
};
use kvm_ioctls::VcpuFd;

use super::devices::DevicesState;
use super::machine::{Host, Machine};
use super::{Result, during};

const TSC: u32 = 0x10;
/// Only taken once the counter that it refers to is right, and the interrupt controller has its mode.
const TSC_DEADLINE: u32 = 0x6e0;
const CHIPS: [u32; 3] = [KVM_IRQCHIP_PIC_MASTER, KVM_IRQCHIP_PIC_SLAVE, KVM_IRQCHIP_IOAPIC];
/// Registers in one call.
const AT_ONCE: usize = 128;

pub(crate) struct State {
    taken: SystemTime,
    clock_ns: u64,
    tsc_khz: u32,
    chips: [kvm_irqchip; 3],
    pit: kvm_pit_state2,
    run: kvm_mp_state,
    registers: kvm_regs,
    special: kvm_sregs,
    extended: kvm_xsave,
    control: kvm_xcrs,
    debug: kvm_debugregs,
    lapic: kvm_lapic_state,
    model: Vec<kvm_msr_entry>,
    events: kvm_vcpu_events,
    devices: DevicesState,
}

impl State {
    /// The state of a machine that stands still. `model` are the registers of [`readable`].
    pub(crate) fn read(machine: &mut Machine, model: &[u32]) -> Result<Self> {
        machine.finish_instruction()?;
        let (vm, processor) = (&machine.vm, &machine.processor);
        let mut chips = CHIPS.map(|chip_id| kvm_irqchip { chip_id, ..kvm_irqchip::default() });
        for chip in &mut chips {
            vm.get_irqchip(chip).map_err(during("read an interrupt controller"))?;
        }
        Ok(Self {
            taken: SystemTime::now(),
            clock_ns: vm.get_clock().map_err(during("read the clock"))?.clock,
            tsc_khz: processor.get_tsc_khz().map_err(during("read a counter's rate"))?,
            chips,
            pit: vm.get_pit2().map_err(during("read the timer"))?,
            run: processor.get_mp_state()?,
            registers: processor.get_regs()?,
            special: processor.get_sregs()?,
            extended: processor.get_xsave().map_err(during("read the extended state"))?,
            control: processor.get_xcrs()?,
            debug: processor.get_debug_regs()?,
            lapic: processor.get_lapic()?,
            model: read_model(processor, model)?,
            events: processor.get_vcpu_events()?,
            devices: machine.devices.state(),
        })
    }

    /// Sets a new machine's state. Its clock and its counter have gone on since the instant.
    pub(crate) fn write(&self, machine: &mut Machine) -> Result<()> {
        let Machine { vm, processor, devices, .. } = machine;
        for chip in &self.chips {
            vm.set_irqchip(chip).map_err(during("restore an interrupt controller"))?;
        }
        vm.set_pit2(&self.pit).map_err(during("restore the timer"))?;
        processor.set_mp_state(self.run)?;
        processor.set_regs(&self.registers)?;
        processor.set_sregs(&self.special).map_err(during("restore the registers"))?;
        processor.set_xcrs(&self.control)?;
        // SAFETY: see the module.
        unsafe { processor.set_xsave(&self.extended) }
            .map_err(during("restore the extended state"))?;
        processor.set_debug_regs(&self.debug)?;
        processor.set_lapic(&self.lapic).map_err(during("restore an interrupt controller"))?;

        let passed = self.taken.elapsed().unwrap_or(Duration::ZERO);
        let cycles = passed.as_nanos() * u128::from(self.tsc_khz) / 1_000_000;
        let mut model = self.model.clone();
        for entry in model.iter_mut().filter(|entry| entry.index == TSC) {
            entry.data = entry.data.wrapping_add(cycles as u64);
        }
        write_model(processor, &model)?;
        processor.set_vcpu_events(&self.events).map_err(during("restore events"))?;
        let clock = self.clock_ns + passed.as_nanos() as u64;
        let clock = kvm_clock_data { clock, ..kvm_clock_data::default() };
        vm.set_clock(&clock).map_err(during("set the clock"))?;
        // A guest without KVM's clock has nothing to be told of.
        let _ = processor.kvmclock_ctrl();
        devices.set(vm, &self.devices)
    }
}

/// Model specific registers that this machine's processor has, in the order in which they can be restored.
pub(crate) fn readable(host: &Host, machine: &Machine) -> Result<Vec<u32>> {
    let mut found = Vec::new();
    for index in &host.registers {
        if !read_model(&machine.processor, &[*index])?.is_empty() {
            found.push(*index);
        }
    }
    found.sort_by_key(|index| (*index == TSC_DEADLINE, *index));
    Ok(found)
}

/// Ends before a register that the processor lacks.
fn read_model(processor: &VcpuFd, indices: &[u32]) -> Result<Vec<kvm_msr_entry>> {
    let mut all = Vec::with_capacity(indices.len());
    for part in indices.chunks(AT_ONCE) {
        let mut entries = entries(part.iter().map(|index| (*index, 0)))?;
        let read = processor.get_msrs(&mut entries).map_err(during("read model registers"))?;
        all.extend_from_slice(&entries.as_slice()[..read]);
    }
    Ok(all)
}

fn entries(of: impl Iterator<Item = (u32, u64)>) -> Result<Msrs> {
    let entry = |(index, data)| kvm_msr_entry { index, data, ..kvm_msr_entry::default() };
    let all: Vec<_> = of.map(entry).collect();
    Msrs::from_entries(&all).map_err(|error| format!("list model registers: {error:?}").into())
}

/// A register that cannot be written must have the value already.
fn write_model(processor: &VcpuFd, mut rest: &[kvm_msr_entry]) -> Result<()> {
    while !rest.is_empty() {
        let part = &rest[..rest.len().min(AT_ONCE)];
        let wanted = entries(part.iter().map(|entry| (entry.index, entry.data)))?;
        let done = processor.set_msrs(&wanted).map_err(during("restore model registers"))?;
        if let Some(refused) = part.get(done) {
            let has = read_model(processor, &[refused.index])?;
            if has.first().is_none_or(|has| has.data != refused.data) {
                let (index, data) = (refused.index, refused.data);
                return Err(format!("register {index:#x} cannot be set to {data:#x}").into());
            }
        }
        rest = &rest[(done + 1).min(part.len())..];
    }
    Ok(())
}
