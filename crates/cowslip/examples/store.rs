//! A key-value store that is saved while it is written to.
//!
//! ```text
//! cargo run --release --example store            # save by freezing, from a view
//! cargo run --release --example store -- --fork  # save by forking, from a child
//! ```
#![allow(unsafe_code)]

use std::error::Error;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use std::time::{Duration, Instant};
use std::{env, process, thread};

use bytemuck::{Pod, Zeroable};
use cowslip::units::ByteCount;
use cowslip::{Arena, ArenaSlice, Fork};
use cowslip_sys::process as children;

const SLOTS: usize = 1 << 20;
const KEYS: u64 = SLOTS as u64 / 2;
const WRITE_BYTES: usize = 1 << 20;

/// A key, 0 if there is none, and its value.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Slot {
    key: u64,
    value: [u64; 15],
}

/// A hash table of fixed size with open addressing, in an arena.
struct Store {
    slots: ArenaSlice<Slot>,
    arena: Arena,
}

impl Store {
    fn new() -> cowslip::Result<Self> {
        let arena = Arena::new(ByteCount((SLOTS * size_of::<Slot>()) as u64))?;
        Ok(Self { slots: arena.slice(SLOTS)?, arena })
    }

    fn set(&mut self, key: u64, value: [u64; 15]) {
        let place = find(&self.slots, key);
        self.slots[place] = Slot { key, value };
    }

    fn get(&self, key: u64) -> Option<[u64; 15]> {
        let slot = self.slots[find(&self.slots, key)];
        (slot.key == key).then_some(slot.value)
    }

    /// Saves the current content of the store, and calls `work` until that is done.
    fn save(&mut self, path: &Path, mut work: impl FnMut(&mut Self)) -> Result<(), Box<dyn Error>> {
        let file = File::create(path)?;
        let began = Instant::now();
        let frozen = self.arena.freeze()?;
        println!("froze it in {:?}", began.elapsed());
        // The view is independent of later changes to the slots.
        let view = frozen.slice(&self.slots);
        thread::scope(|scope| {
            let writer = scope.spawn(|| write(&file, view));
            while !writer.is_finished() {
                work(self);
            }
            writer.join().expect("the thread that saves panicked")
        })?;
        drop(frozen); // From here on it is thawed.
        Ok(())
    }

    /// Like [`Self::save`], in a child.
    fn save_by_fork(
        &mut self,
        path: &Path,
        mut work: impl FnMut(&mut Self),
    ) -> Result<(), Box<dyn Error>> {
        let file = File::create(path)?;
        let began = Instant::now();
        // SAFETY: the child makes system calls and ends.
        let pid = match unsafe { cowslip::fork(&[&self.arena]) }? {
            Fork::Child => children::exit_now(i32::from(write(&file, &self.slots).is_err())),
            Fork::Parent(pid) => pid,
        };
        println!("forked in {:?}", began.elapsed());
        let child = thread::spawn(move || children::wait_for(pid));
        while !child.is_finished() {
            work(self);
        }
        match child.join().expect("the thread that waits panicked")? {
            0 => Ok(()),
            status => Err(format!("the child ended with status {status:#x}").into()),
        }
    }

    fn load(path: &Path) -> Result<Self, Box<dyn Error>> {
        let mut store = Self::new()?;
        let bytes = fs::read(path)?;
        let slots = bytemuck::cast_slice_mut::<Slot, u8>(&mut store.slots);
        if bytes.len() != slots.len() {
            return Err("the file is of another size".into());
        }
        slots.copy_from_slice(&bytes);
        Ok(store)
    }
}

/// The slot that holds `key`, or into which it belongs.
fn find(slots: &[Slot], key: u64) -> usize {
    let mut place = key.wrapping_mul(0x9e37_79b9_7f4a_7c15) as usize % SLOTS;
    while slots[place].key != key && slots[place].key != 0 {
        place = (place + 1) % SLOTS;
    }
    place
}

fn write(mut file: &File, slots: &[Slot]) -> io::Result<()> {
    bytemuck::cast_slice(slots).chunks(WRITE_BYTES).try_for_each(|bytes| file.write_all(bytes))
}

fn main() -> Result<(), Box<dyn Error>> {
    let by_fork = env::args().any(|argument| argument == "--fork");
    let mut store = Store::new()?;
    (1..=KEYS).for_each(|key| store.set(key, [key; 15]));
    println!("filled a store of {KEYS} keys, on {}", store.arena.pages());

    let path = env::temp_dir().join(format!("store-{}.save", process::id()));
    let mut sets = 0;
    let work = |store: &mut Store| {
        sets += 1;
        store.set(sets % KEYS + 1, [sets; 15]);
    };
    let saved = if by_fork { store.save_by_fork(&path, work) } else { store.save(&path, work) };
    let loaded = saved.and_then(|()| Store::load(&path));
    fs::remove_file(&path)?;
    let loaded = loaded?;
    let exact = (1..=KEYS).all(|key| loaded.get(key) == Some([key; 15]));
    println!("saved it, and set {sets} keys meanwhile; the save is exact: {exact}");
    let live = store.arena.wait_live(Duration::from_secs(60));
    println!("on shared, huge memory again: {live}");
    if exact { Ok(()) } else { Err("the save holds something else than the store held".into()) }
}
