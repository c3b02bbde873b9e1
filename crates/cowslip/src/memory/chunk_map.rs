//! The state of every chunk of an arena, as data: no system call is made here.
//!
//! [`TABLE`] is the whole life of a chunk. A change that it does not list is a defect, and ends in a panic before the
//! state says something that the mappings do not show.

use std::fmt;
use std::ops::Range;

/// Files that an arena has at a time, at most: each holds a descriptor.
pub(crate) const MOST_FILES: usize = 80;

/// States of a chunk of 2 MiB, by its mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Chunk {
    /// Its file, shared.
    Live,
    /// Its file, private: written pages are copies.
    Frozen,
    /// Nothing of the file: the program dropped all of it while frozen.
    Anonymous,
    /// Like frozen, but free at the freeze: its base has no reader, and it can be live at once.
    FreePrivate,
    /// Like frozen, but without readers of its base, and left so by a thaw because nothing had been written to it:
    /// later writes make copies, which can be found.
    Clean,
    /// Like frozen, with a base in the file of another arena ([`BorrowedBase`](crate::arena::borrowed::BorrowedBase)).
    Borrowed,
    /// Its file, shared, without its content: an image is being restored, and an access waits.
    Missing,
    /// Its content could not be restored: an access gets a SIGBUS.
    Poisoned,
    /// A freeze or a thaw failed between two parts: one maps the file shared, another is private. It becomes live before
    /// anything is frozen or forked again.
    Partial,
}

/// What happens to a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Event {
    /// A freeze maps it privately.
    Freeze,
    /// A freeze maps it privately along with its neighbours; nothing of it is in use.
    FreezeFree,
    /// Its private pages are in its file, and all of it is mapped shared.
    Thaw,
    /// Like [`Self::Thaw`], in a file that readers of its base do not have.
    Move,
    /// A freeze, a thaw or a move failed half-way.
    Break,
    /// A thaw leaves it, as nothing was written to it and its base has no reader.
    Keep,
    /// Its base may get readers.
    Offer,
    /// The program dropped all of its content while readers of the base may be left.
    Drop,
    /// Its content is of no use any more, and its base has no reader: it becomes zeroes.
    Revive,
    /// Free space is handed out.
    HandOut,
    /// A template's base is mapped there.
    Borrow,
    /// Its content will come from an image.
    Miss,
    /// Its content has come.
    Show,
    /// Its content could not be restored.
    Lose,
    /// It maps its place of an earlier freeze again, privately.
    RollBack,
}

/// Each state that an event may find a chunk in, and the state after it.
#[rustfmt::skip]
pub(crate) const TABLE: &[(Chunk, Event, Chunk)] = &[
    (Chunk::Live,        Event::Freeze,     Chunk::Frozen),
    (Chunk::Clean,       Event::Freeze,     Chunk::Frozen),
    (Chunk::Live,        Event::FreezeFree, Chunk::FreePrivate),
    (Chunk::Clean,       Event::FreezeFree, Chunk::FreePrivate),
    (Chunk::Frozen,      Event::Thaw,       Chunk::Live),
    (Chunk::Anonymous,   Event::Thaw,       Chunk::Live),
    (Chunk::FreePrivate, Event::Thaw,       Chunk::Live),
    (Chunk::Clean,       Event::Thaw,       Chunk::Live),
    (Chunk::Borrowed,    Event::Thaw,       Chunk::Live),
    (Chunk::Partial,     Event::Thaw,       Chunk::Live),
    (Chunk::Frozen,      Event::Move,       Chunk::Live),
    (Chunk::Anonymous,   Event::Move,       Chunk::Live),
    (Chunk::FreePrivate, Event::Move,       Chunk::Live),
    (Chunk::Clean,       Event::Move,       Chunk::Live),
    (Chunk::Borrowed,    Event::Move,       Chunk::Live),
    (Chunk::Live,        Event::Move,       Chunk::Live),
    (Chunk::Frozen,      Event::Break,      Chunk::Partial),
    (Chunk::Anonymous,   Event::Break,      Chunk::Partial),
    (Chunk::FreePrivate, Event::Break,      Chunk::Partial),
    (Chunk::Clean,       Event::Break,      Chunk::Partial),
    (Chunk::Borrowed,    Event::Break,      Chunk::Partial),
    (Chunk::Partial,     Event::Break,      Chunk::Partial),
    (Chunk::Frozen,      Event::Keep,       Chunk::Clean),
    (Chunk::Clean,       Event::Offer,      Chunk::Frozen),
    (Chunk::Frozen,      Event::Drop,       Chunk::Anonymous),
    (Chunk::Frozen,      Event::Revive,     Chunk::Live),
    (Chunk::Anonymous,   Event::Revive,     Chunk::Live),
    (Chunk::FreePrivate, Event::Revive,     Chunk::Live),
    (Chunk::Clean,       Event::Revive,     Chunk::Live),
    (Chunk::Borrowed,    Event::Revive,     Chunk::Live),
    (Chunk::Partial,     Event::Revive,     Chunk::Live),
    (Chunk::Poisoned,    Event::Revive,     Chunk::Live),
    (Chunk::FreePrivate, Event::HandOut,    Chunk::Live),
    (Chunk::Live,        Event::Borrow,     Chunk::Borrowed),
    (Chunk::Live,        Event::Miss,       Chunk::Missing),
    (Chunk::Missing,     Event::Show,       Chunk::Live),
    (Chunk::Missing,     Event::Lose,       Chunk::Poisoned),
    (Chunk::Live,        Event::RollBack,   Chunk::Frozen),
    (Chunk::Anonymous,   Event::RollBack,   Chunk::Frozen),
    (Chunk::FreePrivate, Event::RollBack,   Chunk::Frozen),
    (Chunk::Clean,       Event::RollBack,   Chunk::Frozen),
];

