"""Sizes as people write them."""

import operator
from typing import SupportsIndex

from ._errors import UsageError

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def parse_size(size: SupportsIndex | str) -> int:
    """Bytes of `size`: a number of them, or a text such as "512M" or "64G" (powers of 1,024)."""
    try:
        length = _of_text(size) if isinstance(size, str) else operator.index(size)
    except (TypeError, ValueError, OverflowError):
        length = -1
    if not 0 <= length < 1 << 63:
        raise UsageError(f'a size is a number of bytes or a text such as "64G", not {size!r}')
    return length


def _of_text(text: str) -> int:
    text = text.strip().upper().removesuffix("IB").removesuffix("B")
    unit = text[-1:] if text[-1:] in _UNITS else ""
    return int(float(text.removesuffix(unit)) * _UNITS[unit])
