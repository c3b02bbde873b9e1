//! When clean chunks that were written become live: looks that grow rare while they find nothing.

use cowslip_sys::Errno;

use super::facts::Facts;
use super::pace::Turn;
use super::settings::clean::{LOOK, LOOK_CHUNKS};
use super::task::{Decision, Pace, Task, Work, many_pages};
use crate::memory::chunk_map::Chunk;

/// Progress of the search for clean chunks that were written.
#[derive(Debug, Default)]
pub(crate) struct Clean {
    /// The next chunk to look at.
    next: usize,
    has_found: bool,
    turn: Turn,
}

impl Clean {
    /// The place of the look.
    pub(crate) fn place(&self) -> usize {
        self.next
    }

    /// Looks at some of the clean chunks, while all others are live.
    pub(super) fn next(&mut self, facts: &impl Facts) -> Decision {
        if facts.map().count(Chunk::Clean) == 0 {
            *self = Self::default();
            return Decision::Nothing;
        }
        let left_ns = self.turn.left_ns(facts.now_ns());
        if left_ns > 0 {
            return Decision::After(left_ns);
        }
        match self.look(facts) {
            Ok(Some(task)) => Decision::Do(task),
            Ok(None) => Decision::After(self.end(facts.now_ns())),
            Err(errno) => Decision::Do(Task::Failed(Work::Clean, errno)),
        }
    }

    fn look(&mut self, facts: &impl Facts) -> Result<Option<Task>, Errno> {
        let is_clean = |chunk| chunk == Chunk::Clean;
        let Some(run) = facts.map().next_run(self.next, LOOK_CHUNKS, is_clean) else {
            return Ok(None);
        };
        self.next = run.end;
        let Some(chunk) = facts.first_written(run)? else { return Ok(Some(Task::LookOn)) };
        self.has_found = true;
        self.next = chunk + 1;
        let private = facts.private_pages(chunk, many_pages())?;
        Ok(Some(Task::ThawClean(chunk, Pace::new(private))))
    }

    /// Ends a look at all chunks. Returns the time to the next.
    pub(crate) fn end(&mut self, now_ns: u64) -> u64 {
        if self.has_found {
            self.turn.succeed();
        }
        (self.next, self.has_found) = (0, false);
        self.turn.put_off(now_ns, LOOK)
    }
}
