#![allow(unsafe_code)]
//! Arenas and views of an instant.
//!
//! # Safety
//! See [`crate::memory`]. The range for [`Arena::discard`] is checked to be in the arena.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::time::{Duration, Instant};

use cowslip::image::{Restored, Strategy};
use cowslip::units::{ByteCount, VirtRange, page_size_bytes};
use cowslip::{Backing, ErrorKind, Prot};
use pyo3::buffer::PyUntypedBuffer;
use pyo3::prelude::*;

use crate::allocator::{self, Allocator};
use crate::errors::{raise, usage};
use crate::memory::{Memory, Owner};
use crate::signals::{SIGNALS_EVERY, patience};
use crate::template::Template;
use crate::view::View;

/// Memory that can be frozen at one instant.
#[pyclass(frozen, module = "cowslip._native")]
#[derive(Debug)]
pub(crate) struct Arena {
    pub(crate) arena: cowslip::Arena,
    allocator: OnceLock<Arc<Allocator>>,
    /// Its views that are still held.
    views: Mutex<Vec<Weak<View>>>,
    /// The restored image that it came from, if any.
    restored: Option<Arc<Restored>>,
}

impl From<cowslip::Arena> for Arena {
    fn from(arena: cowslip::Arena) -> Self {
        Self { arena, allocator: OnceLock::new(), views: Mutex::default(), restored: None }
    }
}

impl From<&Arc<Restored>> for Arena {
    fn from(restored: &Arc<Restored>) -> Self {
        Self { restored: Some(Arc::clone(restored)), ..Self::from(restored.arena().clone()) }
    }
}

pub(crate) fn backing(name: &str) -> PyResult<Backing> {
    match name {
        "thp" => Ok(Backing::Thp),
        "base" => Ok(Backing::Base),
        "hugetlb" => Ok(Backing::Hugetlb),
        _ => Err(usage(format!("backing is \"thp\", \"base\" or \"hugetlb\", not {name:?}"))),
    }
}

impl Arena {
    fn views(&self) -> MutexGuard<'_, Vec<Weak<View>>> {
        self.views.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Freezes, and checks for signals now and then while it waits.
    fn freeze_within(
        &self,
        py: Python<'_>,
        patience: Duration,
    ) -> PyResult<(cowslip::Frozen, Duration)> {
        self.wait_restored(py)?;
        let began = Instant::now();
        loop {
            let left = patience.saturating_sub(began.elapsed());
            let slice = left.min(SIGNALS_EVERY);
            let (frozen, took) = py.detach(|| {
                self.end_closed();
                let began = Instant::now();
                (self.arena.freeze_timeout(slice), began.elapsed())
            });
            match frozen {
                Ok(frozen) => return Ok((frozen, took)),
                // A refusal that did not wait will not pass.
                Err(error) if error.kind() != ErrorKind::Busy || slice == left || took < slice => {
                    return Err(raise(&error));
                }
                Err(_) => py.check_signals()?,
            }
        }
    }

    /// Waits until an arena that is being restored is whole, or partly lost, which a freeze reports.
    fn wait_restored(&self, py: Python<'_>) -> PyResult<()> {
        let Some(restored) = &self.restored else { return Ok(()) };
        // Memory in a server is copied by the freeze itself.
        if restored.strategy() == Strategy::Resident {
            return Ok(());
        }
        while let Ok(false) = py.detach(|| restored.wait(SIGNALS_EVERY)) {
            py.check_signals()?;
        }
        Ok(())
    }

    /// Releases the memory that closed views hold: their buffers become copies.
    fn end_closed(&self) {
        let mut views = self.views();
        views.retain(|view| view.upgrade().is_some_and(|view| !view.has_ended()));
        let held: Vec<_> = views.iter().filter_map(Weak::upgrade).collect();
        drop(views);
        held.iter().for_each(|view| view.copy_if_closed());
    }
}

