//! Takes a program back to the instant of its holder, in place.
//!
//! ```text
//!  stop all ─▶ threads, files, ─no─▶ memory that is gone ─▶ new ones end ─▶ pages that differ ─▶ registers, offsets ─▶ go on
//!  threads     descriptors gone?     is mapped again         └──── the program ends if this process does ────┘
//!                yes: refused, and it goes on; threads are started again, if asked for
//! ```
//! A page that the program and the holder still share, by the number of its frame, has not been written. Without the right to
//! see these numbers both pages are read.
//!
//! Arenas of a program under `cowslip run` are taken back by its library ([`arenas`]), before any new thread ends.

mod arenas;
mod mappings;
mod memory;
mod threads;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::time::{Duration, Instant};

use cowslip_sys::error::{During, Error, ErrorKind, Result};
use cowslip_sys::ptrace::Tracee;
use cowslip_sys::target::Target;
use cowslip_sys::{AsFd, BorrowedFd, Errno, OwnedFd, packets};
use libc::{SYS_close, SYS_close_range};

use crate::branch::{Caller, memory_of, set_state};
use crate::descriptors::{self, DescriptorState};
use crate::hold::{Holder, Service, with_room};
use crate::inject::Injection;
use crate::kept::missing;
use crate::library::without;
use crate::look::{Plan, failed, is_filtered};
use crate::stop::Threads;
use crate::thread::ThreadState;
use arenas::Arenas;
use mappings::Changes;
use threads::refuse_ended;

const OPERATION: &str = "roll back a process";

/// An instant of a program to which it can be taken back, any number of times.
#[derive(Debug)]
pub struct Mark {
    holder: Holder,
    /// The descriptors of the instant, but for the library's, and the names of their files.
    links: BTreeMap<i32, String>,
}

/// A program that stands still, and is about to go back.
struct Prepared<'a> {
    /// The mappings of then and now, but for the library's.
    then: String,
    now: String,
    /// The calls for those of then.
    back: mappings::Calls,
    ended: Vec<&'a ThreadState>,
    /// The same, started again.
    started: Vec<Tracee>,
}

/// The effect of a [rollback](Mark::roll_back).
#[derive(Clone, Copy, Debug)]
pub struct RolledBack {
    /// The memory that was written.
    pub bytes: u64,
    /// The time for which the program stood still.
    pub pause: Duration,
}

impl Plan {
    /// Holds the process, so that it can be taken back to the instant.
    ///
    /// # Errors
    /// Those of [`Self::hold`]; [`ErrorKind::Unsupported`] for a program under `cowslip run` some of whose memory has left its
    /// arenas.
    pub fn mark(mut self) -> Result<Mark> {
        self.is_mark = true;
        Mark::new(self.hold()?)
    }
}

impl Mark {
    /// Keeps the instant of a holder. It closes the holder's files: connections are the program's to close.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] if the holder is [lent](Holder::lend); [`ErrorKind::Unsupported`] for a program under `cowslip run`,
    /// which must be [marked](Plan::mark) at once.
    pub fn new(mut holder: Holder) -> Result<Self> {
        let operation = "mark a process";
        let pid = holder.pid();
        let mut links: BTreeMap<_, _> =
            descriptors::links(pid).during(operation)?.into_iter().collect();
        if let Some(library) = holder.library() {
            if holder.services().is_none() {
                return Err(Error::new(ErrorKind::Unsupported, operation)
                    .because("it is under cowslip run, whose library kept no view of that instant")
                    .advise("mark it without holding it first"));
            }
            let memory = holder.both().1.open_memory().during(operation)?;
            let own = library.descriptors(memory.as_fd()).during(operation)?;
            own.iter().for_each(|number| _ = links.remove(number));
        }
        let sites = holder.sites();
        let child = holder
            .stopped()
            .ok_or_else(|| Error::new(ErrorKind::Busy, operation).because("the holder is lent"))?;
        child.take_over().during(operation)?;
        let (_, memory) = memory_of(child).during(operation)?;
        let mut caller = Caller::new(child, &memory, sites).during(operation)?;
        caller.call(SYS_close_range, &[0, u32::MAX.into(), 0]).during(operation)?;
        Ok(Self { holder, links })
    }

    /// The library's threads at the instant.
    fn services(&self) -> &[Service] {
        self.holder.services().unwrap_or_default()
    }

    /// The instant.
    pub fn holder(&self) -> &Holder {
        &self.holder
    }

