//! Makes a stopped thread call the kernel, such that it recovers by itself if this process ends meanwhile.
//!
//! ```text
//!  registers ─▶ call ─▶ "syscall; ret" ─▶ restorer: rt_sigreturn(2) ─▶ the thread's own registers
//!                            │                ▲
//!                            └─ the child ────┴─▶ exit_group(2)
//!
//!  the thread's stack:  … its own │ red zone │ vector registers · answers · child's frame · frame │ ◀─ stack pointer
//! ```
//! Both code sequences are the program's own, of libc or of the vdso. The frames are those of a signal handler that
//! returns: the kernel sets the registers that they say. Normally the thread never gets there: it is stopped behind the
//! call, and its registers, its mask and the bytes under its stack are put back. If this process is killed before, the
//! kernel lets the thread go, which then takes the way of the picture. A child that no process traces ends at once.
//!
//! Nothing is stepped by instructions: the kernel would leave the processor's trap flag on.

use cowslip_sys::hold_point::{self, Exchange, Request};
use cowslip_sys::procfs::{self, Mapping};
use cowslip_sys::ptrace::{Registers, Stop, Tracee};
use cowslip_sys::target::Target;
use cowslip_sys::units::{VirtRange, page_size_bytes};
use cowslip_sys::{AsFd, BorrowedFd, Errno, Result, memfile};
use libc::{
    SYS_accept, SYS_accept4, SYS_clock_nanosleep, SYS_clone, SYS_clone3, SYS_close,
    SYS_epoll_pwait, SYS_epoll_pwait2, SYS_epoll_wait, SYS_exit, SYS_exit_group, SYS_getitimer,
    SYS_madvise, SYS_poll, SYS_ppoll, SYS_prctl, SYS_pselect6, SYS_read, SYS_recvfrom, SYS_recvmsg,
    SYS_restart_syscall, SYS_select, SYS_sigaltstack, SYS_timer_gettime, SYS_wait4, SYS_waitid,
    c_long,
};

use crate::branch::{CLONE_ARGUMENTS_BYTES, arguments_to_start};
use crate::thread::ThreadState;
use crate::timers::{PosixTimer, Timers};

/// `syscall; ret`.
const CALL: &[u8] = &[0x0f, 0x05, 0xc3];
/// `mov $15, %rax; syscall`: the end of each signal handler.
const RESTORER: &[u8] = &[0x48, 0xc7, 0xc0, 0x0f, 0x00, 0x00, 0x00, 0x0f, 0x05];

/// [`LEFT_ALONE`], of a child that ended because no process traced it.
const LEFT_ALONE: u64 = hold_point::LEFT_ALONE as u64;

const RED_ZONE_BYTES: u64 = 128;
/// A frame: the restorer's address, and `struct ucontext` of the kernel.
const FRAME_BYTES: usize = 8 + 304;
pub(crate) const FRAME_PLACE: usize = FRAME_BYTES.next_multiple_of(64);
/// Room behind the frames, for answers that the kernel writes to memory.
const ANSWERS_AT: usize = 2 * FRAME_PLACE;
const ANSWERS_BYTES: usize = 192;
const VECTORS_AT: usize = ANSWERS_AT + ANSWERS_BYTES;
/// The size of the vector registers' area is not known before: with tiles it is 11 KiB.
const MOST_BYTES: u64 = 16 << 10;

/// Code of a program that an injection needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Sites {
    call: u64,
    restorer: u64,
}

impl Sites {
    /// The registers with which a thread that has others makes a call.
    pub(crate) fn call(&self, now: &Registers, number: c_long, arguments: [u64; 6]) -> Registers {
        let [rdi, rsi, rdx, r10, r8, r9] = arguments;
        // No call is to be restarted.
        let orig_rax = u64::MAX;
        let (rip, rax) = (self.call, number as u64);
        Registers { rip, rax, orig_rax, rdi, rsi, rdx, r10, r8, r9, ..*now }
    }

