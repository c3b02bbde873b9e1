"""A Python that ``cowslip warm`` keeps, with modules that are imported once for all starts.

``cowslip warm sci -- python3 -m cowslip.warm numpy pandas``, then ``cowslip start sci -- report.py --year 2026``: the
arguments are those of ``python3``: a script, ``-m MODULE``, ``-c CODE`` or ``-`` for standard input.

A program of one's own calls `ready` where it is warm. `start` and `fork` start copies from another Python.
"""

from __future__ import annotations

import gc
import importlib
import io
import json
import os
import random
import runpy
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ._copies import Copy, fork, start

if TYPE_CHECKING:
    from ._multiprocessing import Context

__all__ = ["Copy", "Start", "context", "fork", "main", "ready", "start"]


def context(*modules: str, name: str | None = None) -> Context:
    """Return the context of ``multiprocessing`` in which each process is a copy of a Python that has imported ``modules``.

    For ``Process``, ``Pool``, and ``concurrent.futures.ProcessPoolExecutor(mp_context=…)``. The Python is started at the first
    use, and ends with this process; ``name`` is that of a ``cowslip warm NAME -- python3 -m cowslip.warm …`` to use instead.
    ``multiprocessing.set_start_method("cowslip")`` works from then on. Inside, all copies have the same ``os.getpid()``, so that
    ``max_tasks_per_child`` of an executor cannot be used.
    """
    # Imported at its first use: warm programs do not need it.
    from . import _multiprocessing

    return _multiprocessing.get_context(modules, name)


@dataclass(frozen=True, slots=True)
class Start:
    """What one ``cowslip start`` has of its own."""

    arguments: list[str]
    environment: dict[str, str]
    folder: str
    seed: bytes


def ready() -> Start:
    """Wait here until ``cowslip start`` has a copy of this process go on, and return what the start has of its own.

    The copy is in the start's folder, and has its standard streams. ``os.environ`` is the start's environment, with its
    time zone; ``random``, numpy's global generator and ``ssl``'s have a seed of its own. Other generators go on with equal
    numbers in all copies: seed them by ``seed``, 32 bytes.

    Raises ``RuntimeError`` without ``cowslip warm``.
    """
    number = os.environ.get("COWSLIP_WARM_FD")
    if number is None:
        raise RuntimeError("not started by `cowslip warm`, which has the copies made")
    # Imported at its first use, which each copy would pay for.
    generators = importlib.import_module("numpy.random") if "numpy" in sys.modules else None
    ssl = sys.modules.get("ssl")
    # A collection in a copy would write to the pages of all objects, and so copy them.
    gc.collect()
    gc.freeze()
    with os.fdopen(int(number), encoding="utf-8") as job:
        text = job.read()
    if not text:
        raise SystemExit("cowslip warm has ended")
    told = json.loads(text)
    start = Start(told["arguments"], told["environment"], told["folder"], bytes.fromhex(told["seed"]))
    os.environ.clear()
    os.environ.update(start.environment)
    time.tzset()
    random.seed(start.seed)
    if generators is not None:
        generators.seed(list(start.seed))
    if ssl is not None:
        # For an OpenSSL that `cowslip branch` does not find, because the symbols of its file were removed.
        ssl.RAND_add(start.seed, len(start.seed))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=stream is sys.stderr or stream.isatty())
    return start


def main() -> None:
    """Import the modules of the command line, and run what each start names."""
    for module in sys.argv[1:]:
        importlib.import_module(module)
    words = ready().arguments
    match words:
        case ["-c", code, *rest]:
            sys.argv = ["-c", *rest]
            _run_code(code, "<string>")
        case ["-m", module, *rest]:
            sys.argv = [module, *rest]
            sys.path[0] = os.getcwd()
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        case [] | ["-", *_]:
            sys.argv = words or [""]
            _run_code(sys.stdin.read(), "<stdin>")
        case [script, *_]:
            sys.argv = list(words)
            sys.path[0] = os.path.dirname(os.path.abspath(script))
            runpy.run_path(script, run_name="__main__")


def _run_code(code: str, name: str) -> None:
    sys.path[0] = ""
    exec(compile(code, name, "exec"), {"__name__": "__main__", "__builtins__": __builtins__})


if __name__ == "__main__":
    main()
