"""Templates, branches, and pools of processes that work on clones."""

import concurrent.futures
import itertools
import multiprocessing
import multiprocessing.resource_sharer
import socket

from . import _native
from ._native import UsageError
from ._views import extent, same_place


class Template:
    """An arena as of one instant. It pickles as descriptors, not as bytes, to a process that is being started."""

    def __init__(self, native, arrays):
        self._native = native
        self._layouts = {name: _Layout.of(array) for name, array in arrays.items()}

    def branch(self):
        """A private clone in this process."""
        return Branch(self._native.map(), self._layouts)

    def __reduce__(self):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            # What is sent waits in the socket, whose other end goes along.
            self._native.send(ours.fileno())
            return _receive, (multiprocessing.resource_sharer.DupFd(theirs.fileno()), self._layouts)


def _receive(descriptor, layouts):
    with socket.socket(fileno=descriptor.detach()) as end:
        template = Template(_native.Template.receive(end.fileno()), {})
    template._layouts = layouts
    return template


class _Layout:
    """Where an array is in the arena, for those who do not have it."""

    def __init__(self, low, length, offset, shape, dtype, strides):
        self.low, self.length, self.offset = low, length, offset
        self.shape, self.dtype, self.strides = shape, dtype, strides

    @classmethod
    def of(cls, array):
        low, length = extent(array)
        offset = array.__array_interface__["data"][0] - low
        return cls(low, length, offset, array.shape, array.dtype, array.strides)

    def array(self, memory_at):
        import numpy as np

        memory = memory_at(self.low, self.length)
        return np.ndarray(self.shape, self.dtype, memory, self.offset, self.strides)


class Branch:
    """A private copy of an arena: `branch[table]` or, by its name in the template, `branch["table"]`."""

    def __init__(self, native, layouts):
        self._native, self._layouts = native, layouts

    def __getitem__(self, key):
        if self._native is None:
            raise UsageError("the branch is closed")
        if not isinstance(key, str):
            return same_place(key, self._native.memory_at)
        if key not in self._layouts:
            raise KeyError(key)
        return self._layouts[key].array(self._native.memory_at)

    def reset(self):
        """Back to the template, in place: every array of the branch shows what was frozen."""
        if self._native is None:
            raise UsageError("the branch is closed")
        self._native.reset()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        """Lets the copy go; it ends when no array of it is left."""
        self._native = None


_branch = None
_resets = False


def _begin(template, resets):
    global _branch, _resets
    _branch, _resets = template.branch(), resets


def _work(function, item):
    try:
        return function(_branch, item)
    finally:
        if _resets:
            _branch.reset()


class Pool:
    """Processes that each have a clone of a template: `function(branch, item)` for each item, in any of them.

    With `reset` each task finds the clone as it was frozen, whatever the one before wrote.
    """

    def __init__(self, processes, template, *, reset=False, start_method="spawn"):
        context = multiprocessing.get_context(start_method)
        self._executor = concurrent.futures.ProcessPoolExecutor(
            processes, context, initializer=_begin, initargs=(template, reset)
        )

    def submit(self, function, item):
        """A future of `function(branch, item)`."""
        return self._executor.submit(_work, function, item)

    def map(self, function, items, *, chunksize=1):
        """Every result, in order."""
        return list(self.imap(function, items, chunksize=chunksize))

    def imap(self, function, items, *, chunksize=1):
        """The results, in order, as they come."""
        return self._executor.map(_work, itertools.repeat(function), items, chunksize=chunksize)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        """Waits for the tasks, and ends the processes."""
        self._executor.shutdown()