    /// Fails with `ESRCH` unless the code is there: the program may have another image since (`execve(2)`).
    fn check(&self, memory: BorrowedFd<'_>) -> Result<()> {
        for (place, code) in [(self.call, CALL), (self.restorer, RESTORER)] {
            let mut bytes = [0; RESTORER.len()];
            let bytes = &mut bytes[..code.len()];
            let read = memfile::read_exact_at(memory, bytes, place);
            if read.is_err() || *bytes != *code {
                return Err(Errno::SRCH);
            }
        }
        Ok(())
    }

    /// Searches the executable files that the program has mapped; `None` if one of the two is not there.
    pub(crate) fn find(target: &Target, maps: &str) -> Result<Option<Self>> {
        let memory = target.open_file("mem")?;
        let is_code = |mapping: &Mapping<'_>| {
            mapping.protection == 5 && (mapping.has_file || mapping.name == "[vdso]")
        };
        let mut mappings: Vec<_> = procfs::mappings(maps).filter(is_code).collect();
        // Short ones first: all have these few bytes, if any has.
        mappings.sort_by_key(|mapping| mapping.range.len);
        let (mut call, mut restorer) = (None, None);
        for mapping in mappings {
            let mut code = vec![0; mapping.range.len];
            // A part of a file that was cut short cannot be read.
            if memfile::read_exact_at(memory.as_fd(), &mut code, mapping.range.start as u64)
                .is_err()
            {
                continue;
            }
            let place = |bytes: &[u8]| {
                let at = code.windows(bytes.len()).position(|window| window == bytes)?;
                Some((mapping.range.start + at) as u64)
            };
            call = call.or_else(|| place(CALL));
            restorer = restorer.or_else(|| place(RESTORER));
            if let (Some(call), Some(restorer)) = (call, restorer) {
                return Ok(Some(Self { call, restorer }));
            }
        }
        Ok(None)
    }
}

/// The end of free memory for the frames of a stopped thread's call: under its own stack, or else under the main thread's, if
/// that is stopped, too. `None` in a restartable sequence, which the call would end without the program's knowledge.
pub(crate) fn room(
    tracee: &Tracee,
    main_rsp: Option<u64>,
    maps: &str,
    memory: BorrowedFd<'_>,
) -> Option<u64> {
    let now = tracee.registers().ok()?;
    if abort_of_sequence(tracee, now.rip, memory).is_some() {
        return None;
    }
    under_own_stack(now.rsp, maps).or_else(|| under_main_stack(main_rsp?, maps))
}

/// Like [`room`], with `bytes` more for a function that the thread calls. The kernel enlarges the main thread's stack, up to
/// `most_bytes`.
pub(crate) fn room_for_function(
    tracee: &Tracee,
    maps: &str,
    memory: BorrowedFd<'_>,
    bytes: u64,
    most_bytes: u64,
) -> Option<u64> {
    let end = room(tracee, None, maps, memory)?;
    let lowest = end.saturating_sub(MOST_BYTES + bytes);
    let stack = procfs::mappings(maps).find(|mapping| mapping.range.contains(end as usize))?;
    let may_grow = stack.name == "[stack]" && stack.range.end() as u64 - lowest < most_bytes;
    (may_grow || stack.range.contains(lowest as usize)).then_some(end)
}

/// The place of the frames under the end of free memory; `None` if they are too large for it.
fn frames_under(room: u64, vectors_bytes: usize) -> Option<u64> {
    const ALIGNMENT: u64 = 64;
    let len = VECTORS_AT as u64 + vectors_bytes as u64 + 4;
    if len + 2 * ALIGNMENT > MOST_BYTES {
        return None;
    }
    let at = (room - len) & !(ALIGNMENT - 1);
    // CRIU 4.2 takes all memory of a thread for its stack, if its stack pointer is the start of a page.
    let is_start = (at + FRAME_PLACE as u64).is_multiple_of(page_size_bytes() as u64);
    Some(if is_start { at - ALIGNMENT } else { at })
}

