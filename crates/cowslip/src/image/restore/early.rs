//! The first chunk of the plan, on its way before there is an arena for it to be seen in.
//!
//! ```text
//!   restore ──┬── file behind the arena ── addresses, registration, fault server ──▶ the arena is used
//!             └──▶ reader: ──┴── the first chunk into the file, checked ──────────────▶ live; the others
//! ```
//! So the first touch finds it there, or soon, if it is the one that was recorded first or the first of all.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use super::course::Course;
use super::lazy::{self, Work};
use super::source::{Desk, Source};
use crate::arena::state::Shared;
use crate::arena::store::Store;
use crate::error::Result;

/// The first of the threads that read; dropped, it ends.
pub(super) struct Early {
    pub(super) source: Source,
    pub(super) course: Arc<Course>,
    given: Option<Sender<Given>>,
    thread: Option<JoinHandle<()>>,
}

/// What the thread waits for, in this order.
enum Given {
    Store(Arc<Store>),
    Arena(Arc<Shared>, Arc<Work>),
}

impl Early {
    /// Starts the thread, which looks for the first chunk.
    pub(super) fn start(source: Source, course: &Arc<Course>) -> Result<Self> {
        let (sender, given) = channel();
        course.hold();
        let thread = {
            let (source, course) = (source.clone(), Arc::clone(course));
            lazy::spawn(lazy::reader(), move || begin(&source, &course, &given))?
        };
        let (given, thread) = (Some(sender), Some(thread));
        Ok(Self { source, course: Arc::clone(course), given, thread })
    }

    /// Where the chunk belongs.
    pub(super) fn give_store(&self, store: &Arc<Store>) {
        self.give(Given::Store(Arc::clone(store)));
    }

    /// Has the thread show the chunk in the arena, and bring in others.
    pub(super) fn go_on(
        mut self,
        shared: &Arc<Shared>,
        work: &Arc<Work>,
    ) -> Option<JoinHandle<()>> {
        self.give(Given::Arena(Arc::clone(shared), Arc::clone(work)));
        self.thread.take()
    }

    fn give(&self, given: Given) {
        if let Some(sender) = &self.given {
            // It waits as long as this is there.
            let _ = sender.send(given);
        }
    }
}

impl Drop for Early {
    fn drop(&mut self) {
        drop(self.given.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn begin(source: &Source, course: &Course, given: &Receiver<Given>) {
    let mut desk = Desk::new();
    let first = course.claim_now();
    first.iter().for_each(|&chunk| source.will_need(chunk));
    let Ok(Given::Store(store)) = given.recv() else { return };
    let fetched = first.map(|chunk| lazy::fetch(source, &store, chunk, &mut desk));
    let Ok(Given::Arena(shared, work)) = given.recv() else { return };
    if let (Some(chunk), Some(fetched)) = (first, fetched) {
        work.put(&shared, chunk, fetched);
    }
    course.release();
    work.read(&shared, &mut desk);
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;

    use super::super::plan::Plan;
    use super::*;
    use crate::Arena;
    use crate::arena::Backing;
    use crate::image::{Image, SaveOptions, save};
    use crate::sys::memfile;
    use crate::units::{ByteCount, CHUNK_BYTES};

    /// What is in the file behind an arena of three chunks that is never made.
    fn brought_in(image: &Image, first: &[u32], is_recording: bool) -> Vec<bool> {
        let plan = Plan::new(vec![0, 1, 2], first, is_recording);
        let source = Source { image: image.clone(), arena: 0 };
        let early = Early::start(source, &Arc::new(Course::new(plan))).unwrap();
        let store = Store::open(Backing::Thp, ByteCount(3 * CHUNK_BYTES as u64)).map(Arc::new);
        let store = store.unwrap();
        early.give_store(&store);
        drop(early);
        let content = |chunk: usize| {
            let mut content = vec![0; CHUNK_BYTES];
            let at = (chunk * CHUNK_BYTES) as u64;
            assert_eq!(memfile::read_at(store.fd(), &mut content, at), Ok(CHUNK_BYTES));
            let is_there = content.iter().all(|&byte| byte == chunk as u8 + 1);
            assert!(is_there || content.iter().all(|&byte| byte == 0));
            is_there
        };
        (0..3).map(content).collect()
    }

    #[test]
    fn the_first_of_the_plan_comes_without_an_arena_and_nothing_else() {
        let path = std::env::temp_dir().join(format!("early-{}.cowslip", std::process::id()));
        let arena = Arena::new(ByteCount(3 * CHUNK_BYTES as u64)).unwrap();
        let mut slice = arena.slice::<u8>(3 * CHUNK_BYTES).unwrap();
        slice.iter_mut().enumerate().for_each(|(i, byte)| *byte = (i / CHUNK_BYTES) as u8 + 1);
        let mut proceed = |_| ControlFlow::Continue(());
        save(&[&arena.freeze().unwrap()], &path, &SaveOptions::default(), &mut proceed).unwrap();
        let image = Image::open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(brought_in(&image, &[], false), [true, false, false]);
        assert_eq!(brought_in(&image, &[2, 1], false), [false, false, true]);
        assert_eq!(brought_in(&image, &[2, 1], true), [false; 3], "only what is touched");
    }
}