/// A change that [`TABLE`] does not list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Illegal {
    chunk: usize,
    state: Chunk,
    event: Event,
}

impl fmt::Display for Illegal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "chunk {} is {:?}, which {:?} may not change", self.chunk, self.state, self.event)
    }
}

impl Chunk {
    const COUNT: usize = Self::Partial as usize + 1;

    /// True if a freeze made it private and a thaw makes it live (or keeps it).
    pub(crate) fn is_private(self) -> bool {
        matches!(
            self,
            Self::Frozen | Self::Anonymous | Self::FreePrivate | Self::Borrowed | Self::Partial
        )
    }

    /// True if other processes may map its place in its file.
    pub(crate) fn has_base(self) -> bool {
        self.is_private() && self != Self::Borrowed
    }

    /// True if all of it maps a file privately.
    pub(crate) fn is_private_file(self) -> bool {
        matches!(self, Self::Frozen | Self::FreePrivate | Self::Borrowed)
    }

    fn after(self, event: Event) -> Option<Self> {
        AFTER[self as usize][event as usize]
    }
}

/// [`TABLE`], by state and event.
const AFTER: [[Option<Chunk>; Event::COUNT]; Chunk::COUNT] = {
    let mut after = [[None; Event::COUNT]; Chunk::COUNT];
    let mut i = 0;
    while i < TABLE.len() {
        let (before, event, then) = TABLE[i];
        after[before as usize][event as usize] = Some(then);
        i += 1;
    }
    after
};

impl Event {
    const COUNT: usize = Self::RollBack as usize + 1;
}

/// The chunks of an arena, with the file that each maps.
#[derive(Debug)]
pub(crate) struct ChunkMap {
    chunks: Vec<Chunk>,
    counts: [usize; Chunk::COUNT],
    /// The generation that each private chunk was frozen for; meaningless for others.
    since: Vec<u64>,
    /// Number of the file that each chunk maps, or would map.
    files: Vec<u8>,
    /// How many chunks map each file, and how many of them are private.
    of_file: [FileCounts; MOST_FILES],
    /// Frozen chunks without a huge mapping of which all pages in memory were mapped: once is enough.
    mapped_singly: Vec<bool>,
}

#[derive(Clone, Copy, Debug, Default)]
struct FileCounts {
    all: usize,
    private: usize,
}

impl ChunkMap {
    /// All live, in file 0.
    pub(crate) fn new(len: usize) -> Self {
        let mut counts = [0; Chunk::COUNT];
        counts[Chunk::Live as usize] = len;
        let mut of_file = [FileCounts::default(); MOST_FILES];
        of_file[0].all = len;
        Self {
            chunks: vec![Chunk::Live; len],
            counts,
            since: vec![0; len],
            files: vec![0; len],
            of_file,
            mapped_singly: vec![false; len],
        }
    }

    /// The number of chunks.
    pub(crate) fn len(&self) -> usize {
        self.chunks.len()
    }

    pub(crate) fn get(&self, chunk: usize) -> Chunk {
        self.chunks[chunk]
    }

    /// How many chunks are in a state.
    pub(crate) fn count(&self, chunk: Chunk) -> usize {
        self.counts[chunk as usize]
    }

    /// Chunks that a freeze made private and no thaw made live again.
    pub(crate) fn private(&self) -> usize {
        let bases: usize = self.of_file.iter().map(|file| file.private).sum();
        bases + self.count(Chunk::Borrowed)
    }

