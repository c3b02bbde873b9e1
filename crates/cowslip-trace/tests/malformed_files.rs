#![allow(unsafe_code)]
//! Traces crafted with knowledge of the format and with valid checksums: each is refused or read as it is;
//! nothing panics, and no allocation is larger than a block needs.

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use cowslip_trace::file::Reader;
use cowslip_trace::model::Header;
use support::{Scatter, written};
use twox_hash::XxHash3_128;

/// The system's allocator, which records the largest request.
struct Watched;

static LARGEST: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is passed on to the system's allocator.
unsafe impl GlobalAlloc for Watched {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LARGEST.fetch_max(layout.size(), Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Watched = Watched;

const PRELUDE: usize = 64;
const HEAD: usize = 64;
/// A block of 65,536 events takes no more, including its decoded form.
const MOST_BYTES: usize = 8 << 20;

fn u32_at(bytes: &[u8], at: usize) -> usize {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize
}

/// Makes the last 16 bytes of a prelude or a head their checksum.
fn sign(bytes: &mut [u8]) {
    let sum = XxHash3_128::oneshot(&bytes[..48]).to_le_bytes();
    bytes[48..64].copy_from_slice(&sum);
}

/// A block with uncompressed content (docs/trace-format.md).
fn plain(head: &[u8], content: &[u8]) -> Vec<u8> {
    let mut block = head.to_vec();
    block[8..12].copy_from_slice(&(content.len() as u32).to_le_bytes());
    block[12..16].copy_from_slice(&(content.len() as u32).to_le_bytes());
    block[32..48].copy_from_slice(&XxHash3_128::oneshot(content).to_le_bytes());
    sign(&mut block);
    [&block, content].concat()
}

/// A head and its content.
type Block = (Vec<u8>, Vec<u8>);

/// The prelude and header, and the blocks.
fn parts(bytes: &[u8]) -> (Vec<u8>, Vec<Block>) {
    let mut at = PRELUDE + u32_at(bytes, 24);
    let beginning = bytes[..at].to_vec();
    let mut blocks = Vec::new();
    while at < bytes.len() {
        let (head, stored) = (&bytes[at..at + HEAD], u32_at(bytes, at + 12));
        let body = &bytes[at + HEAD..][..stored];
        let content = match u32_at(head, 8) {
            length if length == stored => body.to_vec(),
            length => zstd::bulk::decompress(body, length).unwrap(),
        };
        blocks.push((head.to_vec(), content));
        at += HEAD + stored;
    }
    (beginning, blocks)
}

fn joined(beginning: &[u8], blocks: &[Block]) -> Vec<u8> {
    let blocks = blocks.iter().map(|(head, content)| plain(head, content));
    [beginning.to_vec()].into_iter().chain(blocks).collect::<Vec<_>>().concat()
}

/// Reads all of it, a block at a time; true if it was refused.
fn is_refused(bytes: &[u8]) -> bool {
    LARGEST.store(0, Relaxed);
    let read = || -> io::Result<()> {
        let mut reader = Reader::new(bytes)?;
        let mut events = Vec::new();
        while reader.read_block(&mut events)? {
            events.clear();
        }
        Ok(())
    };
    let answer = read();
    let largest = LARGEST.load(Relaxed);
    assert!(largest <= MOST_BYTES, "{largest} bytes at once");
    if let Err(error) = &answer {
        assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{error}");
    }
    answer.is_err()
}

fn mutate(bytes: &mut Vec<u8>, scatter: &mut Scatter) {
    for _ in 0..1 + scatter.below(3) {
        if bytes.is_empty() {
            return;
        }
        let at = scatter.below(bytes.len() as u64) as usize;
        match scatter.below(7) {
            0 => bytes[at] = 0,
            1 => bytes[at] = 0xff,
            2 => bytes[at] = bytes[at].wrapping_add(1),
            3 => drop(bytes.remove(at)),
            4 => bytes.insert(at, scatter.next() as u8),
            5 => bytes.truncate(at + 1),
            _ => bytes[at] ^= 1 << scatter.below(8),
        }
    }
}

#[test]
fn files_that_lie_are_refused_or_read_as_they_say() {
    let mut scatter = Scatter(77);
    let stacks: [Box<[u64]>; 2] = [Box::new([1, 2, 3]), Box::new([u64::MAX])];
    let (whole, _) = written(&Header::default(), &stacks, &scatter.events(300, 2));
    let (beginning, blocks) = parts(&whole);
    assert!(blocks.len() > 2 && !is_refused(&joined(&beginning, &blocks)), "the test signs right");
    let mut refused = 0;
    const ROUNDS: usize = 30_000;
    for round in 0..ROUNDS {
        let (mut beginning, mut blocks) = (beginning.clone(), blocks.clone());
        let (head, content) = &mut blocks[scatter.below(3) as usize];
        match round % 3 {
            0 => {
                let at = scatter.below(32) as usize;
                head[at] = scatter.next() as u8;
            }
            1 => {
                beginning[8 + scatter.below(40) as usize] = scatter.next() as u8;
                sign(&mut beginning);
            }
            _ => mutate(content, &mut scatter),
        }
        refused += usize::from(is_refused(&joined(&beginning, &blocks)));
    }
    // Some changes are valid, such as another time or address.
    assert!(refused > ROUNDS / 2 && refused < ROUNDS, "{refused} of {ROUNDS}");
}

/// Lengths of the largest values, with nothing after them.
#[test]
fn lengths_that_lie_take_no_memory() {
    let (whole, _) = written(&Header::default(), &[], &Scatter(5).events(2, 0));
    let (beginning, blocks) = parts(&whole);
    let mut prelude = beginning.clone();
    prelude[24..28].copy_from_slice(&(16_u32 << 20).to_le_bytes());
    sign(&mut prelude);
    assert!(is_refused(&prelude));
    for lengths in [[4_u32 << 20; 2], [4 << 20, 100], [u32::MAX; 2]] {
        let mut head = blocks[0].0.clone();
        head[8..12].copy_from_slice(&lengths[0].to_le_bytes());
        head[12..16].copy_from_slice(&lengths[1].to_le_bytes());
        sign(&mut head);
        let is_cut = !is_refused(&[&beginning[..], &head, &[0; 50]].concat());
        assert_eq!(is_cut, lengths[0] <= 4 << 20);
    }
    // Columns, stacks and texts of 2^63 bytes.
    let huge = [0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 1];
    for content in [huge.to_vec(), [&[10], &huge[..], &[0; 9]].concat()] {
        let block = plain(&blocks[0].0, &content);
        assert!(is_refused(&[&beginning[..], &block].concat()));
    }
}
