"""Copies of a program that ``cowslip warm`` keeps, started by messages to it: ``docs/warm.md`` describes them."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterable
from types import TracebackType
from typing import IO

VERSION = 2
MOST_BYTES = 128 << 10

Stream = int | IO[str] | IO[bytes] | None


class Copy:
    """A running copy, used like a `subprocess.Popen`. It ends with this, and with ``cowslip warm``."""

    pid: int
    returncode: int | None

    def __init__(self, connection: socket.socket, name: str, started: dict[str, object]) -> None:
        pid = started["pid"]
        assert isinstance(pid, int)
        self._connection = connection
        self._name = name
        self._lock = threading.Lock()
        self.pid = pid
        self.returncode = None

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end, and return its exit code, or the negative number of the signal that ended it.

        Raises ``subprocess.TimeoutExpired``; ``ConnectionError`` if ``cowslip warm`` ended before it.
        """
        # Without the lock: another thread may end it meanwhile.
        if self.returncode is None and not _is_readable(self._connection, timeout):
            raise subprocess.TimeoutExpired(self._name, timeout or 0.0)
        with self._lock:
            if self.returncode is None:
                status = _answer(self._connection, self._name)["status"]
                assert isinstance(status, int)
                self.returncode = os.waitstatus_to_exitcode(status)
            return self.returncode

    def poll(self) -> int | None:
        """Return the same at once, or ``None`` while it runs."""
        try:
            return self.wait(0.0)
        except subprocess.TimeoutExpired:
            return None

    def send_signal(self, number: int) -> None:
        """Send it a signal, if it runs."""
        if self.poll() is None:
            # It may end at this moment.
            with contextlib.suppress(BrokenPipeError):
                self._connection.send(json.dumps({"signal": int(number)}).encode())

    def terminate(self) -> None:
        """Send it SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send it SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def fileno(self) -> int:
        """A descriptor that can be read once it has ended: for ``select``."""
        return self._connection.fileno()

    def close(self) -> None:
        """End it, and all that it started."""
        self._connection.close()

    def __enter__(self) -> Copy:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Copy of {self._name}: pid {self.pid}, returncode {self.returncode}>"


def start(
    name: str,
    *arguments: str,
    stdin: Stream = subprocess.DEVNULL,
    stdout: Stream = None,
    stderr: Stream = None,
    env: dict[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
    net: bool = False,
    private: Iterable[str | os.PathLike[str]] = (),
    timeout: float | None = None,
) -> Copy:
    """Start a copy of the program that ``cowslip warm NAME`` keeps, and return once it runs: after some milliseconds.

    Streams are files, descriptors, ``subprocess.DEVNULL``, or ``None`` for this process' own. Arguments are for a program
    that reads its job. ``net`` gives the copy a network of its own, in which it listens at the program's ports. It has
    its own version of each folder of ``private``: other processes see none of its changes there.

    Raises ``ConnectionError`` if no program of that name is warm; ``TimeoutError`` after ``timeout`` seconds;
    ``RuntimeError`` with the reason if there is no copy.
    """
    folder = os.path.abspath(cwd if cwd is not None else os.getcwd())
    request = json.dumps({
        "version": VERSION,
        "net": net,
        "private": [os.path.abspath(folder) for folder in private],
        "arguments": arguments,
        "environment": dict(os.environ if env is None else env),
        "folder": folder,
    }).encode()
    if len(request) > MOST_BYTES:
        raise ValueError(f"arguments and environment of {len(request)} bytes are too long")
    opened: list[int] = []
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        _connect(connection, name)
        files = [_descriptor(stream, number, opened) for number, stream in enumerate((stdin, stdout, stderr))]
        opened.append(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        socket.send_fds(connection, [request], [*files, opened[-1]])
        if not _is_readable(connection, timeout):
            raise TimeoutError(f"{name}: no copy after {timeout} s")
        return Copy(connection, name, _answer(connection, name))
    except BaseException:
        connection.close()
        raise
    finally:
        for file in opened:
            os.close(file)


def fork(name: str, count: int, timeout: float | None = None) -> list[Copy]:
    """Start ``count`` copies of one instant, without arguments, within ``timeout`` seconds; all, or none."""
    copies: list[Copy] = []
    until = None if timeout is None else time.monotonic() + timeout
    try:
        for _ in range(count):
            left = None if until is None else max(until - time.monotonic(), 0.0)
            copies.append(start(name, timeout=left))
    except BaseException:
        for copy in copies:
            copy.close()
        raise
    return copies


def _connect(connection: socket.socket, name: str) -> None:
    try:
        connection.connect(f"\0cowslip-warm-{os.geteuid()}-{name}")
    except ConnectionRefusedError as error:
        why = f"{name} is not warm: `cowslip start --list` has the names"
        raise ConnectionRefusedError(error.errno, why) from None
    _, uid, _ = _peer(connection)
    if uid != os.geteuid():
        raise PermissionError(f"{name} is kept by another user, {uid}")


def _peer(connection: socket.socket) -> tuple[int, int, int]:
    told = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    pid, uid, gid = (int.from_bytes(told[at : at + 4], "little") for at in (0, 4, 8))
    return pid, uid, gid


def _descriptor(stream: Stream, number: int, opened: list[int]) -> int:
    if stream is None:
        return number
    if stream == subprocess.DEVNULL:
        opened.append(os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC))
        return opened[-1]
    return stream if isinstance(stream, int) else stream.fileno()


def _is_readable(connection: socket.socket, timeout: float | None) -> bool:
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    return bool(poll.poll(None if timeout is None else timeout * 1000))


def _answer(connection: socket.socket, name: str) -> dict[str, object]:
    received = connection.recv(4096)
    if not received:
        raise ConnectionResetError(f"{name} is no longer warm, and its copy has ended")
    answer: dict[str, object] = json.loads(received)
    if "error" in answer:
        raise RuntimeError(f"{name}: {answer['error']}")
    return answer
