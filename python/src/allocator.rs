#![allow(unsafe_code)]
//! NEP 49: the memory of numpy's arrays, taken from an arena.
//!
//! Arrays of up to 32 KiB share slabs of blocks of one size; a larger one has its own pages. Slabs and a few
//! large pieces are kept for later arrays, because programs make temporaries of the same sizes again and
//! again.
//!
//! # Safety
//! numpy calls the functions of a handler with the handler's `ctx` and with addresses from the same handler,
//! and keeps the capsule of a handler as long as an array uses its memory (NEP 49). All addresses are
//! recorded here: lengths from numpy are not relied on.

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_void};
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard};

use cowslip::units::{ByteCount, CHUNK_BYTES, VirtRange, page_size_bytes};
use cowslip::{ErrorKind, Prot};
use pyo3::ffi;
use pyo3::prelude::*;

const SLAB_BYTES: usize = 64 << 10;
const LARGEST_BLOCK_BYTES: usize = 32 << 10;
/// The most memory kept of freed large pieces.
const MOST_SPARE_BYTES: usize = 64 << 20;
const BLOCK_UNIT_BYTES: usize = 64;

/// The length of the blocks for `length` bytes: multiples of 64 up to 1 KiB, then four lengths per doubling.
fn block_bytes(length: usize) -> usize {
    let step = if length <= 1 << 10 { BLOCK_UNIT_BYTES } else { length.next_power_of_two() / 8 };
    length.max(1).next_multiple_of(step)
}

#[derive(Debug, Default)]
struct Blocks {
    /// Free blocks, by length.
    free: HashMap<usize, Vec<usize>>,
    /// Length of the blocks of each slab, by the slab's address.
    slabs: HashMap<usize, usize>,
    free_slabs: Vec<usize>,
    /// The chunks that were cut into slabs.
    chunks: Vec<VirtRange>,
    /// Pieces in use with their own pages: lengths by address.
    large: HashMap<usize, usize>,
    /// Kept pieces, by length.
    spare: HashMap<usize, Vec<usize>>,
    spare_bytes: usize,
}

/// The part of an arena's memory that numpy uses.
#[derive(Debug)]
pub(crate) struct Allocator {
    arena: cowslip::Arena,
    blocks: Mutex<Blocks>,
}

/// Allocated memory, and whether it is known to be zeroed.
struct Given {
    address: usize,
    is_zeroed: bool,
}

