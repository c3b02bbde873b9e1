"""Templates, branches, and pools of processes that work on clones."""

import concurrent.futures
import json
import multiprocessing
import multiprocessing.resource_sharer
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import Any, Self, TypeVar

import numpy as np
import numpy.typing as npt

from . import _native
from ._errors import UsageError
from ._state import load
from ._views import MemoryAt, address_of, array_of, extent, is_within, same_place

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where an array is in the arena, from its start, for those who do not have it."""

    low: int
    length: int
    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    strides: tuple[int, ...]

    @classmethod
    def of(cls, array: npt.NDArray[Any], origin: int) -> "_Layout":
        low, length = extent(array)
        if array.dtype.hasobject:
            raise UsageError("an array of Python objects holds addresses, which mean nothing in another process")
        return cls(low - origin, length, address_of(array) - low, array.shape, array.dtype, array.strides)

    def array(self, origin: int, memory_at: MemoryAt) -> npt.NDArray[Any]:
        if self.length == 0:
            return np.empty(self.shape, self.dtype)
        return array_of(memory_at(origin + self.low, self.length), self.shape, self.dtype, self.offset, self.strides)


class Template:
    """An arena as of one instant. It pickles as descriptors, not as bytes, for every way to start a process.

    `template[table]` is an array of it that pickles so too: whoever unpickles it has an array, a private clone.
    """

    def __init__(self, native: _native.Template, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        self._native: _native.Template | None = native
        self._layouts = {name: _Layout.of(array, native.origin) for name, array in arrays.items()}

    def __repr__(self) -> str:
        state = "closed" if self._native is None else ", ".join(self._layouts) or "no names"
        return f"<cowslip.Template: {state}>"

    def _open(self) -> _native.Template:
        if self._native is None:
            raise UsageError("the template is closed")
        return self._native

    def branch(self) -> "Branch":
        """A private clone in this process."""
        native = self._open()
        return Branch(native.map(), native.origin, self._layouts)

    def __getitem__(self, key: npt.NDArray[Any] | str) -> "SharedArray":
        layout = self._layouts[key] if isinstance(key, str) else _Layout.of(key, self._open().origin)
        return SharedArray(self, layout)

    @classmethod
    def via(
        cls, path: str | os.PathLike[str], socket: str | os.PathLike[str], *, trust: bool = False
    ) -> tuple[Self, Any]:
        """The template of an image that the `cowslip serve` at `socket` has in memory, and the image's state.

        Every array of the state is of a private clone, and stays on the server's memory but for what is written: any number
        of processes hold one copy. Where the state is a dictionary, its arrays have their keys as names in the template.
        `trust` is as `cowslip.restore` has it.
        """
        native = _native.template_via(os.fspath(path), os.fspath(socket))
        template, clone = cls(native, {}), native.map()
        moved = 0

        def memory_at(address: int, length: int) -> _native.Memory:
            nonlocal moved
            memory = clone.memory_at(address, length)
            moved = memory.address - address
            return memory

        description = json.loads(_native.describe(os.fspath(path)))
        state = load(description, _roots(description, native.origin).get, memory_at, trust)
        if isinstance(state, dict):
            start, length = clone.range
            for name, value in state.items():
                if isinstance(value, np.ndarray) and is_within(*extent(value), start, length):
                    template._layouts[name] = _Layout.of(value, native.origin + moved)
        return template, state

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, it: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Lets the template go; clones go on, and so do other processes that have it."""
        self._native = None

    def __reduce__(self) -> tuple[Any, ...]:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            # What is sent waits in the socket, whose other end goes along.
            self._open().send(ours.fileno())
            return _receive, (multiprocessing.resource_sharer.DupFd(theirs.fileno()), self._layouts)


def _receive(descriptor: Any, layouts: dict[str, _Layout]) -> Template:
    with socket.socket(fileno=descriptor.detach()) as end:
        template = Template(_native.Template.receive(end.fileno()), {})
    template._layouts = layouts
    return template


def _roots(description: dict[str, Any], origin: int) -> dict[str, tuple[int, int]]:
    roots = description["roots"].items()
    return {name: (origin + root["offset_bytes"], root["length_bytes"]) for name, root in roots}


class SharedArray:
    """An array of a template on its way to other processes, each of which gets an `ndarray`: a private clone."""

    def __init__(self, template: Template, layout: _Layout) -> None:
        self._template, self._layout = template, layout
        self._looked: npt.NDArray[Any] | None = None

    def __repr__(self) -> str:
        return f"<cowslip.SharedArray of {self.dtype}, shape {self.shape}>"

    def array(self) -> npt.NDArray[Any]:
        """A private clone in this process."""
        native = self._template._open()
        return self._layout.array(native.origin, native.map().memory_at)

    def _look(self) -> npt.NDArray[Any]:
        if self._looked is None:
            self._looked = self.array()
            self._looked.flags.writeable = False
        return self._looked

    def __getitem__(self, key: Any) -> Any:
        """What was frozen, for reading."""
        return self._look()[key]

    def __len__(self) -> int:
        return len(self._look())

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return np.array(self._look(), dtype, copy=copy)

    @property
    def shape(self) -> tuple[int, ...]:
        return self._layout.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._layout.dtype

    def __reduce__(self) -> tuple[Any, ...]:
        return _receive_array, (self._template, self._layout)


def _receive_array(template: Template, layout: _Layout) -> npt.NDArray[Any]:
    return SharedArray(template, layout).array()


