"""Numpy arrays that are checkpointed, forked and restored in microseconds, on huge pages.

>>> import cowslip, numpy as np
>>> with cowslip.Arena("256M") as arena:
...     table = arena.zeros((1 << 20,), np.float32)
...     with arena.freeze() as then:       # one instant; threads run on
...         table[7] = 1.0
...         float(then[table][7])          # as it was
0.0
"""

from ._arena import Arena, Frozen, install_at_fork
from ._native import (
    BusyError,
    CorruptError,
    DeniedError,
    Error,
    FileError,
    OutOfMemoryError,
    SystemError,
    UnsupportedError,
    UsageError,
    VanishedError,
    __version__,
)
from ._branch_point import BranchCopy, branch_point
from ._doctor import Report, doctor
from ._image import Restored, Save, restore, verify
from ._template import Branch, Pool, Template

__all__ = [
    "Arena",
    "Branch",
    "BranchCopy",
    "BusyError",
    "CorruptError",
    "DeniedError",
    "Error",
    "FileError",
    "Frozen",
    "OutOfMemoryError",
    "Pool",
    "Report",
    "Restored",
    "Save",
    "SystemError",
    "Template",
    "UnsupportedError",
    "UsageError",
    "VanishedError",
    "__version__",
    "branch_point",
    "doctor",
    "install_at_fork",
    "restore",
    "verify",
]