/// The room under a thread's stack: the main thread's own, or one with a guard below. A stack that a program cut out of its
/// heap has other content below.
fn under_own_stack(rsp: u64, maps: &str) -> Option<u64> {
    /// Longer ones are heaps to come.
    const LONGEST_GUARD_BYTES: usize = 1 << 20;
    let end = rsp.saturating_sub(RED_ZONE_BYTES);
    let mut guard_end = 0;
    for mapping in procfs::mappings(maps) {
        if mapping.range.contains(rsp as usize) {
            // A stack in shared memory is written by others, too.
            let is_stack = mapping.is_private
                && (mapping.name == "[stack]" || mapping.range.start == guard_end);
            let fits = mapping.range.contains(end.saturating_sub(MOST_BYTES) as usize);
            return (is_stack && fits).then_some(end);
        }
        if !mapping.is_accessible && mapping.range.len <= LONGEST_GUARD_BYTES {
            guard_end = mapping.range.end();
        }
    }
    None
}

/// The lowest part of the main thread's stack, far from its stack pointer. Go's threads run on stacks in its heap, and the main
/// thread on the kernel's only now and then.
fn under_main_stack(main_rsp: u64, maps: &str) -> Option<u64> {
    const DISTANCE_BYTES: u64 = 16 << 10;
    let stack = procfs::mappings(maps).find(|mapping| mapping.name == "[stack]")?.range;
    let end = stack.start as u64 + MOST_BYTES;
    let is_far = !stack.contains(main_rsp as usize) || end + DISTANCE_BYTES <= main_rsp;
    (is_far && end + DISTANCE_BYTES <= stack.end() as u64).then_some(end)
}

/// The address at which a thread goes on that is interrupted in a restartable sequence (`rseq(2)`); `None` outside of one.
pub(crate) fn abort_of_sequence(tracee: &Tracee, rip: u64, memory: BorrowedFd<'_>) -> Option<u64> {
    /// `rseq_cs` in `struct rseq`
    const SEQUENCE_AT: u64 = 8;
    let words = |at: u64| {
        let mut bytes = [0; 32];
        memfile::read_exact_at(memory, &mut bytes, at).ok()?;
        Some(core::array::from_fn(|i| {
            u64::from_ne_bytes(bytes[8 * i..][..8].try_into().expect("8 bytes"))
        }))
    };
    let (address, ..) = tracee.rseq().ok()??;
    let [sequence, ..]: [u64; 4] = words(address + SEQUENCE_AT)?;
    if sequence == 0 {
        return None;
    }
    // `struct rseq_cs`: version and flags, start, length, abort.
    let [_, start, len, abort]: [u64; 4] = words(sequence)?;
    (rip.wrapping_sub(start) < len).then_some(abort)
}

/// A thread that is to make a call, and what it has to get back.
pub(crate) struct Injection<'a> {
    tracee: &'a mut Tracee,
    memory: BorrowedFd<'a>,
    sites: Sites,
    registers: Registers,
    mask: u64,
    at: u64,
    saved: Vec<u8>,
    /// The thread has its own registers.
    is_itself: bool,
}

impl<'a> Injection<'a> {
    /// Writes the frames of a stopped thread into its [room].
    pub(crate) fn prepare(
        tracee: &'a mut Tracee,
        room: u64,
        memory: BorrowedFd<'a>,
        sites: Sites,
    ) -> Result<Self> {
        Self::prepare_waiting(tracee, room, memory, sites, None)
    }

