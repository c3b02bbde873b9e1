#![allow(unsafe_code)]
//! Memory of the engine's as a buffer (PEP 3118), which numpy makes arrays of without a copy.
//!
//! # Safety
//! A buffer is of memory that its owner keeps mapped: [`Memory`] holds the owner, and Python holds the [`Memory`] as long as
//! anybody has the buffer. Frozen memory is handed out for reading only. Python's own rule for buffers, that who shares
//! one sees to races, is the user's as it is for every array.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use cowslip::units::VirtRange;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;

use crate::template::CloneCell;
use crate::view::View;

/// Who keeps the memory mapped.
#[derive(Debug)]
pub(crate) enum Owner {
    /// Memory that was allocated here, given back with this.
    Allocated(cowslip::Arena),
    /// Memory of an arena that others give back, or nobody.
    Arena(#[allow(dead_code, reason = "it is held")] cowslip::Arena),
    /// A part of a view's arena that it shows.
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
    /// Python's: `view` may be written to.
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
        // SAFETY: Python's function fills the view, which holds this object from then on; the memory is as the module says.
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
            // SAFETY: no buffer of it is left, or Python would hold this. If the kernel refuses it stays handed out: a leak.
            Owner::Allocated(arena) => drop(unsafe { arena.release(self.range) }),
            Owner::Frozen(view, part) => view.forget(*part),
            Owner::Arena(_) | Owner::Clone(_) => {}
        }
    }
}
