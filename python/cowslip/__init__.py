"""Numpy arrays that are checkpointed and forked in microseconds, and keep their huge pages.

>>> import cowslip, numpy as np
>>> with cowslip.Arena("256M") as arena:
...     table = arena.zeros((1 << 20,), np.float32)
...     with arena.freeze() as then:       # one instant; threads run on
...         table[7] = 1.0
...         float(then[table][7])          # as it was
0.0
"""

from typing import TYPE_CHECKING

from ._errors import (
    BusyError,
    CorruptError,
    DeniedError,
    Error,
    FileError,
    KernelError,
    MissingFileError,
    OutOfMemoryError,
    UnsupportedError,
    UsageError,
    VanishedError,
)
from ._native import __version__

if TYPE_CHECKING:
    from ._arena import Arena, Frozen
    from ._branch_point import BranchCopy, branch_point
    from ._command import Comparison, compare, trace
    from ._doctor import Report, doctor
    from ._image import Restored, restore, verify
    from ._save import Save
    from ._template import Branch, Pool, Template

__all__ = [
    "Arena",
    "Branch",
    "BranchCopy",
    "BusyError",
    "Comparison",
    "CorruptError",
    "DeniedError",
    "Error",
    "FileError",
    "Frozen",
    "KernelError",
    "MissingFileError",
    "OutOfMemoryError",
    "Pool",
    "Report",
    "Restored",
    "Save",
    "Template",
    "UnsupportedError",
    "UsageError",
    "VanishedError",
    "__version__",
    "branch_point",
    "compare",
    "doctor",
    "restore",
    "trace",
    "verify",
]

# Imported when first asked for: numpy and multiprocessing take most of the time of an import.
_HOMES = {
    "_arena": ("Arena", "Frozen"),
    "_branch_point": ("BranchCopy", "branch_point"),
    "_command": ("Comparison", "compare", "trace"),
    "_doctor": ("Report", "doctor"),
    "_image": ("Restored", "restore", "verify"),
    "_save": ("Save",),
    "_template": ("Branch", "Pool", "Template"),
}


def __getattr__(name: str) -> object:
    for home, names in _HOMES.items():
        if name in names:
            from importlib import import_module

            module = import_module(f".{home}", __name__)
            globals().update({each: getattr(module, each) for each in names})
            return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
