"""The start method ``cowslip`` of ``multiprocessing``: each process is a copy of a warm Python.

``cowslip.warm.context`` gives it out. Like the start method ``forkserver``, but the server may have threads, and stands still
for no start.
"""

from __future__ import annotations

import atexit
import io
import multiprocessing
import os
import secrets
import socket
import subprocess
import sys
import threading
from multiprocessing import context, forkserver, popen_forkserver, process, reduction, resource_tracker, spawn, util
from typing import Any

from . import _copies

METHOD = "cowslip"
RUN = f"from {__name__} import main; main()"
#: As `forkserver`: a message takes 253 descriptors.
MOST_DESCRIPTORS = 250


class _Server:
    """The warm Python of this process, started at its first use."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.name: str | None = None
        self.preload: list[str] = []
        self.child: subprocess.Popen[str] | None = None

    def start_copy(self, stdin: socket.socket) -> _copies.Copy:
        return _copies.start(self._ensure(), "-c", RUN, stdin=stdin.fileno())

    def _ensure(self) -> str:
        with self.lock:
            if self.name is not None and (self.child is None or self.child.poll() is None):
                return self.name
            name = f"multiprocessing-{os.getpid()}-{secrets.token_hex(4)}"
            python = [sys.executable, "-m"]
            command = [*python, "cowslip", "warm", name, "--while-input", "--", *python, "cowslip.warm", __name__, *self.preload]
            # It ends with its standard input, and so with this process, however that ends.
            # Ctrl-C is this program's: it may need its workers once more.
            child = subprocess.Popen(
                command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
            )
            assert child.stderr is not None
            told = []
            try:
                for line in child.stderr:
                    told.append(line)
                    if " is warm after " in line:
                        break
                else:
                    child.wait()
                    raise RuntimeError("cowslip warm: " + "".join(told).strip())
            except BaseException:
                child.terminate()
                raise
            # Later lines are read, too: its pipe must not fill.
            threading.Thread(target=child.stderr.read, daemon=True).start()
            atexit.register(child.terminate)
            self.name, self.child = name, child
            return name


_server = _Server()


class Popen(popen_forkserver.Popen):
    """A process that is a copy."""

    method = METHOD
    #: What the process object refers to, collected by the base class.
    _fds: list[int]

    def _launch(self, process_obj: process.BaseProcess) -> None:
        buffer = io.BytesIO()
        context.set_spawning_popen(self)
        try:
            reduction.dump(spawn.get_preparation_data(process_obj.name), buffer)
            reduction.dump(process_obj, buffer)
        finally:
            context.set_spawning_popen(None)
        if len(self._fds) > MOST_DESCRIPTORS:
            raise ValueError("too many descriptors for a process")
        ours, theirs = socket.socketpair()
        with theirs:
            self._copy = _server.start_copy(theirs)
        self.pid = self._copy.pid
        self.sentinel = self._copy.fileno()
        # Its end tells the copy that this process has ended.
        self.finalizer = util.Finalize(self, ours.close)
        tracker = resource_tracker.getfd()
        assert tracker is not None
        socket.send_fds(ours, [b"\0"], [tracker, *self._fds])
        ours.sendall(buffer.getbuffer())

    def poll(self, flag: int = os.WNOHANG) -> int | None:
        if self.returncode is None:
            try:
                self.returncode = self._copy.wait(0.0 if flag == os.WNOHANG else None)
            except subprocess.TimeoutExpired:
                return None
            except ConnectionError:
                self.returncode = 255
        return self.returncode

    def _send_signal(self, number: int) -> None:
        self._copy.send_signal(number)

    def close(self) -> None:
        super().close()
        self._copy.close()


class Process(process.BaseProcess):
    """A process that is a copy."""

    _start_method = METHOD

    @staticmethod
    def _Popen(process_obj: process.BaseProcess) -> Popen:
        return Popen(process_obj)


class Context(context.BaseContext):
    """The functions of ``multiprocessing``, with this start method."""

    _name = METHOD
    Process = Process


_contexts: dict[str, Any] = getattr(context, "_concrete_contexts", {})
_contexts.setdefault(METHOD, Context())


def get_context(modules: tuple[str, ...], name: str | None) -> Context:
    """The context. The modules, or the name, are for the server that is not there yet."""
    with _server.lock:
        if name is not None:
            _server.name, _server.child = name, None
        _server.preload += [module for module in modules if module not in _server.preload]
    found = multiprocessing.get_context(METHOD)
    assert isinstance(found, Context)
    return found


def main() -> None:
    """In a copy: run the process that the socket at standard input tells."""
    connection = socket.socket(fileno=os.dup(0))
    _, descriptors, _, _ = socket.recv_fds(connection, 1, 1 + MOST_DESCRIPTORS)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    tracker: Any = resource_tracker
    server: Any = forkserver
    tracker._resource_tracker._fd, *server._forkserver._inherited_fds = descriptors
    data = connection.detach()
    run: Any = spawn
    code = run._main(data, os.dup(data))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