    /// Takes the program back. Memory, registers, signal masks, offsets of files and counts of eventfds are then those of the
    /// instant. Content of files, of pipes and of sockets, and timers, stay.
    ///
    /// Memory that was unmapped since is mapped again, threads that have ended are started again if `starts_ended`.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if threads, mappings of files or descriptors that it had then are gone;
    /// [`ErrorKind::Denied`] if it may not give a thread its number; [`ErrorKind::Vanished`] once it has ended. It goes on as it
    /// is. If it cannot be made whole, which is not expected, the program ends.
    pub fn roll_back(&self, starts_ended: bool) -> Result<RolledBack> {
        let (target, held) = self.holder.both();
        let memory = target.open_memory().map_err(failed)?;
        let mut threads = Threads::seize(target.pid()).map_err(failed)?;
        let arenas = match self.holder.library() {
            Some(library) => {
                Some(Arenas::ask(&self.holder, memory.as_fd(), library, &mut threads)?)
            }
            None => None,
        };
        let began = arenas.as_ref().map_or_else(Instant::now, |arenas| arenas.began);
        if arenas.is_none() {
            threads.stop().map_err(failed)?;
        }
        let ready = self.prepare(&mut threads, &memory, arenas.as_ref(), starts_ended);
        let taken = ready.and_then(|mut ready| {
            let own = match (&arenas, self.holder.library()) {
                (Some(arenas), Some(library)) => arenas.take_back(&mut threads, library, target),
                _ => Ok(Vec::new()),
            };
            let own = own.inspect_err(|_| {
                ready.started.iter_mut().for_each(|tracee| _ = self.end_thread(tracee));
            })?;
            Ok((ready, own))
        });
        let (Prepared { then, now, back, ended, mut started }, own) = taken.inspect_err(|_| {
            arenas.iter().for_each(|arenas| _ = arenas.cancel(&mut threads));
        })?;
        // From here on it is neither as then nor as now.
        let changed = self.end_new(&mut threads).and_then(|()| {
            let injection = self.injection(&mut threads, &now, memory.as_fd())?;
            let opened = self.opened_since(&own)?;
            let closing = opened.map(|number| (SYS_close, [number as u64, 0, 0, 0]));
            let calls: Vec<_> = back.into_iter().chain(closing).collect();
            injection.make(&calls).during(OPERATION)?;
            // The one that made the calls has been let go of in part.
            threads.all.iter().chain(&started).try_for_each(Tracee::take_over).map_err(failed)?;
            let bytes = memory::copy_back(held, target, &then, &now).during(OPERATION)?;
            let mut services = self.services().iter();
            services.try_for_each(|service| service.put_back(memory.as_fd())).map_err(failed)?;
            self.equip(&mut started, &ended, &memory).during("start threads again")?;
            threads.all.append(&mut started);
            self.write_state(&threads).map(|()| bytes)
        });
        let bytes = changed.inspect_err(|_| _ = target.end())?;
        threads.go_on();
        Ok(RolledBack { bytes, pause: began.elapsed() })
    }

