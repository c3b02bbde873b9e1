//! CRIU's dumps, the words in an image of one, and requests to a page server are refused, or taken at their word.
//!
//! The first byte of an input chooses among them. A pagemap is messages behind their lengths of one byte; none begins the next file.
#![no_main]

use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use cowslip::image::{Image, RestoreOptions, Root, SaveOptions, Via, save};
use cowslip::units::ByteCount;
use cowslip::{Arena, ArenaSlice};
use cowslip_criu::{
    About, FolderOptions, ImportOptions, Kept, Keys, Memory, NewCheckpoint, import, serve,
};
use cowslip_fuzz::{folder, proceed, seed};
use libfuzzer_sys::fuzz_target;

const MAGICS: [u32; 2] = [0x5456_4319, 0x5608_4025];
const INVENTORY: u32 = 0x5831_3116;
/// Pages of each file of pages.
const PAGES: usize = 48;

/// An entry of a pagemap: its first page, how many, and that they are lazy and present.
fn entry(page: u64, pages: u8) -> Vec<u8> {
    let mut message = vec![0x08];
    let mut rest = page << 12;
    while rest >= 0x80 {
        message.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    message.extend([rest as u8, 0x10, pages, 0x20, 6]);
    message
}

/// Two blocks of two pages, one stored in `stored` bytes and one of zeroes.
fn with_blocks(mut entry: Vec<u8>, stored: u8) -> Vec<u8> {
    entry.extend([0x32, 8, 0x0a, 2, stored, 0, 0x10, stored, 0x18, 2]);
    entry
}

fn pagemap(messages: &[Vec<u8>]) -> Vec<u8> {
    messages.iter().flat_map(|message| [&[message.len() as u8], &message[..]].concat()).collect()
}

/// A request for pages, as CRIU up to 4.1 has it and since 4.2.
fn request(command: u32, pages: u32, is_long: bool) -> Vec<u8> {
    let place = [0x40_0000_u64, 1].map(u64::to_ne_bytes).concat();
    match is_long {
        true => {
            [&command.to_ne_bytes()[..], &[0; 4], &u64::from(pages).to_ne_bytes(), &place].concat()
        }
        false => [&command.to_ne_bytes()[..], &pages.to_ne_bytes(), &place].concat(),
    }
}

fn seeds() {
    let one = pagemap(&[vec![0x08, 1], entry(0x400, 3), entry(0x403, 5), entry(0x1000, 30)]);
    let two = pagemap(&[vec![0x08, 2], entry(0x400, 3), vec![0x08, 0, 0x10, 0, 0x28, 1]]);
    seed("one", &[&[0], &one[..]].concat());
    seed("two", &[&[1], &one[..], &[0], &two].concat());
    let (stored, zeroes) = (with_blocks(entry(0x400, 4), 100), with_blocks(entry(0x500, 3), 0));
    seed("blocks", &[&[1], &pagemap(&[vec![0x08, 1], stored, zeroes.clone()])[..]].concat());
    seed("zeroes", &[&[1], &pagemap(&[vec![0x08, 1], zeroes])[..]].concat());
    for (name, is_long) in [("short", false), ("long", true)] {
        let requests = [request(7, 4, is_long), request(7, 1000, is_long)].concat();
        let close = request(0x1023, 0, is_long);
        seed(name, &[&[2], &requests[..], &close].concat());
    }
    // Version 3, pages compressed by LZ4, blocks of 64 KiB, and a field of later.
    let inventory = [8, 3, 0x78, 1, 0x80, 1, 0x80, 0x80, 4, 0xfa, 7, 2, 8, 1];
    seed("inventory", &[&[4], &inventory[..]].concat());
    seed("words", b"\x03criu.pages.1=400+3 5+1\ncriu.pages.2=1000+4");
    let bases = "criu.pages.1=400+8 0+3@1:a 0+1@1:29\ncriu.base.1=BASE ../base";
    seed("bases", &[&[3], bases.as_bytes()].concat());
}

/// A dump that stays, with files of pages, an image of it, and a checkpoint.
struct World {
    folder: PathBuf,
    memory: Memory,
    /// The identity of the checkpoint's memory.
    base: String,
    _arena: Arena,
    frozen: cowslip::Frozen,
}

static WORLD: LazyLock<World> = LazyLock::new(World::new);

fn restore(image: &Path) -> cowslip::Result<Memory> {
    Memory::restore(image, &RestoreOptions { via: Via::File, ..RestoreOptions::default() })
}

impl World {
    fn new() -> Self {
        let folder = folder();
        fs::create_dir(folder.join("dump")).expect("a folder");
        for file in 0..3 {
            let bytes: Vec<u8> = (0..PAGES * 4096).map(|at| (at / 4096 + file) as u8 + 1).collect();
            fs::write(folder.join(format!("dump/pages-{file}.img")), bytes).expect("pages");
        }
        let input = pagemap(&[vec![0x08, 1], entry(0x400, 40), entry(0x1000, 2)]);
        write_dump(&folder, &input);
        let image = folder.join("served");
        let options = ImportOptions::default();
        import(&folder.join("dump"), &image, &options, &mut proceed).expect("an image");
        let memory = restore(&image).expect("memory");
        let name = "fuzz".into();
        let about = About { pid: 9, threads: vec![9], name, pause_ns: 0, criu: String::new() };
        let options = FolderOptions::default();
        for kept in ["base", "kept"].map(|name| folder.join(name)) {
            let new = NewCheckpoint::create(&kept, &options).expect("a folder");
            for file in fs::read_dir(folder.join("dump")).expect("a dump").flatten() {
                fs::copy(file.path(), new.dump().join(file.file_name())).expect("a copy");
            }
            new.finish(&about, &mut proceed).expect("a checkpoint");
        }
        let base = Image::open(&folder.join("base/memory.image")).expect("an image").identity();
        let arena = Arena::new(ByteCount::mib(2)).expect("an arena");
        let mut bytes: ArenaSlice<u8> = arena.slice(8 * 4096).expect("room");
        bytes.fill(1);
        let frozen = arena.freeze().expect("a freeze");
        std::mem::forget(bytes);
        Self { folder, memory, base: base.to_string(), _arena: arena, frozen }
    }
}

/// Writes the pagemaps of a dump; how many there are.
fn write_dump(folder: &Path, input: &[u8]) {
    for process in 1..4 {
        let _ = fs::remove_file(folder.join(format!("dump/pagemap-{process}.img")));
    }
    let mut files = vec![MAGICS.map(u32::to_le_bytes).concat()];
    let mut rest = input;
    while let Some((&length, behind)) = rest.split_first() {
        let (message, behind) = behind.split_at(behind.len().min(length.into()));
        if message.is_empty() && files.len() < 3 {
            files.push(MAGICS.map(u32::to_le_bytes).concat());
        } else if let Some(file) = files.last_mut() {
            file.extend((message.len() as u32).to_le_bytes());
            file.extend(message);
        }
        rest = behind;
    }
    for (process, file) in (1..).zip(&files) {
        fs::write(folder.join(format!("dump/pagemap-{process}.img")), file).expect("a pagemap");
    }
}

fn import_dump(world: &World, has_rest: bool, input: &[u8]) {
    let (image, rest) = (world.folder.join("image"), world.folder.join("rest"));
    write_dump(&world.folder, input);
    let options = ImportOptions { rest: has_rest.then(|| rest.clone()), ..Default::default() };
    let imported = import(&world.folder.join("dump"), &image, &options, &mut proceed);
    let _ = fs::remove_dir_all(&rest);
    if let Ok(imported) = imported {
        // Each byte of a compressed entry may stand for a block of zeroes.
        let most = (3 * PAGES * 4096) as u64 + ((input.len() as u64) << 22);
        assert!(imported.memory.0 <= most, "{imported:?}");
        restore(&image).expect("what was imported can be served");
    }
}

/// Imports a dump with this message as its inventory.
fn import_inventory(world: &World, input: &[u8]) {
    let file = world.folder.join("dump/inventory.img");
    let head = [INVENTORY.to_le_bytes(), (input.len() as u32).to_le_bytes()].concat();
    fs::write(&file, [&head, input].concat()).expect("an inventory");
    import_dump(world, true, &pagemap(&[vec![0x08, 1], entry(0x400, 3)]));
    fs::remove_file(file).expect("it is there");
}

/// Both directions of a connection; written bytes are looked at.
struct Client<'a>(&'a [u8]);

