//! Messages of a userfaultfd to a thread that serves faults.

use std::fs::File;
use std::io::Read;

use cowslip::units::page_size_bytes;

/// `struct uffd_msg`: its length, the event of a fault, and the place of the address.
const MESSAGE_BYTES: usize = 32;
const PAGE_FAULT: u8 = 0x12;
const ADDRESS: std::ops::Range<usize> = 16..24;
const AT_ONCE: usize = 64;

/// Reads the waiting messages with one system call. Calls `fault` with the start of the page of each fault.
pub(crate) fn read_faults(messages: &mut File, mut fault: impl FnMut(usize)) {
    let mut buffer = [0; AT_ONCE * MESSAGE_BYTES];
    let Ok(read) = messages.read(&mut buffer) else { return };
    for message in buffer[..read].chunks_exact(MESSAGE_BYTES) {
        if message[0] == PAGE_FAULT {
            let address = message[ADDRESS].try_into().expect("eight bytes");
            let address = u64::from_ne_bytes(address) as usize;
            fault(address - address % page_size_bytes());
        }
    }
}
