//! Guest memory for virtual machine monitors that use rust-vmm's [`vm_memory`]: frozen at one instant while its
//! processors run, cloned in microseconds, rolled back in place, saved to images.
//!
//! [`GuestRam`] is a guest's RAM in an [`Arena`](cowslip::Arena). [`GuestRam::memory`] is an ordinary
//! [`GuestMemory`](vm_memory::GuestMemory) for devices, loaders and the memory slots of KVM.
//!
//! ```
//! use std::time::Duration;
//!
//! use cowslip_vm::GuestRam;
//! use vm_memory::{Bytes, GuestAddress};
//!
//! let ram = GuestRam::new(&[(GuestAddress(0), 64 << 20), (GuestAddress(4 << 30), 32 << 20)])?;
//! let memory = ram.memory();                          // register it with KVM; start the processors
//! memory.write_obj(1u64, GuestAddress(0x1000)).unwrap();
//!
//! let snapshot = ram.snapshot(Duration::from_secs(1))?; // the processors run on
//! memory.write_obj(2u64, GuestAddress(0x1000)).unwrap();
//! let mut then = [0; 8];
//! snapshot.read(&mut then, GuestAddress(0x1000))?;
//! assert_eq!(u64::from_le_bytes(then), 1);
//!
//! let template = snapshot.into_template()?;
//! let clone = GuestRam::clone_of(&template)?;         // RAM of another machine
//! clone.memory().write_obj(3u64, GuestAddress(0x1000)).unwrap();
//! assert_eq!(memory.read_obj::<u64>(GuestAddress(0x1000)).unwrap(), 2);
//! # Ok::<(), cowslip::Error>(())
//! ```
//!
//! `examples/branch_guest.rs` is a whole cycle. `examples/vmm` is a small monitor, for KVM: it boots a Linux once, and
//! makes a hundred machines of it, each with its registers, devices, identity and clock.
//!
//! # The instant of a machine
//!
//! A [`Snapshot`] has the RAM of one instant: a store is in it if a later one of any processor is. Registers and
//! devices are the monitor's. To keep a whole machine, [prepare](GuestRam::prepare_snapshot), stop its processors, read
//! their state and that of the devices, take the snapshot, and let the processors go on: all that is done with the RAM
//! afterwards needs no stop. A snapshot without a stop is for readers of memory alone, such as introspection.
//!
//! A processor that touches RAM during the freeze waits in the kernel until it is over; that needs userfaultfd.
//!
//! # Rules
//!
//! A freeze changes the page frames behind the guest's addresses. KVM follows. Devices and system calls that keep page frames do not:
//!
//! | user of memory | rule |
//! | --- | --- |
//! | virtio devices in the monitor's threads, `read`, `write`, io_uring without fixed buffers | nothing to do |
//! | block engines with `O_DIRECT`, AIO or io_uring's fixed buffers | [`GuestRam::hold_for_io`] from submission to completion; [`GuestRam::snapshot`] waits for it |
//! | VFIO, RDMA, `vhost-vdpa`: all of RAM is pinned for good | hold all of RAM for as long: snapshots are then refused as [`Busy`](cowslip::ErrorKind::Busy) |
//! | vhost-net and others of the kernel's `vhost`, which pin the rings' log alone | stop the device during the snapshot |
//! | vhost-user and other processes that map RAM by a descriptor | not possible: a region has no [`file_offset`](vm_memory::GuestMemoryRegion::file_offset) |
//! | `vmsplice`, `MSG_ZEROCOPY` from guest memory | copy, or hold until the peer has it |
//! | dirty log of KVM (`KVM_MEM_LOG_DIRTY_PAGES`) | not needed: [`GuestRam::track_changes`]; it splits huge mappings |
//! | `mlock`, `MADV_*` and `mprotect` on RAM | not by the monitor: use the methods here |
//!
//! * The host pointers of [`get_host_address`](vm_memory::GuestMemoryRegion::get_host_address) stay the same through
//!   freezes, thaws and roll backs. Remove a region's memory slot before [`GuestRam::unplug`].
//! * Regions begin at 2 MiB of the host's addresses: begin them at a multiple of 2 MiB of the guest's, so that KVM maps
//!   huge pages.
//! * Clones of one machine have equal random states, addresses and clocks until the monitor changes them: new VMGenID
//!   with its notification, new MAC, `KVM_SET_CLOCK` and the time stamp counter. `examples/vmm` does it.
//! * One arena of ordinary pages costs a view of it next to nothing; hugetlb makes no templates.

pub mod firecracker;
mod layout;
mod ram;
mod region;
mod snapshot;
mod template;

pub use layout::RamRange;
pub use ram::GuestRam;
pub use region::GuestRegion;
pub use snapshot::Snapshot;
pub use template::{GuestClone, GuestTemplate};

/// A guest's memory, for everything that takes rust-vmm's [`GuestMemory`](vm_memory::GuestMemory).
pub type GuestMemory = vm_memory::GuestRegionCollection<GuestRegion>;
