//! Turns the dump of a holder into that of the program that it was forked from.
//!
//! ```text
//!  criu dump of the holder: memory, files, one thread that waits in a call
//!      core-HOLDER.img ──▶ a core-THREAD.img for each thread: registers, signal masks, lists, stacks of the instant
//!      files.img       ──▶ offsets, counts and times of the instant: the program shares these and goes on
//!      pstree.img      ──▶ the program's number, and its threads'
//! ```
//! Numbers of fields are those of `images/*.proto` of CRIU 4.3. A field that is not named here stays as CRIU wrote it.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use cowslip::{Error, ErrorKind, Result};
use cowslip_process::{DescriptorState, Holder, PosixTimer, ThreadState, Timers};
use cowslip_sys::error::file_error;
use cowslip_sys::ptrace::XsaveLayout;
use cowslip_sys::regular;

use crate::dump::{OPERATION, file_of, messages};
use crate::wire::Message;

const COMMON: u32 = 0x5456_4319;
const CORE: &[u32] = &[COMMON, 0x5505_3847];
const MM: &[u32] = &[COMMON, 0x5749_2820];
const PSTREE: &[u32] = &[COMMON, 0x5027_3030];
const FDINFO: &[u32] = &[COMMON, 0x5621_3732];
const FILES: &[u32] = &[COMMON, 0x5630_3138];

/// Files of one process that only their name ties to it.
const NAMED_BY_PROCESS: [&str; 4] = ["mm", "pagemap", "fs", "ids"];

/// Changes the dump in `folder`, which is of the holder.
pub(crate) fn apply(folder: &Path, holder: &Holder) -> Result<()> {
    let (from, to) = (holder.pid(), holder.program());
    threads(folder, holder)?;
    for kind in NAMED_BY_PROCESS {
        let [old, new] = [from, to].map(|pid| folder.join(format!("{kind}-{pid}.img")));
        fs::rename(&old, &new).map_err(|error| file_error(OPERATION, &old, error))?;
    }
    edit(folder.join("pstree.img"), PSTREE, |processes| {
        let [process] = processes else { return Err("it has more than one process".into()) };
        process.set(1, to as u64);
        process.set_numbers(5, holder.threads().iter().map(|thread| thread.id as u64));
        Ok(())
    })?;
    kept(folder, holder)?;
    descriptors(folder, holder)
}

/// Marks memory that the program keeps from its children, which the holder has: `vma_entry` of `mm-PID.img`.
fn kept(folder: &Path, holder: &Holder) -> Result<()> {
    const MAPPINGS: u32 = 14;
    const ADVICE: u32 = 9;
    const DONT_FORK: u64 = 1 << 10;
    if holder.kept().is_empty() {
        return Ok(());
    }
    edit(folder.join(format!("mm-{}.img", holder.program())), MM, |memory| {
        memory.iter_mut().try_for_each(|memory| {
            memory.edit(MAPPINGS, |mapping| {
                let [start, end] = [1, 2].map(|field| mapping.number(field) as usize);
                let is_kept =
                    holder.kept().iter().any(|kept| kept.start <= start && end <= kept.end());
                if is_kept && start < end {
                    mapping.set(ADVICE, mapping.number(ADVICE) | DONT_FORK);
                }
                Ok(())
            })
        })
    })
}

/// Reads a file of messages, changes them, and writes it.
fn edit(
    path: PathBuf,
    magics: &[u32],
    change: impl FnOnce(&mut [Message]) -> std::result::Result<(), String>,
) -> Result<()> {
    let mut decoded = read(&path, magics)?;
    change(&mut decoded).map_err(|why| corrupt(&path, why))?;
    write(&path, magics, &decoded)
}

fn read(path: &Path, magics: &[u32]) -> Result<Vec<Message>> {
    let bytes = regular::read(path).map_err(|error| file_error(OPERATION, path, error))?;
    let decoded = messages(&bytes, magics)
        .and_then(|messages| messages.into_iter().map(Message::decode).collect());
    decoded.map_err(|why| corrupt(path, why))
}

