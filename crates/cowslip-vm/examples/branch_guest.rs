#![allow(unsafe_code)]
//! Keeps the RAM of a guest that runs, tries something in copies of it, and takes the guest back.
//!
//! A thread is the guest's processor here; with KVM, register each region of [`GuestRam::memory`] as a memory slot.
//!
//! ```sh
//! cargo run --release -p cowslip-vm --example branch_guest
//! ```

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use cowslip::Result;
use cowslip::image::{Image, RestoreOptions, SaveOptions};
use cowslip_vm::{GuestMemory, GuestRam, Snapshot};
use vm_memory::{Bytes, GuestAddress};

const RAM: u64 = 256 << 20;
const COUNTER: GuestAddress = GuestAddress(0x8000);

/// Counts until it is told to stop, and writes each number to another page.
fn processor(memory: &GuestMemory, stop: &AtomicBool) {
    let mut count = memory.read_obj::<u64>(COUNTER).expect("RAM");
    while !stop.load(Ordering::Relaxed) {
        count += 1;
        let page = GuestAddress((1 << 20) + count * 4096 % (RAM - (1 << 20)));
        memory.write_obj(count, page).expect("RAM");
        memory.write_obj(count, COUNTER).expect("RAM");
    }
}

/// A snapshot, and an image of it, while the guest runs.
fn keep(ram: &GuestRam, path: &Path) -> Result<Snapshot> {
    let began = Instant::now();
    let snapshot = ram.snapshot(Duration::from_secs(1))?;
    println!("frozen in {:?}, while the guest runs", began.elapsed());
    let mut proceed = |_| ControlFlow::Continue(());
    let saved = snapshot.save(path, &SaveOptions::default(), &mut proceed)?;
    println!("{} bytes of image", saved.file_bytes);
    Ok(snapshot)
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let ram = GuestRam::new(&[(GuestAddress(0), RAM)])?;
    let memory = ram.memory();
    let stop = AtomicBool::new(false);
    let path = std::env::temp_dir().join(format!("branch-guest-{}.cowslip", std::process::id()));

    let snapshot = std::thread::scope(|scope| {
        scope.spawn(|| processor(&memory, &stop));
        while memory.read_obj::<u64>(COUNTER).expect("RAM") < 100_000 {
            std::thread::yield_now();
        }
        let kept = keep(&ram, &path);
        stop.store(true, Ordering::Relaxed);
        kept
    })?;
    let mut then = [0; 8];
    snapshot.read(&mut then, COUNTER)?;
    let (then, end) = (u64::from_ne_bytes(then), memory.read_obj::<u64>(COUNTER)?);
    println!("the snapshot is of count {then}; the guest went on to {end}");

    // SAFETY: its processor has stopped.
    unsafe { ram.roll_back(&snapshot) }?;
    println!("rolled back to {}", memory.read_obj::<u64>(COUNTER)?);

    let template = snapshot.into_template()?;
    let clones = (0..3).map(|_| GuestRam::clone_of(&template)).collect::<Result<Vec<_>>>()?;
    for (number, clone) in clones.iter().enumerate() {
        let memory = clone.memory();
        memory.write_obj(number as u64, COUNTER)?;
        println!("clone {number} counts from {}", memory.read_obj::<u64>(COUNTER)?);
    }

    let image = Image::open(&path)?;
    let proceed = &mut |_| ControlFlow::Continue(());
    let (restored, _rest) = GuestRam::restore(&image, &RestoreOptions::default(), proceed)?;
    println!("restored at {}", restored.memory().read_obj::<u64>(COUNTER)?);
    std::fs::remove_file(path)?;
    Ok(())
}