    /// Like [`prepare`](Self::prepare), of a thread that waits in a call with a time limit, as it was seen before.
    pub(crate) fn prepare_waiting(
        tracee: &'a mut Tracee,
        room: u64,
        memory: BorrowedFd<'a>,
        sites: Sites,
        waits_in: Option<Registers>,
    ) -> Result<Self> {
        sites.check(memory)?;
        let (registers, mask) = (tracee.registers()?, tracee.blocked_signals()?);
        let vectors = tracee.extended_state()?;
        let at = frames_under(room, vectors.len()).ok_or(Errno::NOMEM)?;
        let vectors_at = at + VECTORS_AT as u64;
        let mut bytes = frame(&sites, &after_restart(registers, waits_in), mask, vectors_at);
        bytes.resize(FRAME_PLACE, 0);
        let ends = sites.call(&registers, SYS_exit_group, [LEFT_ALONE, 0, 0, 0, 0, 0]);
        bytes.extend(frame(&sites, &ends, !0, 0));
        bytes.resize(VECTORS_AT, 0);
        bytes.extend(saved_vectors(vectors));
        let mut saved = vec![0; bytes.len()];
        memfile::read_exact_at(memory, &mut saved, at)?;
        let injection = Self { tracee, memory, sites, registers, mask, at, saved, is_itself: true };
        memfile::write_at(memory, &bytes, at)?;
        Ok(injection)
    }

    /// Forks. The child is seized, and stops before it runs; let go, it would end. It has memory that is `kept` from other
    /// children, too. A thread that ends here leaves that to its next children.
    pub(crate) fn fork(mut self, kept: &[VirtRange]) -> Result<Tracee> {
        const DONT_FORK: u64 = 10;
        const DO_FORK: u64 = 11;
        let advise = |injection: &mut Self, advice| {
            kept.iter().try_for_each(|range| {
                let [start, len] = [range.start as u64, range.len as u64];
                injection.call(SYS_madvise, [start, len, advice, 0]).map(drop)
            })
        };
        let child_stack = self.at + FRAME_PLACE as u64;
        let forked =
            advise(&mut self, DO_FORK).and_then(|()| self.call(SYS_clone, [0, child_stack, 0, 0]));
        advise(&mut self, DONT_FORK)?;
        match forked? {
            (1.., Some(child)) => Ok(child),
            (answer, _) => Err(Errno::from_raw_os_error(i32::try_from(-answer).unwrap_or(0))),
        }
    }

    /// Asks the kernel for the process' timers. Of those of `timer_create(2)` it fills in the times.
    pub(crate) fn timers(&mut self, posix: Vec<PosixTimer>) -> Result<Timers> {
        let place = self.at + ANSWERS_AT as u64;
        let mut timers = Timers { posix, ..Timers::default() };
        for (number, timer) in (0..).zip(&mut timers.interval) {
            self.call(SYS_getitimer, [number, place, 0, 0])?;
            *timer = self.time(place)?;
        }
        for timer in &mut timers.posix {
            // One that has been deleted since has no time.
            self.call(SYS_timer_gettime, [timer.number as u64, place, 0, 0])?;
            timer.time = self.time(place)?;
        }
        Ok(timers)
    }

    /// The interval and the time left that the kernel has written there.
    fn time(&self, place: u64) -> Result<[u64; 4]> {
        let mut bytes = [0; 32];
        memfile::read_exact_at(self.memory, &mut bytes, place)?;
        memfile::write_at(self.memory, &[0; 32], place)?;
        let mut words = bytes.chunks(8);
        let mut time = [0; 4].map(|_: u64| {
            u64::from_ne_bytes(words.next().expect("4 words").try_into().expect("8 bytes"))
        });
        // It has expired, and begins anew once its signal is taken. Nothing left would stop it.
        if time[..2] != [0; 2] && time[2..] == [0; 2] {
            time[3] = 1;
        }
        Ok(time)
    }