fn write(path: &Path, magics: &[u32], messages: &[Message]) -> Result<()> {
    let bytes = file_of(magics, messages.iter().map(Message::encode));
    fs::write(path, bytes).map_err(|error| file_error("write a dump", path, error))
}

fn corrupt(path: &Path, why: String) -> Error {
    Error::new(ErrorKind::Corrupt, OPERATION).of_file(path).because(why)
}

/// Writes a file for each thread, with the state of the instant. The holder's gives what a fork copies: credentials,
/// limits, signal handlers.
fn threads(folder: &Path, holder: &Holder) -> Result<()> {
    let path = folder.join(format!("core-{}.img", holder.pid()));
    let cores = read(&path, CORE)?;
    let [core] = &cores[..] else { return Err(corrupt(&path, "it is not one message".into())) };
    for thread in holder.threads() {
        let mut core = core.clone();
        let is_main = thread.id == holder.program();
        let timers = is_main.then(|| holder.timers());
        of_thread(&mut core, thread, timers).map_err(|why| corrupt(&path, why))?;
        write(&folder.join(format!("core-{}.img", thread.id)), CORE, &[core])?;
    }
    fs::remove_file(&path).map_err(|error| file_error(OPERATION, &path, error))
}

/// `core_entry`. The main thread's has the timers of the process.
fn of_thread(
    core: &mut Message,
    thread: &ThreadState,
    timers: Option<&Timers>,
) -> std::result::Result<(), String> {
    const ALIVE: u64 = 1;
    core.edit(2, |info| {
        info.set(1, thread.clear_tid);
        info.edit(2, |registers| {
            of_registers(registers, thread);
            Ok(())
        })?;
        info.edit(3, |vectors| of_vectors(vectors, &thread.vectors))
    })?;
    if let Some(timers) = timers {
        core.edit(3, |process| {
            process.set(1, ALIVE);
            process.set(5, thread.blocked);
            process.set_text(6, &thread.name);
            process.edit(7, |all| {
                of_timers(all, timers);
                Ok(())
            })
        })?;
    } else {
        core.remove(3);
        core.remove(4);
    }
    core.edit(5, |own| {
        own.set(1, thread.robust_list.0);
        own.set(2, thread.robust_list.1);
        own.set(6, thread.blocked);
        own.set_text(13, &thread.name);
        let stack = thread.alternate_stack.ok_or("a thread could not be asked for its stack")?;
        let mut about = Message::default();
        about.set(1, stack.start);
        about.set(2, stack.bytes);
        about.set(3, stack.flags.into());
        own.set_message(7, &about);
        own.remove(15);
        if let Some((address, length, signature)) = thread.rseq {
            let mut rseq = Message::default();
            rseq.set(1, address);
            rseq.set(2, length.into());
            rseq.set(3, signature.into());
            own.set_message(15, &rseq);
        }
        Ok(())
    })
}

/// `task_timers_entry`: three `itimer_entry`, and each `posix_timer_entry`
fn of_timers(entry: &mut Message, timers: &Timers) {
    const POSIX: u32 = 4;
    const SIGEV_THREAD_ID: i32 = 4;
    let of_words = |words: &[u64]| {
        let mut entry = Message::default();
        (1..).zip(words).for_each(|(field, word)| entry.set(field, *word));
        entry
    };
    for (field, timer) in (1..).zip(&timers.interval) {
        entry.set_message(field, &of_words(timer));
    }
    let posix = |timer: &PosixTimer| {
        let numbers = [timer.number, timer.clock, timer.signal, timer.notify].map(|n| n as u64);
        const OVERRUN: u64 = 0;
        let words = [&numbers[..], &[timer.value, OVERRUN], &timer.time].concat();
        let mut entry = of_words(&words);
        if timer.notify & SIGEV_THREAD_ID != 0 {
            entry.set(11, timer.receiver as u64);
        }
        entry
    };
    entry.set_messages(POSIX, timers.posix.iter().map(posix));
}

