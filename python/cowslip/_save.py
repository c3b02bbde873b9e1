"""Saves, which go on in threads of their own."""

import atexit
import concurrent.futures
import logging
import os
from collections.abc import Callable, Generator
from typing import Any

from . import _native
from ._state import dump

_log = logging.getLogger("cowslip")


class Save(concurrent.futures.Future[dict[str, int]]):
    """A save under way: `result(timeout)`, `cancel()`, `await save`, `on_progress(f)`.

    The result says how many chunks of 2 MiB the image has and how long its file is.
    """

    _started: _native.Save

    def __init__(self) -> None:
        super().__init__()
        self._is_cancelled = False
        self._tellers: list[Callable[[int, int], object]] = []

    @property
    def progress(self) -> tuple[int, int]:
        """Bytes done and altogether."""
        return self._started.progress

    def on_progress(self, tell: Callable[[int, int], object]) -> None:
        """Has `tell(done_bytes, total_bytes)` called now and then, on the thread that saves."""
        self._tellers.append(tell)
        self._started.follow()

    def cancel(self) -> bool:
        """Has the save end without an image; whether it did not end before."""
        if self.done():
            return False
        self._is_cancelled = True
        self._started.cancel()
        concurrent.futures.wait([self])
        return self.cancelled()

    def wait(self, timeout: float | None = None) -> bool:
        """Waits for the end, whatever it is; whether it came."""
        return bool(concurrent.futures.wait([self], timeout).done)

    def wait_here(self) -> None:
        """Waits for the end; not in a forked child, which does not have the thread that saves."""
        if self in _under_way:
            self.wait()

    def __await__(self) -> Generator[Any, None, dict[str, int]]:
        # Whoever awaits has imported it; others need not.
        import asyncio

        return asyncio.wrap_future(self).__await__()

    def _tell(self, done: int, total: int) -> None:
        for tell in list(self._tellers):
            try:
                tell(done, total)
            except Exception:
                _log.exception("a save's on_progress raised")

    def _end(self, saved: dict[str, int] | None, error: BaseException | None) -> None:
        _under_way.discard(self)
        if saved is not None:
            self.set_result(saved)
        elif self._is_cancelled and super().cancel():
            self.set_running_or_notify_cancel()
        else:
            self.set_exception(error)


_under_way: set[Save] = set()


def _wait_for_all() -> None:
    """The program's end waits, so that its last checkpoint is whole."""
    concurrent.futures.wait(list(_under_way))


atexit.register(_wait_for_all)
# A child does not have the threads that save.
os.register_at_fork(after_in_child=_under_way.clear)


def start_save(
    arena: _native.Arena,
    frozen: _native.Frozen,
    path: str,
    state: object,
    parent: str | os.PathLike[str] | None,
    compress: str,
    threads: int,
) -> Save:
    """Starts to save a view with the state of now."""
    pickled, roots = dump(state, arena)
    parent = None if parent is None else os.path.abspath(os.fspath(parent))
    save = Save()
    _under_way.add(save)
    try:
        save._started = _native.Save.start(frozen, path, roots, pickled, save, parent, compress, threads)
    except BaseException:
        _under_way.discard(save)
        raise
    return save
