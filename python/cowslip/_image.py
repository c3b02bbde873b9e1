"""Saves and restores."""

import asyncio
import concurrent.futures
import json
import os
import threading

from . import _native
from ._state import dump, load


class Save(concurrent.futures.Future):
    """A save under way: `result(timeout)`, `cancel()`, `await save`, `on_progress(f)`."""

    def __init__(self, native):
        super().__init__()
        self._native, self._tellers, self._is_cancelled = native, [], False

    @property
    def progress(self):
        """Bytes done and altogether."""
        return self._native.progress

    def on_progress(self, tell):
        """Has `tell(done_bytes, total_bytes)` called now and then, on a thread of its own."""
        self._tellers.append(tell)

    def cancel(self):
        """Has the save end without an image; whether it did not end before."""
        if self.done():
            return False
        self._is_cancelled = True
        self._native.cancel()
        concurrent.futures.wait([self])
        return self.cancelled()

    def wait(self, timeout=None):
        """Waits for the end, whatever it is; whether it came."""
        return bool(concurrent.futures.wait([self], timeout).done)

    def __await__(self):
        return asyncio.wrap_future(self).__await__()

    def _watch(self):
        told = None
        while True:
            try:
                saved = self._native.wait(1.0)
            except _native.Error as error:
                if self._is_cancelled and super().cancel():
                    self.set_running_or_notify_cancel()
                else:
                    self.set_exception(error)
                return
            if self._native.progress != told:
                told = self._native.progress
                for tell in self._tellers:
                    tell(*told)
            if saved is not None:
                self.set_result(saved)
                return


def start_save(arena, frozen, path, state, parent, compress, threads):
    """Starts to save a view with the state of now."""
    user, roots = dump(state, *arena.range)
    parent = None if parent is None else os.path.abspath(os.fspath(parent))
    save = Save(_native.Save.start(frozen, path, roots, user, parent, compress, threads))
    threading.Thread(target=save._watch, name="cowslip-watch", daemon=True).start()
    return save


class Restored(tuple):
    """`arena, state = cowslip.restore(path)`; `wait()` until all of it is there."""

    def __new__(cls, arena, state, native):
        restored = super().__new__(cls, (arena, state))
        restored._native = native
        return restored

    arena = property(lambda self: self[0])
    state = property(lambda self: self[1])

    @property
    def progress(self):
        """Bytes there and altogether."""
        return self._native.progress

    def wait(self, timeout=None):
        """Waits until all is there, and free of the file; whether it is."""
        return self._native.wait(timeout)


def restore(path, *, trust=False, backing="thp", eager=False, threads=0):
    """The arena and the state of an image, usable now: what is touched is brought in first.

    A state of numbers, texts, containers and arrays needs no trust. `trust` allows classes of other modules, whose code runs
    then: only for images of your own.
    """
    from ._arena import Arena

    path = os.fspath(path)
    description = json.loads(_native.describe(path))
    native = _native.restore(path, backing=backing, eager=eager, threads=threads)
    arena = native.arena()
    state = load(description, native.root, arena.memory_at, trust)
    return Restored(Arena._of(arena), state, native)


def verify(path):
    """Reads all of an image, and of those that it builds on: `CorruptError` if a byte is wrong."""
    _native.verify(os.fspath(path))