impl Read for Client<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer)
    }
}

impl Write for Client<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        std::hint::black_box(bytes.iter().step_by(512).fold(0, |or, byte| or | byte));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Restores a checkpoint whose image has the lines of an input as its words.
fn restore_words(world: &World, input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let text = text.replace("BASE", &world.base);
    let words = text.lines().filter_map(|line| line.split_once('='));
    let words = words.map(|(key, line)| (key.to_owned(), line.to_owned()));
    let root = Root { arena: 0, offset_bytes: 0, length_bytes: 8 * 4096 };
    let roots = [("criu.pages".to_owned(), root)].into();
    let options = SaveOptions { roots, user: words.collect(), ..SaveOptions::default() };
    let kept = world.folder.join("kept");
    let image = kept.join("memory.image");
    save(&[&world.frozen], &image, &options, &mut proceed).expect("an image");
    let opened = Kept::open(&kept, &Keys::default(), &[]);
    let options = RestoreOptions { via: Via::File, ..RestoreOptions::default() };
    let Ok(memory) = opened.and_then(|kept| kept.into_memory(&options)) else { return };
    let get = request(7, 8, true);
    serve(&memory, &mut Client(&get), &|_| {}).expect("a request");
}

fuzz_target!(init: seeds(), |input: &[u8]| {
    let world = &*WORLD;
    match input {
        [rest @ (0 | 1), input @ ..] => import_dump(world, *rest == 1, input),
        [2, input @ ..] => drop(serve(&world.memory, &mut Client(input), &|_| {})),
        [3, input @ ..] => restore_words(world, input),
        [4, input @ ..] => import_inventory(world, input),
        _ => {}
    }
});