    /// Asks the kernel for the state that it tells a thread alone.
    pub(crate) fn ask(mut self) -> Result<Answers> {
        const GET_TID_ADDRESS: u64 = 40;
        let place = self.at + ANSWERS_AT as u64;
        let (stack, _) = self.call(SYS_sigaltstack, [0, place, 0, 0])?;
        let (clear_tid, _) = self.call(SYS_prctl, [GET_TID_ADDRESS, place + 24, 0, 0])?;
        let mut bytes = [0; 32];
        memfile::read_exact_at(self.memory, &mut bytes, place)?;
        let word = |at: usize| u64::from_ne_bytes(bytes[at..][..8].try_into().expect("8 bytes"));
        let known_stack = AlternateStack { start: word(0), bytes: word(16), flags: word(8) as u32 };
        let is_waiting = self.registers.rax as i64 == ERESTART_RESTARTBLOCK;
        Ok(Answers {
            waits_in: is_waiting.then_some(self.registers),
            alternate_stack: (stack == 0).then_some(known_stack),
            clear_tid: (clear_tid == 0).then(|| word(24)),
        })
    }

    /// Starts a thread that the program had, with its number: it is stopped (`clone3(2)`). Let go, it would end.
    pub(crate) fn start(&mut self, thread: &ThreadState) -> Result<Tracee> {
        let (number_at, stack_end) = (self.at + ANSWERS_AT as u64, self.at + FRAME_PLACE as u64);
        let arguments_at = number_at + 8;
        let words = arguments_to_start(thread, number_at, stack_end);
        let words = [&[thread.id as u64], &words[..]].concat();
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        debug_assert!(bytes.len() <= ANSWERS_BYTES);
        memfile::write_at(self.memory, &bytes, number_at)?;
        let ends = self.sites.call(&self.registers, SYS_exit, [0; 6]);
        memfile::write_at(self.memory, &frame(&self.sites, &ends, !0, 0), stack_end)?;
        match self.call(SYS_clone3, [arguments_at, CLONE_ARGUMENTS_BYTES, 0, 0])? {
            (1.., Some(mut started)) => {
                started.wait_long()?;
                if started.has_ended() { Err(Errno::SRCH) } else { Ok(started) }
            }
            (answer, _) => Err(Errno::from_raw_os_error(i32::try_from(-answer).unwrap_or(0))),
        }
    }

    /// Makes calls that change the process; ends with the first that fails.
    pub(crate) fn make<const N: usize>(mut self, calls: &[(c_long, [u64; N])]) -> Result<()> {
        for (number, arguments) in calls {
            // A descriptor is closed even if its file could not be written (`close(2)`).
            if let (errno @ -4095..0, _) = self.call(*number, *arguments)?
                && *number != SYS_close
            {
                return Err(Errno::from_raw_os_error(-errno as i32));
            }
        }
        Ok(())
    }

    /// Makes the thread call a function of the program with the address of an [`Exchange`], and lets it go on. It returns to
    /// its own registers by itself.
    pub(crate) fn enter(mut self, function: u64, request: Request) -> Result<Entered> {
        /// The flag that makes string instructions go backwards, and the trap flag.
        const NO_FUNCTION_HAS: u64 = 1 << 10 | 1 << 8;
        const { assert!(Exchange::BYTES <= ANSWERS_BYTES) };
        let exchange = self.at + ANSWERS_AT as u64;
        let asked = Exchange::asked(request, is_in_wait(&self.registers));
        memfile::write_at(self.memory, &asked, exchange)?;
        // The function returns to a `ret`, and that to the restorer: a function begins with its stack aligned so.
        let (rsp, to) = (self.at - 8, self.sites.call + CALL.len() as u64 - 1);
        memfile::write_at(self.memory, &to.to_ne_bytes(), rsp)?;
        let now = self.registers;
        let (eflags, orig_rax) = (now.eflags & !NO_FUNCTION_HAS, u64::MAX);
        let entered =
            Registers { rip: function, rsp, rdi: exchange, rax: 0, orig_rax, eflags, ..now };
        self.is_itself = false;
        self.tracee.set_registers(&entered)?;
        self.tracee.set_blocked_signals(!0)?;
        self.tracee.go_on_alone()?;
        Ok(Entered { exchange, child_stack: self.at + FRAME_PLACE as u64 })
    }