/// `user_x86_regs_entry`
fn of_registers(entry: &mut Message, thread: &ThreadState) {
    let r = thread.restarted();
    let in_order = [
        [r.r15, r.r14, r.r13, r.r12, r.rbp, r.rbx, r.r11, r.r10, r.r9],
        [r.r8, r.rax, r.rcx, r.rdx, r.rsi, r.rdi, r.orig_rax, r.rip, r.cs],
        [r.eflags, r.rsp, r.ss, r.fs_base, r.gs_base, r.ds, r.es, r.fs, r.gs],
    ];
    for (field, value) in (1..).zip(in_order.concat()) {
        entry.set(field, value);
    }
}

/// `user_x86_fpregs_entry`. Extended state that the holder has is there: as many numbers as CRIU wrote.
fn of_vectors(entry: &mut Message, state: &[u8]) -> std::result::Result<(), String> {
    const HEADER_AT: usize = 512;
    let word = |at: usize, len: usize| {
        let mut bytes = [0; 8];
        bytes[..len].copy_from_slice(state.get(at..at + len)?);
        Some(u64::from_le_bytes(bytes))
    };
    let short = || "the vector registers are cut short".to_owned();
    let words = |at: usize, len: usize, count: usize| {
        let all = (0..count).map(|i| word(at + i * len, len));
        all.collect::<Option<Vec<_>>>().ok_or_else(short)
    };
    let places = [(0, 2), (2, 2), (4, 2), (6, 2), (8, 8), (16, 8), (24, 4), (28, 4)];
    for (field, (at, len)) in (1..).zip(places) {
        entry.set(field, word(at, len).ok_or_else(short)?);
    }
    entry.set_numbers(9, words(32, 4, 32)?);
    entry.set_numbers(10, words(160, 4, 64)?);
    entry.edit(13, |xsave| {
        xsave.set(1, word(HEADER_AT, 8).ok_or_else(short)?);
        // The number of the field, its component, the length of its numbers.
        for (field, component, len) in
            [(2, 2, 4), (3, 3, 8), (4, 4, 8), (5, 5, 8), (6, 6, 8), (7, 7, 8), (8, 9, 4)]
        {
            if let Some(XsaveLayout { offset, bytes }) =
                XsaveLayout::of_component(component).filter(|_| xsave.has(field))
            {
                xsave.set_numbers(field, words(offset, len, bytes / len)?);
            }
        }
        Ok(())
    })
}

/// The state of open files at the instant, by the numbers of their descriptors.
fn descriptors(folder: &Path, holder: &Holder) -> Result<()> {
    let mut numbers = HashMap::new();
    for file in fs::read_dir(folder).map_err(|error| file_error(OPERATION, folder, error))? {
        let name = file.map_err(|error| file_error(OPERATION, folder, error))?.file_name();
        if name.to_str().is_some_and(|name| name.starts_with("fdinfo-")) {
            let entries = read(&folder.join(name), FDINFO)?;
            numbers.extend(entries.iter().map(|entry| (entry.number(1), entry.number(4))));
        }
    }
    let states: HashMap<u64, &DescriptorState> =
        holder.descriptors().iter().map(|state| (state.number as u64, state)).collect();
    edit(folder.join("files.img"), FILES, |files| {
        for file in files {
            let state = numbers.get(&file.number(2)).and_then(|number| states.get(number));
            if let Some(state) = state {
                of_file(file, state)?;
            }
        }
        Ok(())
    })
}

