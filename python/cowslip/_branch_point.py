"""A place where a warm program lets ``cowslip branch`` copy it: the functions of ``cowslip run``'s library."""

from __future__ import annotations

import ctypes
import errno
import os
import select
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class BranchCopy:
    """Which copy of the program this process is."""

    index: int
    count: int
    argument: str | None
    seed: bytes


def branch_point(name: str | None = None, timeout: float | None = None) -> BranchCopy | None:
    """Let ``cowslip branch`` copy this process, which runs under ``cowslip run``, for ``timeout`` seconds.

    ``None`` waits until ``cowslip branch --release`` has the program go on; 0 looks whether somebody waits for it. In each
    copy it returns which one that is; in the program itself ``None``. A copy is as the child of ``os.fork``: only the calling
    thread lives on in it. Other threads run while this one waits.

    Raises ``OSError``: ``ENOSYS`` without ``cowslip run``, ``EBUSY`` while another thread is in this call, ``EINVAL`` if the
    name has other characters than letters, digits, ``.``, ``_`` and ``-``.
    """
    # With the interpreter's lock held, as a fork needs it.
    library = ctypes.PyDLL(None, use_errno=True)
    try:
        point, descriptor = library.cowslip_branch_point_atfork, library.cowslip_branch_fd
    except AttributeError:
        raise OSError(errno.ENOSYS, "not started with `cowslip run`, whose library makes the copies") from None
    encoded = None if name is None else name.encode()
    waited = _call(descriptor, encoded)
    poll = select.poll()
    poll.register(waited, select.POLLIN)
    deadline = None if timeout is None else time.monotonic() + timeout
    while True:
        left = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000
        if not poll.poll(left):
            return None
        index = _forked(point, encoded)
        if index >= 0:
            return _this_copy(index)
        if ctypes.get_errno() == errno.ECANCELED:
            return None
        if ctypes.get_errno() != errno.EAGAIN:
            raise _error()


def _call(function: Callable[[bytes | None], int], name: bytes | None) -> int:
    answer = function(name)
    if answer < 0:
        raise _error()
    return answer


def _error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"be ready to be branched: {os.strerror(number)}")


def _forked(point: Callable[..., int], name: bytes | None) -> int:
    """Copies the process as ``os.fork`` would.

    A copy runs no bytecode before ``PyOS_AfterFork_Child``: the interpreter could wait for a thread that is not there.
    """
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    python = ctypes.pythonapi
    return point(name, 0, python.PyOS_BeforeFork, python.PyOS_AfterFork_Parent, python.PyOS_AfterFork_Child)


def _this_copy(index: int) -> BranchCopy:
    # os.environ is of the program's start.
    if hasattr(os, "reload_environ"):
        os.reload_environ()
    else:
        _reload_environ()
    argument = os.environ.get("COWSLIP_BRANCH_ARG")
    seed = os.environ.get("COWSLIP_BRANCH_SEED")
    return BranchCopy(
        index, int(os.environ["COWSLIP_BRANCHES"]), argument, bytes.fromhex(seed) if seed else os.urandom(32)
    )


def _reload_environ() -> None:
    """What ``os.reload_environ`` of Python 3.14 does."""
    array = ctypes.POINTER(ctypes.c_char_p).in_dll(ctypes.CDLL(None), "environ")
    entries: dict[bytes, bytes] = {}
    for entry in _until_null(array):
        key, found, value = entry.partition(b"=")
        if found:
            entries[key] = value
    # Not through os.environ, which would write each back.
    kept: dict[bytes, bytes] = getattr(os.environ, "_data")
    kept.clear()
    kept.update(entries)


def _until_null(array: Any) -> Iterator[bytes]:
    place = 0
    while array[place] is not None:
        yield array[place]
        place += 1
