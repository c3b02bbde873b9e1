#![allow(unsafe_code)]
//! A guest of KVM that writes all of its memory: frozen, cloned and taken back while it runs. `COWSLIP_VIEWS_SECONDS` is the time
//! for which it is frozen again and again.

#[path = "support/mod.rs"]
mod support;

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::thread::Scope;
use std::time::{Duration, Instant};

use cowslip_vm::{GuestMemory, GuestRam, Snapshot};
use kvm_bindings::{kvm_regs, kvm_segment, kvm_sregs, kvm_userspace_memory_region};
use kvm_ioctls::{Kvm, VcpuExit, VcpuFd, VmFd};
use support::{PATIENCE, skip};
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryRegion};

const RAM: u64 = 64 << 20;
const CODE: u64 = 0x1000;
/// The number of passes, each of which adds one to the first word of each page from here on, in order.
const PASSES: u64 = 0x8000;
const END: u64 = 0x9008;
const FIRST: u64 = 0x20_0000;

/// 32-bit code; a pass ends with a write to a port, so that the processor comes back from `KVM_RUN`.
const GUEST: &[u8] = &[
    0xbf, 0x00, 0x00, 0x20, 0x00, // pass: mov edi, FIRST
    0xff, 0x07, // page: inc dword [edi]
    0x81, 0xc7, 0x00, 0x10, 0x00, 0x00, // add edi, 0x1000
    0x3b, 0x3d, 0x08, 0x90, 0x00, 0x00, // cmp edi, [END]
    0x72, 0xf0, // jb page
    0xff, 0x05, 0x00, 0x80, 0x00, 0x00, // inc dword [PASSES]
    0xe6, 0x10, // out 0x10, al
    0xeb, 0xe1, // jmp pass
];

/// The registers of one instant.
struct Registers(kvm_regs, kvm_sregs);

struct Machine {
    _vm: VmFd,
    processor: VcpuFd,
    // Dropped last: the machine has its addresses.
    _memory: GuestMemory,
}

impl Machine {
    fn new(memory: GuestMemory) -> Result<Self, kvm_ioctls::Error> {
        let vm = Kvm::new()?.create_vm()?;
        for (slot, region) in memory.iter().enumerate() {
            let region = kvm_userspace_memory_region {
                slot: slot as u32,
                guest_phys_addr: region.start_addr().0,
                memory_size: region.len(),
                userspace_addr: region.range().host.start as u64,
                flags: 0,
            };
            // SAFETY: the memory stays mapped while the machine lives.
            unsafe { vm.set_user_memory_region(region) }?;
        }
        Ok(Self { processor: vm.create_vcpu(0)?, _vm: vm, _memory: memory })
    }

    /// 32-bit protected mode without paging.
    fn reset(&mut self) -> Result<(), kvm_ioctls::Error> {
        let mut special = self.processor.get_sregs()?;
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
        let registers = kvm_regs { rip: CODE, rflags: 2, ..kvm_regs::default() };
        self.set(&Registers(registers, special))
    }

    fn get(&self) -> Registers {
        let special = self.processor.get_sregs().expect("registers");
        Registers(self.processor.get_regs().expect("registers"), special)
    }

    fn set(&mut self, registers: &Registers) -> Result<(), kvm_ioctls::Error> {
        self.processor.set_sregs(&registers.1)?;
        self.processor.set_regs(&registers.0)
    }

    /// Runs to the end of the pass.
    fn pass(&mut self) -> Result<(), String> {
        loop {
            match self.processor.run() {
                Ok(VcpuExit::IoOut(..)) => return Ok(()),
                Ok(other) => return Err(format!("{other:?}")),
                Err(error) if matches!(error.errno(), 4 | 11) => {}
                Err(error) => return Err(error.to_string()),
            }
        }
    }
}