/// `file_entry`
fn of_file(file: &mut Message, state: &DescriptorState) -> std::result::Result<(), String> {
    // `reg_file_entry`
    file.edit(3, |regular| {
        if let Some(offset) = state.number("pos", 10) {
            regular.set(3, offset);
        }
        // It may have grown since, and CRIU would refuse it.
        regular.remove(8);
        Ok(())
    })?;
    // `eventfd_file_entry`
    file.edit(8, |eventfd| {
        if let Some(count) = state.number("eventfd-count", 16) {
            eventfd.set(4, count);
        }
        Ok(())
    })?;
    // `timerfd_entry`
    file.edit(12, |timer| {
        let Some((seconds, nanoseconds)) = state.time("it_value") else { return Ok(()) };
        let is_periodic = timer.number(9) + timer.number(10) > 0;
        // One that has expired, and was not read, would be taken for one that is not set.
        let has_expired = (seconds, nanoseconds) == (0, 0) && is_periodic;
        timer.set(5, state.number("ticks", 10).unwrap_or(0));
        timer.set(7, seconds);
        timer.set(8, if has_expired { 1 } else { nanoseconds });
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_of_files_is_that_of_the_instant() {
        let mut file = Message::default();
        let mut regular = Message::default();
        [(2, 0o2), (3, 900), (8, 4096)]
            .into_iter()
            .for_each(|(field, value)| regular.set(field, value));
        file.set_message(3, &regular);
        let mut eventfd = Message::default();
        eventfd.set(4, 0);
        file.set_message(8, &eventfd);
        let mut timer = Message::default();
        let values = [(7, 9), (8, 9), (9, 1), (10, 0)];
        values.into_iter().for_each(|(field, value)| timer.set(field, value));
        file.set_message(12, &timer);
        let text = "pos:\t77\nflags:\t02\nticks: 3\nit_value: (0, 0)\nit_interval: (1, 0)\neventfd-count:               1f\n";
        of_file(&mut file, &DescriptorState { number: 3, text: text.to_owned() }).unwrap();
        let mut seen = Vec::new();
        let mut see = |message: &mut Message| {
            seen.push([3, 4, 5, 7, 8, 9].map(|field| message.number(field)));
            Ok(())
        };
        file.edit(3, &mut see).unwrap();
        file.edit(8, &mut see).unwrap();
        file.edit(12, &mut see).unwrap();
        assert_eq!(seen, [[77, 0, 0, 0, 0, 0], [0, 0x1f, 0, 0, 0, 0], [0, 0, 3, 0, 1, 1]]);
    }

    #[test]
    fn timers_have_their_entries() {
        let mut timers = Timers::default();
        timers.interval[0] = [1, 2, 3, 4];
        timers.posix.push(PosixTimer {
            number: 5,
            clock: 1,
            signal: 32,
            value: 7,
            notify: 4,
            receiver: 4711,
            time: [10, 20, 30, 40],
        });
        let mut entry = Message::default();
        of_timers(&mut entry, &timers);
        let mut see = |message: &mut Message| {
            let fields: Vec<u64> = (1..=11).map(|field| message.number(field)).collect();
            assert_eq!(fields, [5, 1, 32, 4, 7, 0, 10, 20, 30, 40, 4711]);
            Ok(())
        };
        entry.edit(4, &mut see).unwrap();
        let mut see = |message: &mut Message| {
            assert_eq!([1, 2, 3, 4].map(|field| message.number(field)), [1, 2, 3, 4]);
            Ok(())
        };
        entry.edit(1, &mut see).unwrap();
    }

    #[test]
    fn vectors_are_read_where_the_processor_puts_them() {
        let mut state: Vec<u8> = (0..4096_u32).map(|i| i as u8).collect();
        state[512..520].copy_from_slice(&7_u64.to_le_bytes());
        let (mut entry, mut xsave) = (Message::default(), Message::default());
        xsave.set_numbers(2, [0; 64]);
        entry.set_message(13, &xsave);
        of_vectors(&mut entry, &state).unwrap();
        assert_eq!(entry.numbers(9).next(), Some(0x2322_2120));
        assert_eq!(entry.numbers(10).count(), 64);
        let see = |xsave: &mut Message| {
            assert_eq!(xsave.number(1), 7);
            if let Some(ymm) = XsaveLayout::of_component(2) {
                let first = u32::from_le_bytes(state[ymm.offset..][..4].try_into().unwrap());
                assert_eq!(xsave.numbers(2).next(), Some(first.into()));
                assert_eq!(xsave.numbers(2).count(), 64);
            }
            Ok(())
        };
        entry.edit(13, see).unwrap();
        assert!(of_vectors(&mut entry, &state[..300]).is_err());
    }
}
