"""Templates, branches, and pools of processes that work on clones."""

import concurrent.futures
import itertools
import multiprocessing
import multiprocessing.resource_sharer
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar

import numpy as np
import numpy.typing as npt

from . import _native
from ._native import UsageError
from ._views import MemoryAt, address_of, array_of, extent, same_place

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where an array is in the arena, for those who do not have it."""

    low: int
    length: int
    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    strides: tuple[int, ...]

    @classmethod
    def of(cls, array: npt.NDArray[Any]) -> "_Layout":
        low, length = extent(array)
        if array.dtype.hasobject:
            raise UsageError("an array of Python objects holds addresses, which mean nothing in another process")
        return cls(low, length, address_of(array) - low, array.shape, array.dtype, array.strides)

    def array(self, memory_at: MemoryAt) -> npt.NDArray[Any]:
        if self.length == 0:
            return np.empty(self.shape, self.dtype)
        return array_of(memory_at(self.low, self.length), self.shape, self.dtype, self.offset, self.strides)


class Template:
    """An arena as of one instant. It pickles as descriptors, not as bytes, for every way to start a process.

    `template[table]` is an array of it that pickles so too: whoever unpickles it has an array, a private clone.
    """

    def __init__(self, native: _native.Template, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        self._native = native
        self._layouts = {name: _Layout.of(array) for name, array in arrays.items()}

    def branch(self) -> "Branch":
        """A private clone in this process."""
        return Branch(self._native.map(), self._layouts)

    def __getitem__(self, key: npt.NDArray[Any] | str) -> "SharedArray":
        return SharedArray(self, self._layouts[key] if isinstance(key, str) else _Layout.of(key))

    def __reduce__(self) -> tuple[Any, ...]:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            # What is sent waits in the socket, whose other end goes along.
            self._native.send(ours.fileno())
            return _receive, (multiprocessing.resource_sharer.DupFd(theirs.fileno()), self._layouts)


def _receive(descriptor: Any, layouts: dict[str, _Layout]) -> Template:
    with socket.socket(fileno=descriptor.detach()) as end:
        template = Template(_native.Template.receive(end.fileno()), {})
    template._layouts = layouts
    return template


class SharedArray:
    """An array of a template on its way to other processes, each of which gets an `ndarray`: a private clone."""

    def __init__(self, template: Template, layout: _Layout) -> None:
        self._template, self._layout = template, layout

    def array(self) -> npt.NDArray[Any]:
        """A private clone in this process."""
        return self._layout.array(self._template._native.map().memory_at)

    def __reduce__(self) -> tuple[Any, ...]:
        return _receive_array, (self._template, self._layout)


def _receive_array(template: Template, layout: _Layout) -> npt.NDArray[Any]:
    return SharedArray(template, layout).array()


class Branch:
    """A private copy of an arena: `branch[table]` or, by its name in the template, `branch["table"]`."""

    def __init__(self, native: _native.Clone, layouts: dict[str, _Layout]) -> None:
        self._native: _native.Clone | None = native
        self._layouts = layouts

    def _open(self) -> _native.Clone:
        if self._native is None:
            raise UsageError("the branch is closed")
        return self._native

    def __getitem__(self, key: npt.NDArray[Any] | str) -> npt.NDArray[Any]:
        native = self._open()
        if not isinstance(key, str):
            return same_place(key, native.memory_at)
        return self._layouts[key].array(native.memory_at)

    def reset(self) -> None:
        """Back to the template, in place: every array of the branch shows what was frozen."""
        self._open().reset()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, it: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Lets the copy go; it ends when no array of it is left."""
        self._native = None


_branch: Branch | None = None
_resets = False


def _begin(template: Template, resets: bool) -> None:
    global _branch, _resets
    _branch, _resets = template.branch(), resets


def _work(function: Callable[[Branch, T], R], item: T) -> R:
    assert _branch is not None
    try:
        return function(_branch, item)
    finally:
        if _resets:
            _branch.reset()


class Pool:
    """Processes that each have a clone of a template: `function(branch, item)` for each item, in any of them.

    With `reset` each task finds the clone as it was frozen, whatever the one before wrote. `start_method` is "spawn",
    "forkserver" or "fork", as `multiprocessing` has them.
    """

    def __init__(
        self, processes: int, template: Template, *, reset: bool = False, start_method: str = "spawn"
    ) -> None:
        context = multiprocessing.get_context(start_method)
        self._executor = concurrent.futures.ProcessPoolExecutor(
            processes, context, initializer=_begin, initargs=(template, reset)
        )

    def submit(self, function: Callable[[Branch, T], R], item: T) -> concurrent.futures.Future[R]:
        """A future of `function(branch, item)`."""
        return self._executor.submit(_work, function, item)

    def map(self, function: Callable[[Branch, T], R], items: Iterable[T], *, chunksize: int = 1) -> list[R]:
        """Every result, in order."""
        return list(self.imap(function, items, chunksize=chunksize))

    def imap(self, function: Callable[[Branch, T], R], items: Iterable[T], *, chunksize: int = 1) -> Iterator[R]:
        """The results, in order, as they come; `chunksize` items go to a process at a time."""
        return self._executor.map(_work, itertools.repeat(function), items, chunksize=chunksize)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, it: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Waits for the tasks, and ends the processes."""
        self._executor.shutdown()
