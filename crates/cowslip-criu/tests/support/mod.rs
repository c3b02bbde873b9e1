//! Pagemaps as `criu dump` writes them, and `criu lazy-pages` on the wire.
#![allow(dead_code, unreachable_pub, reason = "each test file uses a part")]

use std::io::{Read, Write};

pub const PAGE: usize = 4096;
pub const LAZY_AND_PRESENT: u64 = 6;
pub const PRESENT: u64 = 4;

/// Entries of one process: first page, pages, flags.
pub type Entries<'a> = &'a [(u64, u64, u64)];

/// A message of Protocol Buffers in which every field is a number.
pub fn message(fields: &[(u8, u64)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (tag, value) in fields {
        bytes.push(tag << 3);
        let mut rest = *value;
        while rest >= 0x80 {
            bytes.push(rest as u8 | 0x80);
            rest >>= 7;
        }
        bytes.push(rest as u8);
    }
    [&(bytes.len() as u32).to_le_bytes()[..], &bytes].concat()
}

pub fn pagemap(pages_id: u64, entries: Entries<'_>, is_long: bool) -> Vec<u8> {
    let mut bytes = [0x5456_4319_u32, 0x5608_4025].map(u32::to_le_bytes).concat();
    bytes.extend(message(&[(1, pages_id)]));
    for &(page, count, flags) in entries {
        let mut fields = vec![(1, page * PAGE as u64), (2, count), (4, flags)];
        if is_long {
            fields.push((5, count));
        }
        bytes.extend(message(&fields));
    }
    bytes
}

/// `criu lazy-pages` on the wire, up to version 4.1 or since 4.2.
pub struct Client<S> {
    pub stream: S,
    pub is_long: bool,
}

impl<S: Read + Write> Client<S> {
    fn send(&mut self, command: u32, pages: u64, address: u64, process: u64) {
        let mut bytes = command.to_ne_bytes().to_vec();
        match self.is_long {
            true => bytes.extend([&[0xAA; 4][..], &pages.to_ne_bytes()].concat()),
            false => bytes.extend((pages as u32).to_ne_bytes()),
        }
        bytes.extend([address, process].map(u64::to_ne_bytes).concat());
        self.stream.write_all(&bytes).unwrap();
    }

    pub fn get(&mut self, process: u32, page: u64, pages: u64) {
        self.send(7, pages, page * PAGE as u64, process.into());
    }

    /// Receives pages, and checks that they are those from an address on.
    pub fn receive(&mut self, process: u32, page: u64) -> Vec<u8> {
        let mut head = vec![0; if self.is_long { 32 } else { 24 }];
        self.stream.read_exact(&mut head).unwrap();
        let word = |at: usize| u64::from_ne_bytes(head[at..at + 8].try_into().unwrap());
        let half = |at: usize| u32::from_ne_bytes(head[at..at + 4].try_into().unwrap());
        // ADD_F, and PE_PRESENT above.
        assert_eq!(half(0), 6 | 4 << 16);
        let (pages, behind) = if self.is_long { (word(8), 16) } else { (half(4).into(), 8) };
        assert_eq!((word(behind), word(behind + 8)), (page * PAGE as u64, process.into()));
        let mut bytes = vec![0; pages as usize * PAGE];
        self.stream.read_exact(&mut bytes).unwrap();
        bytes
    }

    /// Asks until all pages of a range have come, as CRIU does.
    pub fn fetch(&mut self, process: u32, page: u64, pages: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        let done = |bytes: &Vec<u8>| (bytes.len() / PAGE) as u64;
        while done(&bytes) < pages {
            let first = page + done(&bytes);
            self.get(process, first, page + pages - first);
            let came = self.receive(process, first);
            assert!(!came.is_empty());
            bytes.extend(came);
        }
        assert_eq!(done(&bytes), pages);
        bytes
    }

    pub fn close(&mut self) {
        self.send(0x1023, 0, 0, 0);
        let mut status = [1; 4];
        self.stream.read_exact(&mut status).unwrap();
        assert_eq!(status, [0; 4]);
    }
}