#[pymethods]
impl Arena {
    #[new]
    #[pyo3(signature = (capacity_bytes, backing = "thp", userfaultfd = true))]
    fn new(
        py: Python<'_>,
        capacity_bytes: u64,
        backing: &str,
        userfaultfd: bool,
    ) -> PyResult<Self> {
        let backing = self::backing(backing)?;
        let builder = cowslip::Arena::builder(ByteCount(capacity_bytes))
            .backing(backing)
            .userfaultfd(userfaultfd);
        let arena = py.detach(|| builder.build()).map_err(|error| raise(&error))?;
        Ok(Self::from(arena))
    }

    /// Its first address and length.
    #[getter]
    fn range(&self) -> (usize, usize) {
        let range = self.arena.range();
        (range.start, range.len)
    }

    /// Zeroed memory, released when its last buffer is gone.
    fn allocate(&self, py: Python<'_>, length_bytes: u64) -> PyResult<Memory> {
        let allocated = py.detach(|| self.arena.allocate(ByteCount(length_bytes), Prot::RW));
        let range = allocated.map_err(|error| raise(&error))?;
        // SAFETY: handed out just now, until it is released.
        Ok(unsafe { Memory::new(range, false, Owner::Allocated(self.arena.clone())) })
    }

    /// Memory that is already handed out, such as a restored root's; it is not released.
    fn memory_at(&self, address: usize, length_bytes: usize) -> PyResult<Memory> {
        let range = part(&self.arena, address, length_bytes)?;
        // SAFETY: the range is in the arena, which is mapped as long as it lives. A touch of memory that was
        // not handed out there is a fault.
        Ok(unsafe { Memory::new(range, false, Owner::Arena(self.arena.clone())) })
    }

    /// Address and length of a contiguous buffer that lies completely in the arena.
    fn place_of(&self, buffer: &Bound<'_, PyAny>) -> PyResult<Option<(usize, usize)>> {
        let buffer = PyUntypedBuffer::get(buffer)?;
        if !buffer.is_c_contiguous() || buffer.len_bytes() == 0 {
            return Ok(None);
        }
        let place = (buffer.buf_ptr() as usize, buffer.len_bytes());
        Ok(holds(self.arena.range(), place.0, place.1).then_some(place))
    }

    /// Zeroes the whole pages within a part, and gives their memory back to the system.
    fn discard(&self, py: Python<'_>, address: usize, length_bytes: usize) -> PyResult<()> {
        let range = part(&self.arena, address, length_bytes)?.inner_aligned(page_size_bytes());
        if range.len == 0 {
            return Ok(());
        }
        // SAFETY: the range is memory of arrays; Rust code assumes that it may change at any time.
        py.detach(|| unsafe { self.arena.discard(range) }).map_err(|error| raise(&error))
    }

    /// The content now, as a view; where there may be no more views, waits up to `timeout` seconds for an
    /// earlier one to end. Buffers of closed views become copies.
    #[pyo3(signature = (timeout = Some(60.0)))]
    fn freeze(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Frozen> {
        let (frozen, took) = self.freeze_within(py, patience(timeout)?)?;
        let view = Arc::new(View::new(frozen));
        self.views().push(Arc::downgrade(&view));
        Ok(Frozen { view, took, arena: self.arena.clone() })
    }

    /// Restores the content of an open view. Python's other threads do not run meanwhile.
    fn roll_back(&self, view: &Frozen) -> PyResult<()> {
        let view = view.get()?;
        // SAFETY: the caller ensures that no thread uses the memory; Python's threads wait for this one.
        unsafe { self.arena.roll_back(&view) }.map_err(|error| raise(&error))
    }

    /// Makes every later fork of the process take the arena along.
    fn install_at_fork(&self) -> PyResult<()> {
        self.arena.install_at_fork().map_err(|error| raise(&error))
    }

    /// Makes the engine record writes from now on, so that saves with a parent read only the changes.
    fn track_changes(&self, wanted: bool) -> bool {
        self.arena.track_changes(wanted)
    }

    /// The handler that makes numpy take the memory of new arrays from the arena (NEP 49).
    fn handler<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let make = || Arc::new(Allocator::new(self.arena.clone()));
        allocator::handler(py, self.allocator.get_or_init(make))
    }