    /// Waits for children that have ended.
    pub(crate) fn reap(mut self, children: &[i32]) -> Result<()> {
        // __WALL | WNOHANG
        let how = 0x4000_0001;
        children
            .iter()
            .try_for_each(|child| self.call(SYS_wait4, [*child as u64, 0, how, 0]).map(drop))
    }

    /// Makes one call. The frames stay as they are until this is dropped.
    fn call<const N: usize>(
        &mut self,
        number: c_long,
        given: [u64; N],
    ) -> Result<(i64, Option<Tracee>)> {
        let mut arguments = [0; 6];
        arguments[..N].copy_from_slice(&given);
        let injected =
            Registers { rsp: self.at, ..self.sites.call(&self.registers, number, arguments) };
        // Before the mask: the frame has the thread's own.
        self.is_itself = false;
        self.tracee.set_registers(&injected)?;
        let answer = self.run();
        let back = self.put_back();
        self.is_itself = back.is_ok();
        let answer = answer?;
        back.map(|()| answer)
    }

    fn run(&mut self) -> Result<(i64, Option<Tracee>)> {
        self.tracee.set_blocked_signals(!0)?;
        self.tracee.trace_clones(true)?;
        let answer = through_call(self.tracee)?;
        self.tracee.trace_clones(false)?;
        // The kernel restarts an interrupted call only behind a stop for a signal, or for an interrupt.
        self.tracee.interrupt()?;
        self.tracee.go_on()?;
        loop {
            match self.tracee.wait_long()? {
                Stop::Ended => return Err(Errno::SRCH),
                Stop::Asked | Stop::WithAll => return Ok(answer),
                _ => self.tracee.go_on()?,
            }
        }
    }

    fn put_back(&mut self) -> Result<()> {
        // The mask first: with these registers the thread would get its own from the frame.
        self.tracee.set_blocked_signals(self.mask)?;
        self.tracee.set_registers(&self.registers)
    }
}

/// Returns true if these are the registers of a thread in, or just behind, a call by which a program waits for events, or in
/// one that waits for a pipe, a child or a time. No allocator and no lock of its own is in use around such a call.
fn is_in_wait(registers: &Registers) -> bool {
    const MAY_WAIT: [c_long; 6] =
        [SYS_read, SYS_recvfrom, SYS_recvmsg, SYS_wait4, SYS_waitid, SYS_clock_nanosleep];
    const WAITS: [c_long; 9] = [
        SYS_poll,
        SYS_ppoll,
        SYS_select,
        SYS_pselect6,
        SYS_epoll_wait,
        SYS_epoll_pwait,
        SYS_epoll_pwait2,
        SYS_accept,
        SYS_accept4,
    ];
    let call = registers.orig_rax as c_long;
    WAITS.contains(&call) || (MAY_WAIT.contains(&call) && is_interrupted(registers))
}

/// Places on the stack of a thread that is in a [function](Injection::enter).
pub(crate) struct Entered {
    /// The function's argument.
    pub(crate) exchange: u64,
    child_stack: u64,
}

impl Entered {
    /// Gives a child that the function has forked, and that is stopped, the registers of one that an
    /// [injection](Injection::fork) has forked.
    pub(crate) fn set_child(&self, child: &Tracee, sites: Sites) -> Result<()> {
        let rip = sites.call + CALL.len() as u64 - 1;
        let (rsp, rax, orig_rax) = (self.child_stack, 0, u64::MAX);
        child.set_registers(&Registers { rip, rsp, rax, orig_rax, ..child.registers()? })
    }
}