    /// Checks that `event` may change all chunks of `run`.
    ///
    /// # Errors
    /// The first that it may not change.
    pub(crate) fn check(&self, mut run: Range<usize>, event: Event) -> Result<(), Illegal> {
        run.try_for_each(|chunk| {
            let state = self.chunks[chunk];
            state.after(event).map(|_| ()).ok_or(Illegal { chunk, state, event })
        })
    }

    /// Changes all chunks of `run`, or none.
    ///
    /// # Errors
    /// Those of [`Self::check`].
    pub(crate) fn apply(&mut self, run: Range<usize>, event: Event) -> Result<(), Illegal> {
        self.check(run.clone(), event)?;
        for chunk in run {
            let before = self.chunks[chunk];
            let after = before.after(event).unwrap_or(before);
            self.counts[before as usize] -= 1;
            self.counts[after as usize] += 1;
            let of_file = &mut self.of_file[usize::from(self.files[chunk])];
            of_file.private -= usize::from(before.has_base());
            of_file.private += usize::from(after.has_base());
            self.chunks[chunk] = after;
            self.set_mapped_singly(chunk, false);
        }
        Ok(())
    }

    /// Number of the file that a chunk maps.
    pub(crate) fn file(&self, chunk: usize) -> u8 {
        self.files[chunk]
    }

    /// Notes that chunks map another file.
    pub(crate) fn set_file(&mut self, run: Range<usize>, file: u8) {
        for chunk in run {
            let before = std::mem::replace(&mut self.files[chunk], file);
            let is_private = usize::from(self.chunks[chunk].has_base());
            let counts = &mut self.of_file[usize::from(before)];
            (counts.all, counts.private) = (counts.all - 1, counts.private - is_private);
            let counts = &mut self.of_file[usize::from(file)];
            (counts.all, counts.private) = (counts.all + 1, counts.private + is_private);
        }
    }

    /// How many chunks map a file.
    pub(crate) fn in_file(&self, file: u8) -> usize {
        self.of_file[usize::from(file)].all
    }

    /// How many of them are private, with a base in it.
    pub(crate) fn private_in_file(&self, file: u8) -> usize {
        self.of_file[usize::from(file)].private
    }

    /// The end of the run of chunks that map the same file as `first`.
    pub(crate) fn file_run_end(&self, first: usize, end: usize) -> usize {
        let file = self.files[first];
        if self.in_file(file) == self.files.len() {
            return end;
        }
        first + run_of(&self.files[first..end], |other| *other == file)
    }

    pub(crate) fn since(&self, chunk: usize) -> u64 {
        self.since[chunk]
    }

    /// Notes that a chunk was frozen for this generation.
    pub(crate) fn set_since(&mut self, chunk: usize, generation: u64) {
        self.since[chunk] = generation;
    }

    /// True if all of a frozen chunk was mapped without a huge page: see [`crate::arena::residency`].
    pub(crate) fn is_mapped_singly(&self, chunk: usize) -> bool {
        self.mapped_singly[chunk]
    }

    pub(crate) fn set_mapped_singly(&mut self, chunk: usize, is_mapped: bool) {
        // A page that is not written need not be copied by a fork.
        if self.mapped_singly[chunk] != is_mapped {
            self.mapped_singly[chunk] = is_mapped;
        }
    }

    /// The first run of chunks from `from` on for which `wanted` holds, at most `most` long.
    pub(crate) fn next_run(
        &self,
        from: usize,
        most: usize,
        wanted: impl Fn(Chunk) -> bool,
    ) -> Option<Range<usize>> {
        let first = from + self.chunks[from..].iter().position(|&chunk| wanted(chunk))?;
        let rest = &self.chunks[first..];
        let rest = &rest[..rest.len().min(most)];
        // Every fork asks for runs, mostly for the one of thousands at the end.
        let alike = run_of(rest, |chunk| *chunk == rest[0]);
        let more = rest[alike..].iter().take_while(|&&chunk| wanted(chunk)).count();
        Some(first..first + alike + more)
    }

    /// True if a chunk has no readers when generations up to `read` are read: it was frozen later.
    pub(crate) fn is_unread(&self, chunk: usize, read: Option<u64>) -> bool {
        read.is_none_or(|read| self.since(chunk) > read)
    }

    /// Like [`Self::next_run`], for chunks that a freeze made private and that have no readers if generations up to
    /// `read` are read.
    pub(crate) fn next_unread(
        &self,
        from: usize,
        most: usize,
        read: Option<u64>,
        wanted: impl Fn(Chunk) -> bool,
    ) -> Option<Range<usize>> {
        let mut from = from;
        while let Some(run) = self.next_run(from, usize::MAX, &wanted) {
            let is_unread = |chunk: &usize| self.is_unread(*chunk, read);
            if let Some(first) = run.clone().find(is_unread) {
                let count = (first..run.end).take(most).take_while(is_unread).count();
                return Some(first..first + count);
            }
            from = run.end;
        }
        None
    }