    /// The counters, by name.
    fn metrics(&self, py: Python<'_>) -> BTreeMap<&'static str, u64> {
        py.detach(|| self.arena.metrics()).fields().into_iter().collect()
    }
}

fn holds(range: VirtRange, address: usize, length_bytes: usize) -> bool {
    range.contains(address) && length_bytes <= range.end() - address
}

fn part(arena: &cowslip::Arena, address: usize, length_bytes: usize) -> PyResult<VirtRange> {
    let range = arena.range();
    if !holds(range, address, length_bytes) {
        return Err(usage(format!(
            "{length_bytes} bytes at {address:#x} are not in the arena {range}"
        )));
    }
    Ok(VirtRange::new(address, length_bytes))
}

/// The content of an arena at one instant, until it is closed and no buffer of it is left.
#[pyclass(frozen, module = "cowslip._native")]
#[derive(Debug)]
pub(crate) struct Frozen {
    view: Arc<View>,
    took: Duration,
    arena: cowslip::Arena,
}

impl Frozen {
    pub(crate) fn get(&self) -> PyResult<Arc<cowslip::Frozen>> {
        self.view.get()
    }

    pub(crate) fn range(&self) -> VirtRange {
        self.arena.range()
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        self.view.close();
    }
}

#[pymethods]
impl Frozen {
    /// The content of the arena there, for reading.
    fn memory_at(&self, address: usize, length_bytes: usize) -> PyResult<Memory> {
        self.view.get()?;
        let part = part(&self.arena, address, length_bytes)?;
        let here = self.view.show(part)?;
        // SAFETY: the view, or its copy, stays mapped as long as it lives and the part is not forgotten; it
        // is never written.
        Ok(unsafe { Memory::new(here, true, Owner::Frozen(Arc::clone(&self.view), part)) })
    }

    /// Ends the view, once no buffer of it is left.
    fn close(&self, py: Python<'_>) {
        py.detach(|| self.view.close());
    }

    #[getter]
    fn closed(&self) -> bool {
        self.view.is_closed()
    }

    /// The time that the engine took to make it.
    #[getter]
    fn took_ns(&self) -> u64 {
        self.took.as_nanos() as u64
    }

    /// Observes the view without holding it.
    fn watch(&self) -> Watch {
        Watch { view: Arc::downgrade(&self.view), made: Instant::now() }
    }

    /// Makes a template of the view, and closes the view. No buffer of it may be left.
    fn take_template(&self, py: Python<'_>) -> PyResult<Template> {
        let frozen = self.view.take()?;
        let template = py.detach(|| frozen.into_template()).map_err(|error| raise(&error))?;
        Ok(Template::new(template))
    }
}

/// The state of a view that is held elsewhere.
#[pyclass(frozen, module = "cowslip._native")]
#[derive(Debug)]
pub(crate) struct Watch {
    view: Weak<View>,
    made: Instant,
}

#[pymethods]
impl Watch {
    /// The age of the view.
    #[getter]
    fn age_s(&self) -> f64 {
        self.made.elapsed().as_secs_f64()
    }

    /// True if it is over: closed or dropped, and no buffer and no save needs the frozen memory.
    #[getter]
    fn ended(&self) -> bool {
        self.view.upgrade().is_none_or(|view| view.has_ended())
    }
}

/// The report of `cowslip doctor --json`.
#[pyfunction]
pub(crate) fn doctor_json(py: Python<'_>) -> String {
    py.detach(|| cowslip::host::report().to_json().to_string())
}