/// Lets a stopped thread make the call that its registers say, and stops it behind the call. Returns the answer, and the task
/// that the call started.
pub(crate) fn through_call(tracee: &mut Tracee) -> Result<(i64, Option<Tracee>)> {
    let (mut calls, mut started) = (0, None);
    while calls < 2 {
        tracee.go_on_to_call()?;
        match tracee.wait_long()? {
            Stop::Call => calls += 1,
            Stop::Cloned => started = Some(Tracee::cloned(tracee.event_message()? as i32)),
            Stop::Ended => return Err(Errno::SRCH),
            Stop::Asked | Stop::WithAll | Stop::Signal(_) => {}
        }
    }
    Ok((tracee.registers()?.rax as i64, started))
}

impl Drop for Injection<'_> {
    fn drop(&mut self) {
        // Otherwise it takes the way of the picture. What stays is below the red zone: the program does not miss the bytes.
        if self.is_itself {
            let _ = memfile::write_at(self.memory, &self.saved, self.at);
        }
    }
}

/// An alternate stack for signal handlers (`sigaltstack(2)`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AlternateStack {
    /// Its lowest address.
    pub start: u64,
    /// Its length.
    pub bytes: u64,
    /// `SS_ONSTACK`, `SS_DISABLE`, `SS_AUTODISARM`.
    pub flags: u32,
}

/// What the kernel tells a thread alone; `None` where it refuses.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Answers {
    pub(crate) alternate_stack: Option<AlternateStack>,
    pub(crate) clear_tid: Option<u64>,
    /// The registers in a call that it waits in with a time limit: the kernel goes on with such a call by another number.
    pub(crate) waits_in: Option<Registers>,
}

/// Prepares a forked child, which is stopped, to be let go: it waits in a call until another process stops it. After an
/// interruption that is none of the kernel's own, or when nothing has stopped it for a while, it ends.
pub(crate) fn let_wait(child: &Tracee, sites: Sites) -> Result<()> {
    const MOST_MS: u64 = 60_000;
    let now = child.registers()?;
    child.set_registers(&sites.call(&now, SYS_poll, [0, 0, MOST_MS, 0, 0, 0]))
}

/// Returns true if `/proc/PID/stat` is that of a child that an [injection](Injection::fork) made, and that has been left alone or
/// killed: also by a fault, where another process that had it was killed. Its parent never waits for it.
pub(crate) fn was_left_alone(stat: &str) -> bool {
    /// `SIGILL`, `SIGTRAP`, `SIGBUS`, `SIGKILL`, `SIGSEGV`
    const KILLED: [u64; 5] = [4, 5, 7, 9, 11];
    const CORE_DUMPED: u64 = 0x80;
    const STATE: usize = 3;
    const EXIT_SIGNAL: usize = 38;
    const EXIT_CODE: usize = 52;
    let Some(end) = stat.rfind(')') else { return false };
    let words: Vec<&str> = stat[end + 1..].split_ascii_whitespace().collect();
    let field = |number: usize| words.get(number - STATE).copied().unwrap_or("");
    let Ok(code) = field(EXIT_CODE).parse::<u64>() else { return false };
    let has_fallen = KILLED.contains(&(code & !CORE_DUMPED)) || code == LEFT_ALONE << 8;
    (field(STATE), field(EXIT_SIGNAL)) == ("Z", "0") && has_fallen
}

const ERESTART_RESTARTBLOCK: i64 = -516;
/// `ERESTARTSYS`, `ERESTARTNOINTR`, `ERESTARTNOHAND`, `ERESTART_RESTARTBLOCK`
const BEGINS_ANEW: [i64; 4] = [-512, -513, -514, ERESTART_RESTARTBLOCK];

/// Returns true if these are the registers of a thread in a call that begins anew.
fn is_interrupted(registers: &Registers) -> bool {
    registers.orig_rax as i64 >= 0 && BEGINS_ANEW.contains(&(registers.rax as i64))
}