    /// Does all that can be refused, while the program stands still: it can go on as it is.
    fn prepare(
        &self,
        threads: &mut Threads,
        memory: &OwnedFd,
        arenas: Option<&Arenas<'_>>,
        starts_ended: bool,
    ) -> Result<Prepared<'_>> {
        let (target, held) = self.holder.both();
        let status = target.read_file("status").map_err(failed)?;
        let ended = self.ended(threads);
        if !ended.is_empty() {
            refuse_ended(&ended, starts_ended, &status)?;
        }
        if is_filtered(&status) {
            return Err(refused("it has a filter of calls since (seccomp(2))".into()));
        }
        let maps = |process: &Target| {
            let maps = process.read_file("maps").map_err(failed)?;
            Ok(arenas.map_or(maps.clone(), |arenas| without(&maps, &arenas.own_memory)))
        };
        let (then, now): (Result<_>, Result<_>) = (maps(held), maps(target));
        let (then, now) = (then?, now?);
        let Changes { again, back } = mappings::changes(&then, &now).map_err(refused)?;
        let own = arenas.map_or(&[][..], |arenas| &arenas.own_descriptors);
        self.opened_since(own).map(drop)?;
        self.refuse_other_files()?;
        self.injection(threads, &now, memory.as_fd())?
            .make(&again)
            .during("map memory that was unmapped")?;
        if !again.is_empty()
            && let Some(range) = missing(&then, &maps(target)?).first()
        {
            return Err(refused(format!("memory was unmapped since: {range}")));
        }
        let started = self.start(threads, &ended, &now, memory.as_fd())?;
        Ok(Prepared { then, now, back, ended, started })
    }

    /// A thread of then that makes calls.
    fn injection<'a>(
        &self,
        threads: &'a mut Threads,
        maps: &str,
        memory: BorrowedFd<'a>,
    ) -> Result<Injection<'a>> {
        let (caller, room) =
            with_room(threads, maps, memory, |tracee| self.state_of(tracee).is_some())
                .ok_or_else(|| refused("none of its threads has room for a call".into()))?;
        Injection::prepare(caller, room, memory, self.holder.sites()).map_err(failed)
    }

    fn state_of(&self, tracee: &Tracee) -> Option<&ThreadState> {
        self.holder.threads().iter().find(|state| state.id == tracee.thread())
    }

    fn write_state(&self, threads: &Threads) -> Result<()> {
        for (tracee, state) in threads.all.iter().filter_map(|t| Some((t, self.state_of(t)?))) {
            set_state(tracee, state).during(OPERATION)?;
        }
        let is_its_own = |state: &&DescriptorState| self.links.contains_key(&state.number);
        for state in self.holder.descriptors().iter().filter(is_its_own) {
            self.put_back(state).during(OPERATION)?;
        }
        let lives_on = |tracee: &Tracee| tracee.end_with_this_process(false);
        threads.all.iter().try_for_each(lives_on).map_err(failed)
    }

    /// Descriptors that the program did not have then, but for the library's.
    fn opened_since(&self, own: &[i32]) -> Result<impl Iterator<Item = i32>> {
        let (target, _) = self.holder.both();
        let links = descriptors::links(target.pid()).map_err(failed)?.into_iter();
        let now: BTreeMap<_, _> = links.filter(|(number, _)| !own.contains(number)).collect();
        let gone = self.links.iter().find(|(number, link)| now.get(number) != Some(link));
        if let Some((number, link)) = gone {
            return Err(refused(format!("descriptor {number}, {link}, was closed since")));
        }
        let new: Vec<i32> =
            now.into_keys().filter(|number| !self.links.contains_key(number)).collect();
        Ok(new.into_iter())
    }

    /// Fails if a descriptor has the name of its file of then, but is of another one, or was opened otherwise.
    fn refuse_other_files(&self) -> Result<()> {
        let file = |state: &DescriptorState| {
            let access = state.number("flags", 8).map(|flags| flags & libc::O_ACCMODE as u64);
            (state.number("ino", 10), state.number("mnt_id", 10), access)
        };
        let is_other = |then: &&DescriptorState| {
            let is_file = self.links.get(&then.number).is_some_and(|link| link.starts_with('/'));
            let now = descriptors::state(self.holder.program(), then.number).filter(|_| is_file);
            now.is_some_and(|now| file(&now) != file(then))
        };
        match self.holder.descriptors().iter().find(is_other) {
            Some(DescriptorState { number, .. }) => Err(refused(format!(
                "descriptor {number}, {}, was closed since, and is another file's now",
                self.links[number]
            ))),
            None => Ok(()),
        }
    }

    /// Sets an open file to its state of the instant.
    fn put_back(&self, then: &DescriptorState) -> Result<(), Errno> {
        let (target, _) = self.holder.both();
        let now = descriptors::state(target.pid(), then.number).ok_or(Errno::BADF)?;
        let offset = then.number("pos", 10);
        let count = then.number("eventfd-count", 16);
        let is_same = now.number("pos", 10) == offset && now.number("eventfd-count", 16) == count;
        // Other processes write there, too, and would write over it.
        let is_output = [1, 2].into_iter().any(|output| {
            then.number == output || target.is_same_file(then.number, output) == Ok(true)
        });
        if is_same || count.is_none() && is_output {
            return Ok(());
        }
        let mut file = File::from(target.descriptor(then.number)?);
        let mut put = || match count {
            Some(count) => {
                // Other processes may read it meanwhile: a read must not wait for them.
                while packets::wait(file.as_fd(), Some(Duration::ZERO))? {
                    file.read_exact(&mut [0; 8])?;
                }
                if count > 0 { file.write_all(&count.to_ne_bytes()) } else { Ok(()) }
            }
            None => file.seek(SeekFrom::Start(offset.unwrap_or(0))).map(drop),
        };
        let done: std::io::Result<()> = put();
        done.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
    }
}

fn refused(why: String) -> Error {
    Error::new(ErrorKind::Unsupported, OPERATION).because(why)
}
