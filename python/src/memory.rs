#![allow(unsafe_code)]
//! Memory of the engine's as a buffer (PEP 3118), of which numpy makes arrays without a copy.
//!
//! # Safety
//! The owner of a buffer's memory keeps it mapped: [`Memory`] holds the owner, and Python holds the
//! [`Memory`] as long as there is a buffer. Frozen memory is handed out for reading only. By Python's own
//! rule for buffers, the user must avoid races on a shared one, as for every array.

use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, MutexGuard};

use cowslip::TemplateClone;
use cowslip::units::VirtRange;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;

use crate::view::View;

/// A clone, which is reset by one thread at a time.
#[derive(Debug)]
pub(crate) struct CloneCell(Mutex<TemplateClone>);

impl CloneCell {
    pub(crate) fn new(clone: TemplateClone) -> Self {
        Self(Mutex::new(clone))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, TemplateClone> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// The owner that keeps the memory mapped.
#[derive(Debug)]
pub(crate) enum Owner {
    /// Memory that was allocated here, and is released with this.
    Allocated(cowslip::Arena),
    /// Memory of an arena that is released elsewhere, or never.
    Arena(#[allow(dead_code, reason = "it is held")] cowslip::Arena),
    /// A part of the arena, shown by a view.
    Frozen(Arc<View>, VirtRange),
    Clone(#[allow(dead_code, reason = "it is held")] Arc<CloneCell>),
}

/// A piece of memory, as a buffer of bytes.
#[pyclass(frozen, module = "cowslip._native")]
#[derive(Debug)]
pub(crate) struct Memory {
    range: VirtRange,
    is_readonly: bool,
    owner: Owner,
}

impl Memory {
    /// # Safety
    /// The range is mapped, readable and, unless `is_readonly`, writable, as long as `owner` lives.
    pub(crate) unsafe fn new(range: VirtRange, is_readonly: bool, owner: Owner) -> Self {
        Self { range, is_readonly, owner }
    }
}

#[pymethods]
impl Memory {
    /// Its first address in this process.
    #[getter]
    fn address(&self) -> usize {
        self.range.start
    }

    fn __len__(&self) -> usize {
        self.range.len
    }

    /// # Safety
    /// Python's contract: `view` may be written to.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        if view.is_null() {
            return Err(PyBufferError::new_err("there is no view"));
        }
        let this = slf.get();
        let length = this.range.len as ffi::Py_ssize_t;
        // SAFETY: Python's function fills the view, which holds this object from then on; see the module for
        // the memory.
        let status = unsafe {
            ffi::PyBuffer_FillInfo(
                view,
                slf.as_ptr(),
                this.range.start as *mut c_void,
                length,
                c_int::from(this.is_readonly),
                flags,
            )
        };
        if status == 0 { Ok(()) } else { Err(PyErr::fetch(slf.py())) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        match &self.owner {
            // SAFETY: no buffer of it is left, or Python would hold this. If the kernel refuses, it stays
            // handed out: a leak.
            Owner::Allocated(arena) => drop(unsafe { arena.release(self.range) }),
            Owner::Frozen(view, part) => view.forget(*part),
            Owner::Arena(_) | Owner::Clone(_) => {}
        }
    }
}