/// The registers with which an interrupted call begins anew. One with a relative time limit has all of its time again. If the
/// kernel had gone on with it by `restart_syscall(2)`, and its number is not known, it fails with `EINTR`.
pub(crate) fn after_restart(mut registers: Registers, waits_in: Option<Registers>) -> Registers {
    const RESTART_SYSCALL: u64 = SYS_restart_syscall as u64;
    if !is_interrupted(&registers) {
        return registers;
    }
    let place = |r: &Registers| [r.rip, r.rsp, r.rdi, r.rsi, r.rdx, r.r10, r.r8, r.r9];
    let same = waits_in.filter(|before| place(before) == place(&registers));
    let number = match registers.orig_rax {
        RESTART_SYSCALL => same.map_or(RESTART_SYSCALL, |before| before.orig_rax),
        number => number,
    };
    match number {
        RESTART_SYSCALL => {
            registers.rax = -i64::from(Errno::INTR.raw_os_error()) as u64;
        }
        number => {
            registers.rax = number;
            registers.rip -= CALL.len() as u64 - 1;
        }
    }
    registers
}

/// What a signal handler returns to: `struct rt_sigframe` of `arch/x86/include/asm/sigframe.h`, without `siginfo_t`.
pub(crate) fn frame(sites: &Sites, registers: &Registers, mask: u64, vectors_at: u64) -> Vec<u8> {
    /// `UC_FP_XSTATE | UC_SIGCONTEXT_SS | UC_STRICT_RESTORE_SS`
    const FLAGS: u64 = 7;
    /// No such flags: the kernel leaves the alternate stack alone (`do_sigaltstack`).
    const NO_STACK: u64 = 7;
    let r = registers;
    let segments = r.cs & 0xffff | (r.gs & 0xffff) << 16 | (r.fs & 0xffff) << 32 | r.ss << 48;
    let words: [&[u64]; 6] = [
        &[sites.restorer, FLAGS, 0, 0, NO_STACK, 0],
        &[r.r8, r.r9, r.r10, r.r11, r.r12, r.r13, r.r14, r.r15],
        &[r.rdi, r.rsi, r.rbp, r.rbx, r.rdx, r.rax, r.rcx, r.rsp, r.rip, r.eflags],
        &[segments, 0, 0, 0, 0, vectors_at],
        &[0; 8],
        &[mask],
    ];
    words.concat().iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// Vector registers, in the format in which a signal handler's frame has them: with `struct _fpx_sw_bytes`.
fn saved_vectors(mut state: Vec<u8>) -> Vec<u8> {
    const SOFTWARE_AT: usize = 464;
    const BEGIN: u32 = 0x4650_5853;
    const END: u32 = 0x4650_5845;
    let size = state.len() as u32;
    let features: [u8; 8] = state[SOFTWARE_AT..][..8].try_into().expect("eight bytes");
    let about = [BEGIN.to_ne_bytes(), (size + 4).to_ne_bytes()].concat();
    state[SOFTWARE_AT..][..8].copy_from_slice(&about);
    state[SOFTWARE_AT + 8..][..8].copy_from_slice(&features);
    state[SOFTWARE_AT + 16..][..4].copy_from_slice(&size.to_ne_bytes());
    state.extend(END.to_ne_bytes());
    state
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_stack_pointer_is_the_start_of_a_page() {
        let page = page_size_bytes() as u64;
        for room in (8 * page..9 * page).step_by(8) {
            for vectors_bytes in [512, 2696, 11008] {
                let at = frames_under(room, vectors_bytes).unwrap();
                let len = (VECTORS_AT + vectors_bytes) as u64;
                assert!(at + len < room && room - MOST_BYTES <= at, "{at:#x} under {room:#x}");
                assert!(at.is_multiple_of(64) && !(at + FRAME_PLACE as u64).is_multiple_of(page));
            }
        }
        assert_eq!(frames_under(8 * page, MOST_BYTES as usize), None);
    }
}
