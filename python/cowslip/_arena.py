"""Arenas of arrays."""

import contextlib
import math
import os
import sys
import warnings
import weakref
from collections.abc import Iterator, Mapping
from types import CodeType, TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, SupportsIndex

import numpy as np
import numpy.typing as npt

from . import _native
from ._errors import BusyError, UsageError
from ._save import Save, start_save
from ._making import Making
from ._sizes import parse_size
from ._views import S, address_of, same_place

if TYPE_CHECKING:
    from ._template import Branch, Template

Array = npt.NDArray[Any]

# A freeze that waits for a view as long names it in a `ResourceWarning`.
_LONG_SECONDS = 1.0


class Arena(Making):
    """Memory for arrays that can be frozen at one instant, in constant time, while threads run.

    `capacity` is reserved, not taken: a number of bytes or a text such as "64G", at most the machine's memory and swap.
    `backing` is "thp" (huge pages where the system gives them), "base" or "hugetlb". An arena lives as long as an
    array of it; leaving a `with` block makes it refuse new ones.

    A forked child has the arrays as of the fork, as its own; meanwhile the parent cannot freeze the arena. With
    `at_fork=False` it can, and a child that touches an array dies.

    >>> arena = Arena("64M")
    >>> table = arena.zeros((1000, 8))
    >>> table.nbytes
    64000
    """

    def __init__(
        self,
        capacity: SupportsIndex | str,
        *,
        backing: Literal["thp", "base", "hugetlb"] = "thp",
        userfaultfd: bool = True,
        at_fork: bool = True,
    ) -> None:
        self._start(_native.Arena(parse_size(capacity), backing, userfaultfd), at_fork)

    @classmethod
    def _of(cls, native: _native.Arena, at_fork: bool) -> Self:
        arena = cls.__new__(cls)
        arena._start(native, at_fork)
        return arena

    def _start(self, native: _native.Arena, at_fork: bool) -> None:
        self._native = native
        self._closed = False
        self._parent: str | None = None
        self._saves: weakref.WeakSet[Save] = weakref.WeakSet()
        # Of the last view, and the instruction that made it.
        self._views: list[tuple[_native.Watch, CodeType, int]] = []
        if at_fork:
            native.install_at_fork()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, it: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        start, length = self._native.range
        return f"<cowslip.Arena of {length >> 20} MiB at {start:#x}>"

    def close(self) -> None:
        """Waits for saves under way; the arena hands nothing out any more."""
        for save in list(self._saves):
            save.wait_here()
        self._closed = True

    @property
    def closed(self) -> bool:
        return self._closed

    def _open(self) -> _native.Arena:
        if self._closed:
            raise UsageError("the arena is closed")
        return self._native

    @contextlib.contextmanager
    def allocating(self) -> Iterator[Self]:
        """Has every array that numpy makes in a `with` block take its memory from the arena, whoever makes it (NEP 49).

        It holds for this thread, or this task of asyncio. Arrays that are there already stay where they are. A full arena
        is a `MemoryError`. Memory of small arrays is kept for others to come.

        >>> arena = Arena("64M")
        >>> with arena.allocating():
        ...     index = np.arange(1000).reshape(10, 100) * 2
        >>> index in arena
        True
        """
        before = _native.set_handler(self._open().handler())
        try:
            yield self
        finally:
            _native.set_handler(before)

    def __contains__(self, array: object) -> bool:
        """Whether it is an array, or a tensor of PyTorch's, whose memory is the arena's."""
        if isinstance(array, np.ndarray):
            address = address_of(array)
        elif hasattr(array, "data_ptr"):
            address = array.data_ptr()
        else:
            return False
        start, length = self._native.range
        return start <= address < start + length

    def discard(self, array: Array) -> None:
        """Makes the whole pages of a contiguous `array` zeroes, and gives their memory back to the system."""
        if not array.flags.c_contiguous and not array.flags.f_contiguous:
            raise UsageError("the array is not contiguous")
        self._open().discard(address_of(array), array.nbytes)

    def freeze(self, timeout: float | None = 60.0) -> "Frozen":
        """The content of every array now, beside that of up to 63 earlier views that are open.

        Where there may be no more views, it waits up to `timeout` seconds for one to be closed. Arrays of an earlier view
        that is closed stay as they are: what is left of them is copied by this.
        """
        native = self._freeze(timeout)
        frame = sys._getframe(1)
        self._views = [it for it in self._views if not it[0].ended]
        self._views.append((native.watch(), frame.f_code, frame.f_lasti))
        return Frozen(native)

    def _freeze(self, timeout: float | None) -> _native.Frozen:
        native = self._open()
        if timeout is not None and not hasattr(timeout, "__float__"):
            raise TypeError(f"timeout is a number of seconds, or None to wait for ever, not {type(timeout).__name__}")
        left = math.inf if timeout is None else float(timeout)
        try:
            return native.freeze(min(left, _LONG_SECONDS))
        except BusyError as error:
            left -= _LONG_SECONDS
            holder = self._holder()
            if left <= 0:
                raise _with_note(error, holder)
        if holder:
            warnings.warn(holder, ResourceWarning, stacklevel=3)
        try:
            return native.freeze(None if timeout is None else left)
        except BusyError as error:
            raise _with_note(error, self._holder())

    def _holder(self) -> str | None:
        """What a freeze waits for, if that is a view of the program's."""
        oldest = next((it for it in self._views if not it[0].ended), None)
        if oldest is None:
            return None
        view, code, instruction = oldest
        line = next((line for start, end, line in code.co_lines() if start <= instruction < end), None)
        made = f"{code.co_filename}:{line}"
        return f"a freeze waits for the view of {made}, {view.age_s:.1f} s old: use it in a `with` block, or close it"

    def undo(self, then: "Frozen") -> None:
        """Makes every array what it was at the freeze of `then`, which stays open, as other views do.

        Arrays that were made since then are zeroes. No other thread may use arrays of the arena meanwhile.

        >>> arena = Arena("64M")
        >>> table = arena.zeros(3)
        >>> with arena.freeze() as then:
        ...     table[1] = 5
        ...     arena.undo(then)
        >>> table
        array([0., 0., 0.])
        """
        if not isinstance(then, Frozen):
            raise UsageError(f"a view is wanted, not {type(then).__name__}")
        self._open().roll_back(then._native)

    def template(self, arrays: Mapping[str, Array] | None = None, *, timeout: float | None = 60.0) -> "Template":
        """A template of the arena now, of which processes have private clones; `arrays` by name are found there by it.

        As long as any process has the template or a clone, what it shows is held beside what is written.
        """
        # With multiprocessing, which takes longer to import than all else.
        from ._template import Template

        return Template(self._freeze(timeout).take_template(), dict(arrays or {}))

    def branch(self, arrays: Mapping[str, Array] | None = None) -> "Branch":
        """What if: a private copy of the arena now, dropped at the end of a `with` block."""
        return self.template(arrays).branch()

    def save(
        self,
        path: str | os.PathLike[str],
        state: object,
        *,
        parent: str | os.PathLike[str] | None = None,
        compress: str = "none",
        threads: int = 0,
        timeout: float | None = 60.0,
    ) -> Save:
        """Starts to save `state`, as of now, and returns at once; a `Save` tells how it goes.

        `state` is anything that pickles. Arrays and PyTorch's tensors of the arena in it are not copied, wherever they are in
        it. `parent` is an image in the same folder, of which only the differences are written; "auto": the last one that
        this arena saved. `compress` is "none", "lz4", "zstd" or "zstd:LEVEL". An earlier view or save is waited for up to
        `timeout` seconds. The program's end waits for saves under way.
        """
        path = os.fspath(path)
        if not os.path.isabs(path):
            path = os.path.abspath(path)
        if parent == "auto":
            parent = self._parent if self._parent != os.path.normpath(path) else None
            if self._parent is None:
                self._native.track_changes(True)
        # The arrays' content is of the freeze, the rest's of this line: the same instant for this thread.
        frozen = self._freeze(timeout)
        try:
            save = start_save(self._native, frozen, path, state, parent, compress, threads)
        finally:
            frozen.close()
        self._saves.add(save)
        save.add_done_callback(lambda it: self._saved(path) if not it.cancelled() and it.exception() is None else None)
        return save

    def _saved(self, path: str) -> None:
        self._parent = os.path.normpath(path)

    def metrics(self) -> dict[str, int]:
        """The engine's counters, by name."""
        return self._native.metrics()


def _with_note(error: BusyError, note: str | None) -> BusyError:
    if note:
        error.add_note(note)
    return error


class Frozen:
    """Every array of an arena as it was at one instant: `then[table]` is a read-only array, without a copy."""

    __slots__ = ("__weakref__", "_native")

    def __init__(self, native: _native.Frozen) -> None:
        self._native = native

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{self._native.watch().age_s:.1f} s old"
        return f"<cowslip.Frozen, {state}>"

    def __getitem__(self, array: npt.NDArray[S]) -> npt.NDArray[S]:
        view = same_place(array, self._native.memory_at)
        view.flags.writeable = False
        return view

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, it: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Lets the view go; arrays of it stay as they are."""
        self._native.close()

    @property
    def closed(self) -> bool:
        return self._native.closed
