//! Dumps as CRIU 4.3 writes them with `--compress`, which the tests write field by field; later ones are refused.

use std::fs;
use std::ops::ControlFlow;
use std::path::PathBuf;

use cowslip::image::{Image, Progress};
use cowslip::units::CHUNK_BYTES;
use cowslip::{Error, ErrorKind};
use cowslip_criu::{ImportOptions, import};
use lz4_flex::block::compress;

const PAGE: usize = 4096;
const LAZY: u64 = 2;
const PRESENT: u64 = 4;
const ALIGNED: u64 = 8;
const PAGEMAP: &[u32] = &[0x5456_4319, 0x5608_4025];
const INVENTORY: &[u32] = &[0x5831_3116];

/// A directory that is removed with this value.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let folder =
            std::env::temp_dir().join(format!("cowslip-4.3-{name}-{}", std::process::id()));
        fs::create_dir_all(folder.join("dump")).unwrap();
        Self(folder)
    }

    fn write(&self, name: &str, bytes: &[u8]) {
        fs::write(self.0.join("dump").join(name), bytes).unwrap();
    }

    fn import(&self) -> Result<Vec<u8>, Error> {
        let (image, rest) = (self.0.join("image"), self.0.join("rest"));
        let _ = fs::remove_dir_all(&rest);
        let options = ImportOptions { rest: Some(rest), ..ImportOptions::default() };
        let proceed = &mut |_: Progress| ControlFlow::Continue(());
        let imported = import(&self.0.join("dump"), &image, &options, proceed)?;
        let image = Image::open(&image).unwrap();
        let at = image.description().roots["criu.pages"].offset_bytes as usize;
        let mut content = vec![0xEE; CHUNK_BYTES];
        image.read_chunk(0, 0, &mut content).unwrap();
        Ok(content[at..at + imported.memory.0 as usize].to_vec())
    }

    fn rest(&self, name: &str) -> Vec<u8> {
        fs::read(self.0.join("rest").join(name)).unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

fn number(field: u8, value: u64) -> Vec<u8> {
    [varint(u64::from(field) << 3), varint(value)].concat()
}

fn bytes(field: u8, value: &[u8]) -> Vec<u8> {
    [&[field << 3 | 2], &varint(value.len() as u64)[..], value].concat()
}

fn blocks(sizes: &[usize], pages_per_block: u64) -> Vec<u8> {
    let sum = sizes.iter().sum::<usize>() as u64;
    let sizes: Vec<u8> = sizes.iter().flat_map(|size| varint(*size as u64)).collect();
    [bytes(1, &sizes), number(2, sum), number(3, pages_per_block)].concat()
}

fn entry(page: u64, pages: u64, flags: u64, blocks: Option<Vec<u8>>) -> Vec<u8> {
    let start = [number(1, page * PAGE as u64), number(2, pages), number(4, flags)].concat();
    let blocks = blocks.map(|blocks| bytes(6, &blocks)).unwrap_or_default();
    [start, number(5, pages), blocks].concat()
}

fn file(magics: &[u32], messages: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes: Vec<u8> = magics.iter().flat_map(|magic| magic.to_le_bytes()).collect();
    for message in messages {
        bytes.extend([&(message.len() as u32).to_le_bytes()[..], message].concat());
    }
    bytes
}

/// Pages of which most repeats.
fn pages(seed: usize, count: usize) -> Vec<u8> {
    (0..count * PAGE).map(|at| if at % 16 == 0 { (at / PAGE + seed) as u8 } else { 7 }).collect()
}

#[test]
fn compressed_pages_are_read_and_the_rest_is_plain() {
    let folder = Folder::new("read");
    let (first, own, later, shared) = (pages(1, 2), pages(2, 2), pages(3, 1), pages(4, 1));
    let (packed, packed_own) = (compress(&first), compress(&own));
    // Blocks of two pages: compressed, zeroes, plain and shorter. Then one of `criu restore`'s own, and an aligned one.
    let sizes = [packed.len(), 0, PAGE];
    let entries = [
        number(1, 1),
        entry(0x400, 5, LAZY | PRESENT, Some(blocks(&sizes, 2))),
        entry(0x500, 3, PRESENT | ALIGNED, Some(blocks(&[packed_own.len(), 0], 2))),
        entry(0x600, 1, LAZY | PRESENT | ALIGNED, None),
        entry(0x700, 1, LAZY, None),
    ];
    folder.write("pagemap-9.img", &file(PAGEMAP, &entries));
    let mut content = [&packed[..], &later].concat();
    content.resize(content.len().next_multiple_of(PAGE), 0xEE);
    content.extend(&packed_own);
    content.resize(content.len().next_multiple_of(PAGE), 0xEE);
    content.extend(&first[..PAGE]);
    folder.write("pages-1.img", &content);
    let packed = compress(&shared);
    let entries = [number(1, 2), entry(0, 2, PRESENT, Some(blocks(&[packed.len(), 0], 1)))];
    folder.write("pagemap-shmem-77.img", &file(PAGEMAP, &entries));
    folder.write("pages-2.img", &packed);
    let other = bytes(13, b"run");
    let inventory = [number(1, 3), number(2, 1), other.clone(), number(15, 1), number(16, 1 << 18)];
    folder.write("inventory.img", &file(INVENTORY, &[inventory.concat()]));
    folder.write("core-9.img", b"registers");

    let zeroes = vec![0; 2 * PAGE];
    let expected = [&first[..], &zeroes, &later, &first[..PAGE]].concat();
    assert!(folder.import().unwrap() == expected);
    let entries = [
        number(1, 1),
        entry(0x400, 5, LAZY, None),
        entry(0x500, 3, PRESENT, None),
        entry(0x600, 1, LAZY, None),
        entry(0x700, 1, LAZY, None),
    ];
    assert_eq!(folder.rest("pagemap-9.img"), file(PAGEMAP, &entries));
    assert!(folder.rest("pages-1.img") == [&own[..], &zeroes[..PAGE]].concat());
    let entries = [number(1, 2), entry(0, 2, PRESENT, None)];
    assert_eq!(folder.rest("pagemap-shmem-77.img"), file(PAGEMAP, &entries));
    assert!(folder.rest("pages-2.img") == [&shared[..], &zeroes[..PAGE]].concat());
    let inventory = [number(1, 2), number(2, 1), other].concat();
    assert_eq!(folder.rest("inventory.img"), file(INVENTORY, &[inventory]));
    assert_eq!(folder.rest("core-9.img"), b"registers");
}

#[test]
fn what_is_not_known_or_not_right_is_refused_by_name() {
    let folder = Folder::new("refused");
    let (plain, packed) = (pages(1, 2), compress(&pages(1, 2)));
    let right = blocks(&[packed.len()], 2);
    let lazy = LAZY | PRESENT;
    let wrong = |wrong: &[usize], per_block| entry(0x400, 2, lazy, Some(blocks(wrong, per_block)));
    let more = |field: Vec<u8>| [entry(0x400, 2, lazy, None), field].concat();
    let not_known = "CRIU 4.3 does not know";
    let not_its = "not those of its pages";
    for (what, entry, content, word) in [
        ("a later field", more(number(7, 1)), &plain, not_known),
        ("a later flag", entry(0x400, 2, lazy | 16, None), &plain, not_known),
        (
            "a later field of blocks",
            entry(0x400, 2, lazy, Some([right.clone(), number(4, 1)].concat())),
            &packed,
            not_known,
        ),
        ("too many blocks", wrong(&[packed.len(), 0], 2), &packed, not_its),
        ("too few blocks", wrong(&[packed.len()], 1), &packed, not_its),
        ("no pages in a block", wrong(&[packed.len()], 0), &packed, not_its),
        ("huge blocks", wrong(&[packed.len()], 1025), &packed, not_its),
        ("a block longer than its pages", wrong(&[2 * PAGE + 1], 2), &packed, not_its),
        (
            "another sum",
            entry(0x400, 2, lazy, Some([&right[..right.len() - 3], &[1, 3 << 3, 2]].concat())),
            &packed,
            not_its,
        ),
        ("blocks of nothing", entry(0x400, 2, LAZY, Some(right.clone())), &packed, not_its),
        ("too short a file", wrong(&[packed.len() + 1], 2), &packed, "shorter than its pagemap"),
        ("half a block", wrong(&[packed.len() / 2], 2), &packed, "LZ4 block at byte 0 is damaged"),
        ("one page of two", wrong(&[compress(&plain[..PAGE]).len()], 2), &packed, "LZ4 block"),
    ] {
        folder.write("pagemap-9.img", &file(PAGEMAP, &[number(1, 1), entry]));
        folder.write("pages-1.img", content);
        let refused = folder.import().map(drop).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Corrupt, "{what}: {refused}");
        assert!(refused.to_string().contains(word), "{what}: {refused}");
    }
    let whole = file(PAGEMAP, &[number(1, 1), entry(0x400, 2, lazy, None)]);
    folder.write("pagemap-9.img", &whole);
    folder.write("pages-1.img", &plain);
    assert!(folder.import().unwrap() == plain);
    folder.write("inventory.img", &file(INVENTORY, &[[number(1, 3), number(15, 2)].concat()]));
    let refused = folder.import().map(drop).unwrap_err();
    assert!(refused.to_string().contains("crit decompress"), "{refused}");
    folder.write("inventory.img", &file(INVENTORY, &[number(1, 2)]));
    folder.write("pagemap-shmem-7.img", &file(PAGEMAP, &[number(1, 2), entry(0, 1, lazy, None)]));
    folder.write("pages-2.img", &plain);
    assert!(folder.import().map(drop).unwrap_err().to_string().contains("shared memory"));
}