/// A machine with all of its first pass done, or the reason why there is none.
fn machine() -> Result<(GuestRam, Machine), String> {
    let ram = GuestRam::new(&[(GuestAddress(0), RAM)]).expect("RAM");
    let memory = ram.memory();
    memory.write_slice(GUEST, GuestAddress(CODE)).expect("RAM");
    memory.write_obj(RAM as u32, GuestAddress(END)).expect("RAM");
    let mut machine = Machine::new(memory).map_err(|error| error.to_string())?;
    machine.reset().map_err(|error| error.to_string())?;
    machine.pass()?;
    Ok((ram, machine))
}

/// Checks that a processor wrote all of this in its order, and returns the number of passes.
fn check(read: impl Fn(u64) -> u32) -> u32 {
    let first = read(FIRST);
    let mut last = first;
    for at in (FIRST..RAM).step_by(4096) {
        let value = read(at);
        assert!(value == last || value + 1 == last && last == first, "{last}, then {value}");
        last = value;
    }
    let passes = read(PASSES);
    assert!(passes <= last && first <= passes + 1, "{passes} passes, {last} to {first}");
    passes
}

fn check_memory(memory: &GuestMemory) -> u32 {
    check(|at| memory.read_obj(GuestAddress(at)).expect("RAM"))
}

fn check_snapshot(snapshot: &Snapshot) -> u32 {
    check(|at| {
        let mut bytes = [0; 4];
        snapshot.read(&mut bytes, GuestAddress(at)).expect("RAM");
        u32::from_le_bytes(bytes)
    })
}

/// Runs a machine until `stop`.
fn run<'scope>(
    scope: &'scope Scope<'scope, '_>,
    mut machine: Machine,
    stop: &'scope AtomicBool,
    passes: &'scope AtomicU32,
) -> std::thread::ScopedJoinHandle<'scope, Machine> {
    scope.spawn(move || {
        while !stop.load(Relaxed) {
            machine.pass().expect("a pass");
            passes.fetch_add(1, Relaxed);
        }
        machine
    })
}

#[test]
fn a_guest_of_kvm_is_frozen_cloned_and_taken_back() {
    let (ram, machine) = match machine() {
        Ok(made) => made,
        Err(why) => return skip("kvm", &why),
    };
    let seconds = std::env::var("COWSLIP_VIEWS_SECONDS").ok();
    let time = Duration::from_secs(seconds.map_or(0, |seconds| seconds.parse().expect("seconds")));
    let (stop, passes) = (AtomicBool::new(false), AtomicU32::new(0));
    let (mut machine, last) = std::thread::scope(|scope| {
        let running = run(scope, machine, &stop, &passes);
        let mut last = 0;
        let (began, mut views) = (Instant::now(), 0);
        while views < 20 || began.elapsed() < time {
            views += 1;
            let before = passes.load(Relaxed);
            while passes.load(Relaxed) == before {
                assert!(!running.is_finished(), "the processor ended");
                std::thread::yield_now();
            }
            let view = ram.snapshot(PATIENCE).expect("a snapshot");
            let instant = check_snapshot(&view);
            assert!(instant > last, "{instant} after {last}");
            assert_eq!(check_snapshot(&view), instant, "the view changed");
            last = instant;
        }
        stop.store(true, Relaxed);
        println!("{views} views of {last} passes");
        (running.join().expect("the processor"), last)
    });
    let instant = check_memory(&ram.memory());
    assert!(instant >= last, "stores were lost");

    let registers = machine.get();
    let view = ram.snapshot(PATIENCE).expect("a snapshot");
    machine.pass().expect("a pass");
    let template = view.into_template().expect("a template");
    for _ in 0..3 {
        let clone = GuestRam::clone_of(&template).expect("a clone");
        let mut copy = Machine::new(clone.memory()).expect("a machine");
        for _ in 0..2 {
            copy.set(&registers).expect("registers");
            while check_memory(&clone.memory()) < instant + 3 {
                copy.pass().expect("a pass");
            }
            // SAFETY: its processor is not in KVM_RUN.
            unsafe { clone.reset() }.expect("a reset");
            assert_eq!(check_memory(&clone.memory()), instant);
        }
    }
}
