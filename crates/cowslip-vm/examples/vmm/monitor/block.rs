//! A virtio disk that is read only, so that all clones can have the same: virtio-mmio with one queue.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use cowslip_vm::GuestMemory;
use virtio_bindings::{
    virtio_blk as blk, virtio_config as config, virtio_ids as ids, virtio_mmio as mmio,
};
use virtio_queue::{Queue, QueueState, QueueT};
use vm_superio::Trigger;

use super::devices::Line;
use super::{Result, during};

pub(crate) const BASE: u64 = 0xd000_0000;
pub(crate) const REGISTERS: u64 = 0x1000;
pub(crate) const LINE: u32 = 5;
const MAGIC: u32 = u32::from_le_bytes(*b"virt");
/// The version of virtio-mmio that has no page size of its own.
const VERSION: u32 = 2;
const QUEUE: u16 = 128;
const SECTOR: u64 = 512;
const FEATURES: u64 = 1 << config::VIRTIO_F_VERSION_1 | 1 << blk::VIRTIO_BLK_F_RO;

/// The file behind the disk.
pub(crate) struct Disk {
    file: File,
    sectors: u64,
}

impl Disk {
    pub(crate) fn open(path: &Path) -> Result<Arc<Self>> {
        let file = File::open(path).map_err(during("open the disk"))?;
        let sectors = file.metadata().map_err(during("look at the disk"))?.len() / SECTOR;
        Ok(Arc::new(Self { file, sectors }))
    }
}

#[derive(Clone, Default)]
struct Registers {
    /// The half of the features that is asked for.
    half: u32,
    queue: u32,
    status: u32,
    interrupt: u32,
}

/// The disk's state at one instant.
pub(crate) struct BlockState {
    queue: QueueState,
    registers: Registers,
}

pub(crate) struct Block {
    disk: Arc<Disk>,
    queue: Queue,
    registers: Registers,
    line: Line,
}

/// The register at this address of the guest's.
pub(crate) fn register(at: u64) -> Option<u32> {
    let offset = at.checked_sub(BASE)?;
    (offset < REGISTERS).then_some(offset as u32)
}

impl Block {
    pub(crate) fn new(disk: &Arc<Disk>, line: Line) -> Self {
        let queue = Queue::new(QUEUE).expect("a power of two");
        Self { disk: Arc::clone(disk), queue, registers: Registers::default(), line }
    }

    pub(crate) fn state(&self) -> BlockState {
        BlockState { queue: self.queue.state(), registers: self.registers.clone() }
    }

    pub(crate) fn set(&mut self, state: &BlockState) -> Result<()> {
        self.queue = Queue::try_from(state.queue).map_err(during("restore the disk's queue"))?;
        self.registers = state.registers.clone();
        Ok(())
    }

    pub(crate) fn read(&self, offset: u32, bytes: &mut [u8]) {
        if offset >= mmio::VIRTIO_MMIO_CONFIG {
            let field = (offset - mmio::VIRTIO_MMIO_CONFIG) as usize;
            let all = self.disk.sectors.to_le_bytes();
            bytes.fill(0);
            bytes.iter_mut().zip(all.iter().skip(field)).for_each(|(to, from)| *to = *from);
            return;
        }
        let word = match offset {
            mmio::VIRTIO_MMIO_MAGIC_VALUE => MAGIC,
            mmio::VIRTIO_MMIO_VERSION => VERSION,
            mmio::VIRTIO_MMIO_DEVICE_ID => ids::VIRTIO_ID_BLOCK,
            mmio::VIRTIO_MMIO_DEVICE_FEATURES if self.registers.half < 2 => {
                (FEATURES >> (32 * self.registers.half)) as u32
            }
            mmio::VIRTIO_MMIO_QUEUE_NUM_MAX if self.registers.queue == 0 => u32::from(QUEUE),
            mmio::VIRTIO_MMIO_QUEUE_READY => u32::from(self.queue.ready()),
            mmio::VIRTIO_MMIO_INTERRUPT_STATUS => self.registers.interrupt,
            mmio::VIRTIO_MMIO_STATUS => self.registers.status,
            _ => 0,
        };
        if let Ok(whole) = <&mut [u8; 4]>::try_from(bytes) {
            *whole = word.to_le_bytes();
        }
    }

    /// Does all requests of the queue within the guest's store that tells of them.
    pub(crate) fn write(&mut self, offset: u32, word: u32, ram: &GuestMemory) -> Result<()> {
        let (queue, registers) = (&mut self.queue, &mut self.registers);
        match offset {
            mmio::VIRTIO_MMIO_DEVICE_FEATURES_SEL => registers.half = word,
            mmio::VIRTIO_MMIO_QUEUE_SEL => registers.queue = word,
            mmio::VIRTIO_MMIO_QUEUE_NUM => queue.set_size(word as u16),
            mmio::VIRTIO_MMIO_QUEUE_DESC_LOW => queue.set_desc_table_address(Some(word), None),
            mmio::VIRTIO_MMIO_QUEUE_DESC_HIGH => queue.set_desc_table_address(None, Some(word)),
            mmio::VIRTIO_MMIO_QUEUE_AVAIL_LOW => queue.set_avail_ring_address(Some(word), None),
            mmio::VIRTIO_MMIO_QUEUE_AVAIL_HIGH => queue.set_avail_ring_address(None, Some(word)),
            mmio::VIRTIO_MMIO_QUEUE_USED_LOW => queue.set_used_ring_address(Some(word), None),
            mmio::VIRTIO_MMIO_QUEUE_USED_HIGH => queue.set_used_ring_address(None, Some(word)),
            mmio::VIRTIO_MMIO_QUEUE_READY => queue.set_ready(word == 1),
            mmio::VIRTIO_MMIO_INTERRUPT_ACK => registers.interrupt &= !word,
            mmio::VIRTIO_MMIO_STATUS if word == 0 => {
                queue.reset();
                *registers = Registers::default();
            }
            mmio::VIRTIO_MMIO_STATUS => registers.status = word,
            mmio::VIRTIO_MMIO_QUEUE_NOTIFY => return self.serve(ram),
            _ => {}
        }
        Ok(())
    }

    fn serve(&mut self, ram: &GuestMemory) -> Result<()> {
        while let Some(chain) = self.queue.pop_descriptor_chain(ram) {
            let head = chain.head_index();
            let mut request = [0; 16];
            chain.clone().reader(ram)?.read_exact(&mut request)?;
            let [kind, _, low, high] = std::array::from_fn(|field| {
                u32::from_le_bytes(request[4 * field..][..4].try_into().expect("four bytes"))
            });
            let mut data = chain.writer(ram)?;
            let len = data.available_bytes().checked_sub(1).ok_or("a request without a status")?;
            let mut status = data.split_at(len)?;
            let mut bytes = vec![0; len];
            let at = (u64::from(high) << 32 | u64::from(low)).saturating_mul(SECTOR);
            let done = match kind {
                blk::VIRTIO_BLK_T_IN => match self.disk.file.read_exact_at(&mut bytes, at) {
                    Ok(()) => blk::VIRTIO_BLK_S_OK,
                    Err(_) => blk::VIRTIO_BLK_S_IOERR,
                },
                _ => blk::VIRTIO_BLK_S_UNSUPP,
            };
            data.write_all(&bytes)?;
            status.write_all(&[done as u8])?;
            self.queue.add_used(ram, head, len as u32 + 1)?;
        }
        self.registers.interrupt |= mmio::VIRTIO_MMIO_INT_VRING;
        self.line.trigger().map_err(during("interrupt for the disk"))
    }
}