class Branch:
    """A private copy of an arena: `branch[table]` or, by its name in the template, `branch["table"]`."""

    def __init__(self, native: _native.Clone, origin: int, layouts: dict[str, _Layout]) -> None:
        self._native: _native.Clone | None = native
        self._origin, self._layouts = origin, layouts

    def __repr__(self) -> str:
        state = "closed" if self._native is None else ", ".join(self._layouts) or "no names"
        return f"<cowslip.Branch: {state}>"

    def _open(self) -> _native.Clone:
        if self._native is None:
            raise UsageError("the branch is closed")
        return self._native

    def __getitem__(self, key: npt.NDArray[Any] | str) -> npt.NDArray[Any]:
        native = self._open()
        if not isinstance(key, str):
            return same_place(key, native.memory_at)
        return self._layouts[key].array(self._origin, native.memory_at)

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
_is_reset = True


class _InterruptLater:
    """Holds Ctrl-C back in a `with` block: processes of an executor that was half started would wait for ever."""

    _came = False

    def __enter__(self) -> Self:
        self.before = signal.getsignal(signal.SIGINT)
        # Python raises it in the main thread only. `None` is a handler that is not Python's.
        self._is_ours = threading.current_thread() is threading.main_thread() and self.before is not None
        if self._is_ours:
            signal.signal(signal.SIGINT, self)
        return self

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self._came = True

    def __exit__(self, kind: type[BaseException] | None, it: BaseException | None, trace: TracebackType | None) -> None:
        if self._is_ours:
            signal.signal(signal.SIGINT, self.before)
            if self._came:
                signal.raise_signal(signal.SIGINT)


def _begin(template: Template, resets: bool) -> None:
    global _branch, _resets
    handler = signal.getsignal(signal.SIGINT)
    if isinstance(handler, _InterruptLater):
        # Of a fork in that block.
        signal.signal(signal.SIGINT, handler.before)
    _branch, _resets = template.branch(), resets


def _work(function: Callable[[Branch, T], R], item: T) -> R:
    global _is_reset
    assert _branch is not None
    if not _is_reset:
        # A signal's exception kept the task before from it.
        _branch.reset()
    _is_reset = not _resets
    try:
        return function(_branch, item)
    finally:
        if _resets:
            _branch.reset()
            _is_reset = True


def _work_on_all(function: Callable[[Branch, T], R], items: list[T]) -> list[R]:
    return [_work(function, item) for item in items]


def _results(futures: list[concurrent.futures.Future[list[R]]]) -> Iterator[R]:
    """The results of all, in order. Once one fails, or the iterator ends early, the others are cancelled."""
    futures.reverse()
    try:
        while futures:
            yield from futures.pop().result()
    except concurrent.futures.process.BrokenProcessPool:
        # The executor is failing the others just now. To cancel one meanwhile would end its thread before it ends the
        # processes (`InvalidStateError` in some versions of Python).
        futures.clear()
        raise
    finally:
        for future in futures:
            future.cancel()


class Pool:
    """Processes that each have a clone of a template: `function(branch, item)` for each item, in any of them.

    With `reset` each task finds the clone as it was frozen, whatever the one before wrote. `start_method` is "spawn",
    "forkserver" or "fork", as `multiprocessing` has them. A process that is killed ends the pool: its tasks raise
    `concurrent.futures.process.BrokenProcessPool`. An exception that leaves a `with` block cancels what has not begun.
    """

    def __init__(
        self, processes: int, template: Template, *, reset: bool = False, start_method: str = "spawn"
    ) -> None:
        context = multiprocessing.get_context(start_method)
        self._processes = processes
        self._executor: concurrent.futures.ProcessPoolExecutor | None = concurrent.futures.ProcessPoolExecutor(
            processes, context, initializer=_begin, initargs=(template, reset)
        )

    def _open(self) -> concurrent.futures.ProcessPoolExecutor:
        if self._executor is None:
            raise UsageError("the pool is closed")
        return self._executor

    def submit(self, function: Callable[[Branch, T], R], item: T) -> concurrent.futures.Future[R]:
        """A future of `function(branch, item)`."""
        executor = self._open()
        with _InterruptLater():
            return executor.submit(_work, function, item)

    def map(self, function: Callable[[Branch, T], R], items: Iterable[T], *, chunksize: int | None = None) -> list[R]:
        """Every result, in order. `chunksize` items go to a process at a time: a quarter of its share, if not said."""
        items = list(items)
        return list(self.imap(function, items, chunksize=chunksize or len(items) // (self._processes * 4) + 1))

    def imap(self, function: Callable[[Branch, T], R], items: Iterable[T], *, chunksize: int = 1) -> Iterator[R]:
        """The results, in order, as they come; `chunksize` items go to a process at a time."""
        executor, items = self._open(), list(items)
        if chunksize < 1:
            raise UsageError("chunksize is at least 1")
        parts = [items[at : at + chunksize] for at in range(0, len(items), chunksize)]
        with _InterruptLater():
            return _results([executor.submit(_work_on_all, function, part) for part in parts])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, it: BaseException | None, trace: TracebackType | None) -> None:
        self._end(cancel=kind is not None)

    def close(self) -> None:
        """Waits for the tasks, ends the processes, and lets the template go."""
        self._end(cancel=False)

    def _end(self, *, cancel: bool) -> None:
        if self._executor is not None:
            self._executor.shutdown(cancel_futures=cancel)
            self._executor = None