impl Allocator {
    pub(crate) fn new(arena: cowslip::Arena) -> Self {
        Self { arena, blocks: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Blocks> {
        self.blocks.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn allocate(&self, length: usize) -> cowslip::Result<Given> {
        let mut blocks = self.lock();
        let given = self.take_from_arena(&mut blocks, length);
        if given.is_err() && blocks.spare_bytes > 0 {
            self.release_spares(&mut blocks);
            return self.take_from_arena(&mut blocks, length);
        }
        given
    }

    fn take_from_arena(&self, blocks: &mut Blocks, length: usize) -> cowslip::Result<Given> {
        if length <= LARGEST_BLOCK_BYTES {
            return Ok(Given {
                address: self.block(blocks, block_bytes(length))?,
                is_zeroed: false,
            });
        }
        // The arena rounds lengths in the same way.
        let length = length.checked_next_multiple_of(page_size_bytes()).unwrap_or(length);
        let kept = blocks.spare.get_mut(&length).and_then(Vec::pop);
        if let Some(address) = kept {
            blocks.spare_bytes -= length;
            blocks.large.insert(address, length);
            return Ok(Given { address, is_zeroed: false });
        }
        let range = self.arena.allocate(ByteCount(length as u64), Prot::RW)?;
        blocks.large.insert(range.start, range.len);
        Ok(Given { address: range.start, is_zeroed: true })
    }

    fn block(&self, blocks: &mut Blocks, block: usize) -> cowslip::Result<usize> {
        if let Some(address) = blocks.free.get_mut(&block).and_then(Vec::pop) {
            return Ok(address);
        }
        if blocks.free_slabs.is_empty() {
            let chunk = self.arena.allocate(ByteCount(CHUNK_BYTES as u64), Prot::RW)?;
            blocks.chunks.push(chunk);
            blocks.free_slabs.extend((chunk.start..chunk.end()).step_by(SLAB_BYTES).rev());
        }
        let slab = blocks.free_slabs.pop().expect("there is one by now");
        blocks.slabs.insert(slab, block);
        let count = SLAB_BYTES / block;
        // The first block is returned now; the others follow in the order of their addresses.
        blocks.free.entry(block).or_default().extend((1..count).rev().map(|i| slab + i * block));
        Ok(slab)
    }

    /// The usable length at an allocated address.
    fn usable_bytes(&self, address: usize) -> usize {
        let blocks = self.lock();
        let slab = address & !(SLAB_BYTES - 1);
        blocks.large.get(&address).or_else(|| blocks.slabs.get(&slab)).copied().unwrap_or(0)
    }

    fn free(&self, address: usize) {
        let mut blocks = self.lock();
        let Some(length) = blocks.large.remove(&address) else {
            // Chunks are aligned to 2 MiB, and slabs therefore to their length.
            if let Some(&block) = blocks.slabs.get(&(address & !(SLAB_BYTES - 1))) {
                blocks.free.entry(block).or_default().push(address);
            }
            return;
        };
        if blocks.spare_bytes + length <= MOST_SPARE_BYTES {
            blocks.spare_bytes += length;
            blocks.spare.entry(length).or_default().push(address);
            return;
        }
        drop(blocks);
        self.release(VirtRange::new(address, length));
    }

    fn release_spares(&self, blocks: &mut Blocks) {
        blocks.spare_bytes = 0;
        for (length, addresses) in blocks.spare.drain() {
            for address in addresses {
                self.release(VirtRange::new(address, length));
            }
        }
    }

    fn release(&self, range: VirtRange) {
        // SAFETY: the range belongs to this allocator and is not in use. If the kernel refuses, it stays
        // handed out: a leak.
        let _ = unsafe { self.arena.release(range) };
    }
}

impl Drop for Allocator {
    /// No capsule is left, and therefore no array.
    fn drop(&mut self) {
        let mut blocks = std::mem::take(&mut *self.lock());
        self.release_spares(&mut blocks);
        for chunk in blocks.chunks {
            self.release(chunk);
        }
    }
}

const NAME: &CStr = c"mem_handler";

/// `PyDataMem_Handler` of numpy's `ndarraytypes.h`.
#[repr(C)]
struct Handler {
    name: [c_char; 127],
    version: u8,
    ctx: *const Allocator,
    malloc: unsafe extern "C" fn(*const Allocator, usize) -> *mut c_void,
    calloc: unsafe extern "C" fn(*const Allocator, usize, usize) -> *mut c_void,
    realloc: unsafe extern "C" fn(*const Allocator, *mut c_void, usize) -> *mut c_void,
    free: unsafe extern "C" fn(*const Allocator, *mut c_void, usize),
}

/// A capsule that numpy accepts as a handler.
pub(crate) fn handler<'py>(
    py: Python<'py>,
    allocator: &Arc<Allocator>,
) -> PyResult<Bound<'py, PyAny>> {
    let mut name = [0; 127];
    for (to, from) in name.iter_mut().zip(b"cowslip") {
        *to = *from as c_char;
    }
    let ctx = Arc::into_raw(Arc::clone(allocator));
    let handler =
        Box::into_raw(Box::new(Handler { name, version: 1, ctx, malloc, calloc, realloc, free }));
    // SAFETY: the name is static; the destructor is the one for the handler passed here.
    unsafe {
        let capsule = ffi::PyCapsule_New(handler.cast(), NAME.as_ptr(), Some(drop_handler));
        Bound::from_owned_ptr_or_err(py, capsule).inspect_err(|_| take_handler(handler))
    }
}

/// # Safety
/// `handler` was made by [`handler`], and is not used after this.
unsafe fn take_handler(handler: *mut Handler) {
    // SAFETY: both pointers were made by `Box::into_raw` and `Arc::into_raw`, and are taken once.
    unsafe { drop(Arc::from_raw(Box::from_raw(handler).ctx)) }
}

unsafe extern "C" fn drop_handler(capsule: *mut ffi::PyObject) {
    // SAFETY: Python calls it once, at the end of a capsule of `handler`.
    unsafe {
        let handler = ffi::PyCapsule_GetPointer(capsule, NAME.as_ptr());
        take_handler(handler.cast());
    }
}

/// Makes numpy take new arrays' memory from a handler, in this context (`contextvars`); returns the previous
/// one.
#[pyfunction]
pub(crate) fn set_handler<'py>(
    py: Python<'py>,
    handler: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    /// `PyDataMem_SetHandler`, at the same index in all versions of numpy's API since 1.22.
    const SET_HANDLER: usize = 304;
    let multiarray = py
        .import("numpy._core._multiarray_umath")
        .or_else(|_| py.import("numpy.core._multiarray_umath"))?;
    let api = multiarray.getattr("_ARRAY_API")?;
    // SAFETY: `api` is an unnamed capsule with numpy's table, which is never freed; the function takes a
    // capsule or None, and returns a new reference or raises.
    unsafe {
        let table = ffi::PyCapsule_GetPointer(api.as_ptr(), ptr::null()).cast::<*const c_void>();
        if table.is_null() {
            return Err(PyErr::fetch(py));
        }
        let set: unsafe extern "C" fn(*mut ffi::PyObject) -> *mut ffi::PyObject =
            std::mem::transmute(*table.add(SET_HANDLER));
        Bound::from_owned_ptr_or_err(py, set(handler.as_ptr()))
    }
}

