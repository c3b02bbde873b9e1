//! A view shared by its buffers. It ends with the last of them, or is copied for them.

use std::sync::{Arc, Mutex, MutexGuard};

use cowslip::units::VirtRange;
use cowslip::{Frozen, FrozenCopy};
use pyo3::prelude::*;

use crate::errors::usage;

#[derive(Debug)]
struct Held {
    view: Option<Arc<Frozen>>,
    /// The copy that it became, if any.
    _copy: Option<FrozenCopy>,
    /// The parts that buffers show, at the arena's addresses, each as often as there are buffers.
    shown: Vec<VirtRange>,
    is_open: bool,
}

/// A view, until it is closed and no buffer of it is left.
#[derive(Debug)]
pub(crate) struct View(Mutex<Held>);

impl View {
    pub(crate) fn new(view: Frozen) -> Self {
        let view = Some(Arc::new(view));
        Self(Mutex::new(Held { view, _copy: None, shown: Vec::new(), is_open: true }))
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// The engine's view, for a save.
    pub(crate) fn get(&self) -> PyResult<Arc<Frozen>> {
        let held = self.lock();
        let view = held.view.clone().filter(|_| held.is_open);
        view.ok_or_else(|| usage("the view is closed"))
    }

    /// The place where a part of the arena is shown, to one more buffer: until [`Self::forget`].
    pub(crate) fn show(&self, part: VirtRange) -> PyResult<VirtRange> {
        let view = self.get()?;
        self.lock().shown.push(part);
        Ok(VirtRange::new(view.view_address(part.start), part.len))
    }

    /// One buffer less.
    pub(crate) fn forget(&self, part: VirtRange) {
        let mut held = self.lock();
        if let Some(i) = held.shown.iter().position(|shown| *shown == part) {
            held.shown.swap_remove(i);
        }
        let _ended = held.take_if_over();
        drop(held);
    }

    /// Refuses new buffers from here on.
    pub(crate) fn close(&self) {
        let mut held = self.lock();
        held.is_open = false;
        let _ended = held.take_if_over();
        drop(held);
    }

    /// True if it is over for the arena: no buffer and no save needs the frozen memory.
    pub(crate) fn has_ended(&self) -> bool {
        self.lock().view.is_none()
    }

    pub(crate) fn is_closed(&self) -> bool {
        !self.lock().is_open
    }

    /// Ends a closed view for the arena: its buffers show copies from here on. It stays if a save uses it, or
    /// if there is no memory for copies.
    pub(crate) fn copy_if_closed(&self) {
        let mut held = self.lock();
        if held.is_open {
            return;
        }
        let Some(view) = held.view.take() else { return };
        match Arc::try_unwrap(view) {
            Ok(view) => match view.into_copy(&held.shown) {
                Ok(copy) => held._copy = Some(copy),
                Err((view, _)) => held.view = Some(Arc::new(view)),
            },
            Err(shared) => held.view = Some(shared),
        }
    }

    /// The engine's view, if it is not used elsewhere, for a template. This view is closed then.
    pub(crate) fn take(&self) -> PyResult<Frozen> {
        let mut held = self.lock();
        if !held.shown.is_empty() {
            return Err(usage("an array still uses the view"));
        }
        let view = held.view.take().ok_or_else(|| usage("the view is closed"))?;
        match Arc::try_unwrap(view) {
            Ok(view) => {
                held.is_open = false;
                Ok(view)
            }
            Err(shared) => {
                held.view = Some(shared);
                Err(usage("a save still uses the view"))
            }
        }
    }
}

impl Held {
    fn take_if_over(&mut self) -> Option<Arc<Frozen>> {
        if self.is_open || !self.shown.is_empty() {
            return None;
        }
        self.view.take()
    }
}
