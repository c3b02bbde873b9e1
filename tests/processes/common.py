"""Programs that are started and watched, and the evidence that is kept of a failure."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
BUILT = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release"
COWSLIP, HOLD = str(BUILT / "cowslip"), str(BUILT / "examples/hold")
PROGRAMS = HERE / "programs"
PYTHON = "/usr/bin/python3"
PATIENCE_S = 120


class Failed(Exception):
    """A promise that was broken."""


def wait_until(holds: Callable[[], object], what: str, seconds: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            raise Failed(f"not within {seconds} s: {what}")
        time.sleep(0.002)


def ran(*words: object, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=PATIENCE_S, **options)


def first(*programs: str) -> str | None:
    """The first of some programs that is installed."""
    return next(filter(None, map(shutil.which, programs)), None)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def children(pid: int) -> list[int]:
    threads = os.listdir(f"/proc/{pid}/task")
    return [int(child) for thread in threads for child in read(f"/proc/{pid}/task/{thread}/children").split()]


def state(pid: int) -> str:
    """The letter of `proc_pid_stat(5)`; empty once it is gone."""
    return read(f"/proc/{pid}/stat").rpartition(")")[2].strip()[:1]


def about_threads(pid: int) -> str:
    """The places where the threads of a process are."""
    lines = []
    for thread in sorted(os.listdir(f"/proc/{pid}/task")) if os.path.exists(f"/proc/{pid}/task") else []:
        place = f"/proc/{pid}/task/{thread}"
        files = [read(f"{place}/{name}").strip() for name in ("comm", "stat", "syscall", "wchan", "status")]
        lines.append("\n".join([f"thread {thread}", *files]))
    return "\n\n".join(lines)


@contextmanager
def folder() -> Iterator[Path]:
    """A folder for the time of a run."""
    with tempfile.TemporaryDirectory(prefix="cowslip-processes-") as path:
        # Some programs run as another user.
        os.chmod(path, 0o755)
        yield Path(path)


@contextmanager
def running(*words: object, **options: object) -> Iterator[subprocess.Popen[str]]:
    child = subprocess.Popen([str(word) for word in words], text=True, **options)
    try:
        yield child
    finally:
        child.kill()
        child.wait()


class Table:
    """Rows of a run; a row with a failure makes the run end with 1."""

    def __init__(self, evidence: Path) -> None:
        self.evidence, self.failures, self.rows = evidence, 0, []

    def failed(self, name: str, what: str, log: str = "") -> None:
        """Counts a failure, and keeps its log."""
        self.failures += 1
        self.evidence.mkdir(parents=True, exist_ok=True)
        path = self.evidence / f"{name.replace(' ', '-')}-{self.failures}.txt"
        path.write_text(f"{what}\n\n{log}\n")
        print(f"FAILED {name}: {what.splitlines()[0]} ({path})", flush=True)

    def row(self, *cells: object) -> None:
        self.rows.append(cells)
        print("| " + " | ".join(map(str, cells)) + " |", flush=True)
