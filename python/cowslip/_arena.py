"""Arenas of arrays."""

import math
import os
import weakref

import numpy as np

from . import _native
from ._image import Save, start_save
from ._native import UsageError
from ._sizes import parse_size
from ._template import Template
from ._views import same_place


class Arena:
    """Memory for arrays that can be frozen at one instant, in constant time, while threads run.

    `capacity` is reserved, not taken: a number of bytes or a text such as "64G", at most the machine's memory and swap.
    `backing` is "thp" (huge pages where the system gives them), "base" or "hugetlb". An arena lives as long as an
    array of it; leaving a `with` block makes it refuse new ones.

    >>> arena = Arena("64M")
    >>> table = arena.zeros((1000, 8))
    >>> table.nbytes
    64000
    """

    def __init__(self, capacity, *, backing="thp", userfaultfd=True):
        self._native = _native.Arena(parse_size(capacity), backing, userfaultfd)
        self._closed = False
        self._parent = None
        self._saves = weakref.WeakSet()

    @classmethod
    def _of(cls, native):
        arena = cls.__new__(cls)
        arena._native, arena._closed, arena._parent, arena._saves = native, False, None, weakref.WeakSet()
        return arena

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __repr__(self):
        start, length = self._native.range
        return f"<cowslip.Arena of {length >> 20} MiB at {start:#x}>"

    def close(self):
        """Waits for saves under way; the arena hands nothing out any more."""
        for save in list(self._saves):
            save.wait()
        self._closed = True

    @property
    def closed(self):
        return self._closed

    def _open(self):
        if self._closed:
            raise UsageError("the arena is closed")
        return self._native

    def empty(self, shape, dtype=float, order="C"):
        """An array of zeroes: new memory has no other content. Its memory is given back when nobody has it."""
        dtype = np.dtype(dtype)
        if dtype.hasobject:
            raise UsageError("arrays of Python objects hold addresses, which mean nothing in an image")
        shape = (shape,) if np.isscalar(shape) else tuple(shape)
        length = math.prod(shape) * dtype.itemsize
        if length == 0:
            return np.empty(shape, dtype, order)
        memory = self._open().allocate(length)
        return np.ndarray(shape, dtype, memory, order=order)

    zeros = empty

    def full(self, shape, fill_value, dtype=None):
        """An array that holds `fill_value` everywhere."""
        array = self.empty(shape, np.asarray(fill_value).dtype if dtype is None else dtype)
        array[...] = fill_value
        return array

    def array(self, values, dtype=None):
        """A copy of `values` in the arena."""
        values = np.asarray(values, dtype)
        array = self.empty(values.shape, values.dtype)
        array[...] = values
        return array

    def __contains__(self, array):
        start, length = self._native.range
        address = array.__array_interface__["data"][0]
        return start <= address < start + length

    def discard(self, array):
        """Makes the whole pages of a contiguous `array` zeroes, and gives their memory back to the system."""
        if not array.flags.c_contiguous and not array.flags.f_contiguous:
            raise UsageError("the array is not contiguous")
        self._open().discard(array.__array_interface__["data"][0], array.nbytes)

    def freeze(self, timeout=60.0):
        """The content of every array now. Waits up to `timeout` seconds for an earlier view to be gone."""
        return Frozen(self._open().freeze(timeout))

    def template(self, arrays=None):
        """A template of the arena now, of which processes have private clones; `arrays` by name are found there by it."""
        return Template(self.freeze()._native.into_template(), dict(arrays or {}))

    def branch(self, arrays=None):
        """What if: a private copy of the arena now, dropped at the end of a `with` block."""
        return self.template(arrays).branch()

    def save(self, path, state, *, parent=None, compress="none", threads=0):
        """Starts to save `state`, as of now, and returns at once; a `Save` tells how it goes.

        `state` is anything that pickles. Arrays of the arena in it are not copied, wherever they are in it. `parent` is an
        image in the same folder, of which only the differences are written; "auto": the last one that this arena saved.
        `compress` is "none", "lz4", "zstd" or "zstd:LEVEL".
        """
        path = os.path.abspath(os.fspath(path))
        if parent == "auto":
            parent = self._parent if self._parent != path else None
            if self._parent is None:
                self._native.track_changes(True)
        # The arrays' content is of the freeze, the rest's of this line: the same instant for this thread.
        frozen = self.freeze()
        save = start_save(self._native, frozen._native, path, state, parent, compress, threads)
        frozen.close()
        self._saves.add(save)
        save.add_done_callback(lambda it: self._saved(path) if it.exception() is None else None)
        return save

    def _saved(self, path):
        self._parent = path

    def install_at_fork(self):
        """Has every later `os.fork` of the process take the arena along: frozen in microseconds, then forked."""
        self._open().install_at_fork()

    def metrics(self):
        """The engine's counters, by name."""
        return self._native.metrics()


def install_at_fork(arena):
    """As `Arena.install_at_fork`."""
    arena.install_at_fork()


class Frozen:
    """Every array of an arena as it was at one instant: `then[table]` is a read-only array, without a copy."""

    def __init__(self, native):
        self._native = native

    def __getitem__(self, array):
        view = same_place(array, self._native.memory_at)
        view.flags.writeable = False
        return view

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        """Lets the view go; it ends when no array of it is left."""
        self._native.close()

    @property
    def closed(self):
        return self._native.closed
