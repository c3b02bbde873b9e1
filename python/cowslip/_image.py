"""Restores."""

import json
import os
from typing import Any, Literal, Self, cast

from . import _native
from ._arena import Arena
from ._state import load

class Restored(tuple[Arena, Any]):
    """`arena, state = cowslip.restore(path)`; `wait()` until all of it is there."""

    _restoring: _native.Restoring

    def __new__(cls, arena: Arena, state: Any, native: _native.Restoring) -> Self:
        restored = super().__new__(cls, cast(Any, (arena, state)))
        restored._restoring = native
        return restored

    @property
    def arena(self) -> Arena:
        return self[0]

    @property
    def state(self) -> Any:
        return self[1]

    @property
    def progress(self) -> tuple[int, int]:
        """Bytes there and altogether."""
        return self._restoring.progress

    @property
    def strategy(self) -> str:
        """How it is restored: `"hybrid"`, `"eager"`, or `"resident"`, from a server's memory."""
        return self._restoring.strategy

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until all is there, and free of the file and of a server; whether it is."""
        return self._restoring.wait(timeout)


def restore(
    path: str | os.PathLike[str],
    *,
    trust: bool = False,
    backing: Literal["thp", "base", "hugetlb"] = "thp",
    eager: bool = False,
    threads: int = 0,
    via: str | os.PathLike[str] | None = None,
    at_fork: bool = True,
) -> Restored:
    """The arena and the state of an image, usable now: what is touched is brought in first.

    `via` names the socket of a `cowslip serve`, which must have the image; `""` reads the file. Without it the server that
    `COWSLIP_SERVE` names is asked, and the file is read if there is none or it does not have the image.

    A state of numbers, texts, containers, arrays and tensors needs no trust. `trust` allows classes of other modules, whose
    code runs then: only for images of your own. `at_fork` is as an `Arena` has it.
    """
    path = os.fspath(path)
    description = json.loads(_native.describe(path))
    via = None if via is None else os.fspath(via)
    native = _native.restore(path, backing=backing, eager=eager, threads=threads, via=via)
    arena = native.arena()
    state = load(description, native.root, arena.memory_at, trust)
    return Restored(Arena._of(arena, at_fork), state, native)


def verify(path: str | os.PathLike[str]) -> None:
    """Reads all of an image, and of those that it builds on: `CorruptError` if a byte is wrong."""
    _native.verify(os.fspath(path))
