//! What a userfaultfd tells a thread that serves faults.

use std::fs::File;
use std::io::Read;

use cowslip::units::page_size_bytes;

/// `struct uffd_msg`: its length, its kind of event for a fault, and where the address stands.
const MESSAGE_BYTES: usize = 32;
const PAGE_FAULT: u8 = 0x12;
const ADDRESS: std::ops::Range<usize> = 16..24;
const AT_ONCE: usize = 64;

/// Reads what waits, with one system call; where a thread waits, from the beginning of the page on.
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
