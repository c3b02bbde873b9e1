"""Arrays of one place that show another: an arena's array as a view or a clone has it."""

from collections.abc import Callable
from typing import Any, Literal, TypeVar, cast

import numpy as np
import numpy.typing as npt

from ._errors import UsageError
from ._native import Memory

# The type of an array's elements.
S = TypeVar("S", bound=np.generic)
MemoryAt = Callable[[int, int], Memory]


def address_of(array: npt.NDArray[Any]) -> int:
    """The address of the array's first element."""
    return cast(int, array.__array_interface__["data"][0])


def extent(array: npt.NDArray[Any]) -> tuple[int, int]:
    """First address and length of what `array` spans; an array of the arena, sliced and transposed as it may be."""
    if not isinstance(array, np.ndarray):
        raise UsageError(f"an array is wanted, not {type(array).__name__}")
    byte_bounds = np.lib.array_utils.byte_bounds if hasattr(np.lib, "array_utils") else getattr(np, "byte_bounds")
    low, high = byte_bounds(array)
    return int(low), int(high - low)


def is_within(address: int, length: int, start: int, within: int) -> bool:
    """Whether so many bytes from an address on are all in `within` bytes from `start` on."""
    return start <= address and address + length <= start + within


def same_place(array: npt.NDArray[S], memory_at: MemoryAt) -> npt.NDArray[S]:
    """What `memory_at(address, length)` has where `array` is: the same shape, strides and type."""
    low, length = extent(array)
    if array.dtype.hasobject:
        raise UsageError("an array of Python objects holds addresses of things that may be gone since")
    if isinstance(array, np.ma.MaskedArray):
        return cast(npt.NDArray[S], _same_masked(array, memory_at))
    if length == 0:
        return np.empty(array.shape, array.dtype)
    return array_of(memory_at(low, length), array.shape, array.dtype, address_of(array) - low, array.strides)


def _same_masked(array: np.ma.MaskedArray[Any, Any], memory_at: MemoryAt) -> npt.NDArray[Any]:
    data = same_place(array.data, memory_at)
    mask: Any = np.ma.getmask(array)
    if mask is not np.ma.nomask:
        try:
            mask = same_place(mask, memory_at)
        except UsageError:
            raise UsageError("the array's mask is not in the arena: see its `.data`, or make both there") from None
    return np.ma.MaskedArray(data, mask)


def array_of(
    memory: Memory,
    shape: tuple[int, ...],
    dtype: np.dtype[S],
    offset: int = 0,
    strides: tuple[int, ...] | None = None,
    order: Literal["C", "F"] = "C",
) -> npt.NDArray[S]:
    """An array of the memory, which lives as long as any array of it."""
    return np.ndarray(shape, dtype, cast(Any, memory), offset, strides, order)