    /// The runs of chunks for which `wanted` holds.
    pub(crate) fn runs(
        &self,
        wanted: impl Fn(Chunk) -> bool,
    ) -> impl Iterator<Item = Range<usize>> {
        let mut from = 0;
        std::iter::from_fn(move || {
            let run = self.next_run(from, usize::MAX, &wanted)?;
            from = run.end;
            Some(run)
        })
    }
}

/// The number of items at the start of `items` that are alike, found whole blocks at a time.
fn run_of<T>(items: &[T], is_alike: impl Fn(&T) -> bool) -> usize {
    const BLOCK: usize = 64;
    let is_whole = |block: &&[T]| block.iter().fold(true, |all, item| all & is_alike(item));
    let alike = items.chunks_exact(BLOCK).take_while(is_whole).count() * BLOCK;
    alike + items[alike..].iter().take_while(|item| is_alike(item)).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATES: [Chunk; Chunk::COUNT] = [
        Chunk::Live,
        Chunk::Frozen,
        Chunk::Anonymous,
        Chunk::FreePrivate,
        Chunk::Clean,
        Chunk::Borrowed,
        Chunk::Missing,
        Chunk::Poisoned,
        Chunk::Partial,
    ];

    #[test]
    fn an_event_leads_to_one_state_and_every_state_can_be_left() {
        for (i, (before, event, _)) in TABLE.iter().enumerate() {
            let is_same = |row: &&(Chunk, Event, Chunk)| (row.0, row.1) == (*before, *event);
            assert_eq!(TABLE[i..].iter().filter(is_same).count(), 1, "{before:?} {event:?}");
        }
        for state in STATES {
            assert!(TABLE.iter().any(|row| row.0 == state && row.2 != state), "{state:?}");
            assert!(TABLE.iter().any(|row| row.2 == state), "{state:?}");
        }
    }

    /// A row for each state, with the events that change it.
    fn written() -> String {
        let mut rows = String::from("| state | events that change it |\n| --- | --- |\n");
        for state in STATES {
            let changes = TABLE.iter().filter(|row| row.0 == state);
            let changes = changes.map(|(_, event, after)| format!("{event:?} → {after:?}"));
            let changes: Vec<String> = changes.collect();
            rows += &format!("| {state:?} | {} |\n", changes.join(", "));
        }
        rows
    }

    #[test]
    fn the_table_is_written_down_in_the_documents() {
        let page = include_str!("../../../../docs/freeze-and-thaw.md");
        assert!(page.contains(&written()), "docs/freeze-and-thaw.md lacks:\n{}", written());
    }

    /// A million random events, legal and illegal, beside lists that are counted anew.
    #[test]
    fn the_map_agrees_with_a_list_after_a_million_random_events() {
        const LEN: usize = 200;
        const FILES: u8 = 3;
        let events: Vec<Event> = TABLE.iter().map(|row| row.1).collect();
        let mut map = ChunkMap::new(LEN);
        let (mut states, mut files) = ([Chunk::Live; LEN], [0; LEN]);
        let mut random = fastrand::Rng::with_seed(7);
        for step in 0..1_000_000u32 {
            let first = random.usize(..LEN);
            let run = first..random.usize(first + 1..=(first + 3).min(LEN));
            if random.u8(..8) == 0 {
                let file = random.u8(..FILES);
                map.set_file(run.clone(), file);
                files[run].fill(file);
            } else {
                let event = events[random.usize(..events.len())];
                let is_legal = run.clone().all(|chunk| states[chunk].after(event).is_some());
                assert_eq!(map.apply(run.clone(), event).is_ok(), is_legal);
                for chunk in run.filter(|_| is_legal) {
                    states[chunk] = states[chunk].after(event).unwrap();
                }
            }
            if step % 1000 != 0 {
                continue;
            }
            for state in STATES {
                let count = states.iter().filter(|other| **other == state).count();
                assert_eq!(map.count(state), count);
                let found: Vec<_> = map.runs(|other| other == state).flatten().collect();
                let expected: Vec<_> = (0..LEN).filter(|chunk| states[*chunk] == state).collect();
                assert_eq!(found, expected);
            }
            for file in 0..FILES {
                let here = || (0..LEN).filter(|chunk| files[*chunk] == file);
                assert_eq!(map.in_file(file), here().count());
                let private = here().filter(|chunk| states[*chunk].has_base()).count();
                assert_eq!(map.private_in_file(file), private);
            }
            let end = map.file_run_end(first, LEN);
            assert!(files[first..end].iter().all(|file| *file == files[first]));
            assert!(end == LEN || files[end] != files[first]);
        }
    }
}
