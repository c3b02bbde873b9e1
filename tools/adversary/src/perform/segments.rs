//! Segments of System V (`shmat(2)`), attached over the program's memory: every process that inherits one
//! sees the others' writes.

use libc::{SHM_REMAP, c_int};

use super::{Me, SKIP};
use crate::model::{Kind, Prot, Region};
use crate::program::Call;
use crate::sys;
use crate::words::{self, Content, PAGE};

impl Me {
    /// Attaches a segment over pages of a mapping, or in free space. A child writes to it; after that it is
    /// never written.
    pub(super) fn segment(&mut self, call: &Call) -> Option<()> {
        let id = call.number(0);
        let (index, region) = self.mapping(call.number(1))?;
        let span = region.span(call.number(2), call.number(3).min(64), |_| ())?;
        if self.region(id).is_some() {
            return SKIP;
        }
        let is_over = call.word(4) == "mapping";
        let (place, flags) = if is_over { (region.at(span.start), SHM_REMAP) } else { (0, 0) };
        let len = span.len() * PAGE;
        // The number of segments in the system is limited.
        let segment = sys::shmget(len).ok()? as c_int;
        let other = sys::shmat(segment, 0, 0);
        let at = sys::shmat(segment, place, flags);
        self.expect("shmctl", sys::shm_remove(segment), Ok(0));
        let other = other.unwrap_or_else(|errno| self.fail(&format!("shmat: errno {errno}")));
        let at = at.unwrap_or_else(|errno| self.fail(&format!("shmat: errno {errno}")));
        if is_over {
            self.expect("shmat", Ok(at), Ok(place));
            self.regions[index].is_whole = false;
            self.pages(index, span.clone()).iter_mut().for_each(|page| page.here = false);
            self.regions.retain(|region| region.pages.iter().any(|page| page.here));
        }
        let mut attached = Region::new(id, at, span.len(), Content::Zero, Prot::Read);
        attached.kind = Kind::Segment;
        self.verify(&attached);
        let seed = |page: usize| self.new_seed(page);
        (0..span.len()).step_by(2).for_each(|page| words::write(other + page * PAGE, seed(page)));
        let child = self.helper(|| {
            let odd = (1..span.len()).step_by(2);
            odd.for_each(|page| words::write(at + page * PAGE, seed(page)));
            true
        });
        self.waited(child);
        for (page, state) in attached.pages.iter_mut().enumerate() {
            state.content = Content::Seed(seed(page));
        }
        let both = [other, at].map(|addr| Region { addr, ..attached.clone() });
        both.iter().for_each(|region| _ = self.verify(region));
        self.expect("shmdt", sys::shmdt(other), Ok(0));
        self.regions.push(attached);
        Some(())
    }
}
