"""The command, which comes with the package."""

import os
import shutil
from pathlib import Path

from ._errors import UsageError

_BUNDLED = Path(__file__).parent / "_bin" / "cowslip"


def command() -> str:
    """The path of the command: the package's, or the one on PATH if the package was built without."""
    if os.access(_BUNDLED, os.X_OK):
        return str(_BUNDLED)
    ours = Path(__file__).parent / "__main__.py"
    for folder in os.get_exec_path():
        found = shutil.which("cowslip", path=folder)
        # Not the script of this package's, which would ask here again.
        if found and not Path(found).read_bytes()[:2] == b"#!":
            return found
    raise UsageError(f"the package was built without its command ({ours.parent}/_bin): python/build makes a whole one")
