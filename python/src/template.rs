#![allow(unsafe_code)]
//! Templates, which are sent to other processes as descriptors, and their clones.
//!
//! # Safety
//! A socket is borrowed by its number for one call, during which its owner holds it. Data from it is trusted
//! to the extent that the engine states ([`cowslip::Template::receive`]): the sender is a process of the same
//! program.

use std::mem::ManuallyDrop;
use std::os::fd::{FromRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};

use cowslip::image::Image;
use cowslip::units::VirtRange;
use cowslip::{Place, TemplateClone, TemplateServer};
use pyo3::prelude::*;

use crate::errors::{raise, usage};
use crate::memory::{CloneCell, Memory, Owner};
use crate::signals::{interruptible, patience};

/// A frozen arena that any process may map.
#[pyclass(frozen, module = "cowslip._native")]
#[derive(Debug)]
pub(crate) struct Template {
    template: cowslip::Template,
}

impl Template {
    pub(crate) fn new(template: cowslip::Template) -> Self {
        Self { template }
    }
}

fn borrowed(socket: RawFd) -> PyResult<ManuallyDrop<UnixStream>> {
    if socket < 0 {
        return Err(usage("the socket is closed"));
    }
    // SAFETY: see the module; it is not closed here.
    Ok(ManuallyDrop::new(unsafe { UnixStream::from_raw_fd(socket) }))
}

#[pymethods]
impl Template {
    /// The first address of the original arena, in its own process.
    #[getter]
    fn origin(&self) -> usize {
        self.template.origin()
    }

    /// A private clone in this process.
    #[pyo3(signature = (original_place = false))]
    fn map(&self, py: Python<'_>, original_place: bool) -> PyResult<Clone> {
        let place = if original_place { Place::Original } else { Place::Anywhere };
        let clone = py.detach(|| self.template.map(place)).map_err(|error| raise(&error))?;
        let range = clone.range();
        let regions = clone.regions().iter().map(|region| region.range()).collect();
        Ok(Clone { cell: Arc::new(CloneCell::new(clone)), range, regions })
    }

    /// Sends it to the receiver at the other end of a Unix socket.
    fn send(&self, py: Python<'_>, socket: RawFd) -> PyResult<()> {
        let socket = borrowed(socket)?;
        py.detach(|| self.template.send(&socket)).map_err(|error| raise(&error))
    }

    /// Sends it to every process that connects to a new socket at `path`, until that is closed.
    fn serve(&self, py: Python<'_>, path: PathBuf) -> PyResult<Server> {
        let started = py.detach(|| TemplateServer::start(self.template.clone(), &path));
        let started = started
            .map_err(|error| cowslip::Error::from_io("serve a template", &error).of_file(&path));
        Ok(Server(Mutex::new(Some(started.map_err(|error| raise(&error))?))))
    }

    /// Receives it from the other end of a Unix socket.
    #[staticmethod]
    #[pyo3(signature = (socket, timeout = None))]
    fn receive(py: Python<'_>, socket: RawFd, timeout: Option<f64>) -> PyResult<Self> {
        let (socket, silence) = (borrowed(socket)?, patience(timeout)?);
        interruptible(py, |proceed| {
            // SAFETY: see the module.
            unsafe { cowslip::Template::receive_within(&socket, silence, proceed) }
        })
        .map(Self::new)
    }
}

/// The template of an image's arena that a server holds in memory.
#[pyfunction]
pub(crate) fn template_via(py: Python<'_>, path: PathBuf, socket: PathBuf) -> PyResult<Template> {
    interruptible(py, |proceed| Image::open(&path)?.template_via_attended(&socket, 0, proceed))
        .map(Template::new)
}

/// A socket from which other processes get a template.
#[pyclass(frozen, module = "cowslip._native")]
#[derive(Debug)]
pub(crate) struct Server(Mutex<Option<TemplateServer>>);

#[pymethods]
impl Server {
    /// Removes the socket. Processes that have the template keep it.
    fn close(&self, py: Python<'_>) {
        let server = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take();
        py.detach(|| drop(server));
    }
}

/// A private copy of a template, for as long as there is a buffer of it.
#[pyclass(frozen, module = "cowslip._native")]
#[derive(Debug)]
pub(crate) struct Clone {
    cell: Arc<CloneCell>,
    range: VirtRange,
    regions: Vec<VirtRange>,
}

#[pymethods]
impl Clone {
    /// The clone's memory for a part of the arena.
    fn memory_at(&self, address: usize, length_bytes: usize) -> PyResult<Memory> {
        let holds =
            |region: &VirtRange| region.contains(address) && length_bytes <= region.end() - address;
        if !self.regions.iter().any(holds) {
            return Err(usage(format!(
                "{length_bytes} bytes at {address:#x} are not in the template"
            )));
        }
        let here = VirtRange::new(self.cell.lock().address(address), length_bytes);
        // SAFETY: the memory is the clone's own, and mapped as long as it lives.
        Ok(unsafe { Memory::new(here, false, Owner::Clone(Arc::clone(&self.cell))) })
    }

    /// First address and length in this process.
    #[getter]
    fn range(&self) -> (usize, usize) {
        (self.range.start, self.range.len)
    }

    /// Restores the template's content in place: every array of the clone shows the frozen content.
    fn reset(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.cell.lock().reset()).map_err(|error| raise(&error))
    }
}