unsafe extern "C" {
    #[link_name = "malloc"]
    fn libc_malloc(length: usize) -> *mut c_void;
    #[link_name = "realloc"]
    fn libc_realloc(at: *mut c_void, length: usize) -> *mut c_void;
    #[link_name = "free"]
    fn libc_free(at: *mut c_void);
}

/// Memory for numpy; null if there is none. A forked child cannot use its parent's arena, and gets memory
/// from the heap.
///
/// # Safety
/// `ctx` belongs to a handler.
unsafe fn give(ctx: *const Allocator, length: usize, is_zeroed: bool) -> *mut c_void {
    // SAFETY: the capsule keeps the allocator alive.
    let allocator = unsafe { &*ctx };
    let at = match allocator.allocate(length) {
        Ok(given) if given.is_zeroed => return given.address as *mut c_void,
        Ok(given) => given.address as *mut c_void,
        // SAFETY: malloc accepts any length.
        Err(error) if error.kind() == ErrorKind::Busy => unsafe { libc_malloc(length.max(1)) },
        Err(_) => ptr::null_mut(),
    };
    if is_zeroed && !at.is_null() {
        // SAFETY: `at` has `length` bytes, allocated just now.
        unsafe { ptr::write_bytes(at.cast::<u8>(), 0, length) };
    }
    at
}

unsafe extern "C" fn malloc(ctx: *const Allocator, length: usize) -> *mut c_void {
    // SAFETY: the caller keeps the contract of `give`.
    unsafe { give(ctx, length, false) }
}

unsafe extern "C" fn calloc(ctx: *const Allocator, count: usize, each: usize) -> *mut c_void {
    let Some(length) = count.checked_mul(each) else { return ptr::null_mut() };
    // SAFETY: the caller keeps the contract of `give`.
    unsafe { give(ctx, length, true) }
}

unsafe extern "C" fn realloc(ctx: *const Allocator, at: *mut c_void, length: usize) -> *mut c_void {
    // SAFETY: the capsule keeps the allocator alive.
    let allocator = unsafe { &*ctx };
    if at.is_null() {
        // SAFETY: the caller keeps the contract of `give`.
        return unsafe { give(ctx, length, false) };
    }
    if !allocator.arena.range().contains(at.addr()) {
        // SAFETY: memory outside the arena is from the heap: see `give`.
        return unsafe { libc_realloc(at, length.max(1)) };
    }
    let usable = allocator.usable_bytes(at.addr());
    if length <= usable && length >= usable / 2 {
        return at;
    }
    // SAFETY: `at` has `usable` bytes, the new memory `length`, and they do not overlap.
    unsafe {
        let new = give(ctx, length, false);
        if !new.is_null() {
            ptr::copy_nonoverlapping(at.cast::<u8>(), new.cast::<u8>(), usable.min(length));
            free(ctx, at, usable);
        }
        new
    }
}

unsafe extern "C" fn free(ctx: *const Allocator, at: *mut c_void, _length: usize) {
    // SAFETY: the capsule keeps the allocator alive.
    let allocator = unsafe { &*ctx };
    if allocator.arena.range().contains(at.addr()) {
        allocator.free(at.addr());
    } else {
        // SAFETY: it is null, or from the heap: see `give`.
        unsafe { libc_free(at) };
    }
}
