"""Arrays of one place that show another: an arena's array as a view or a clone has it."""

import numpy as np

from ._native import UsageError


def extent(array):
    """First address and length of what `array` spans; an array of the arena, sliced and transposed as it may be."""
    if not isinstance(array, np.ndarray):
        raise UsageError(f"an array is wanted, not {type(array).__name__}")
    low, high = np.lib.array_utils.byte_bounds(array) if hasattr(np.lib, "array_utils") else np.byte_bounds(array)
    return low, high - low


def same_place(array, memory_at):
    """What `memory_at(address, length)` has where `array` is: the same shape, strides and type."""
    low, length = extent(array)
    if length == 0:
        return np.empty(array.shape, array.dtype)
    first = array.__array_interface__["data"][0]
    memory = memory_at(low, length)
    return np.ndarray(array.shape, array.dtype, memory, first - low, array.strides)
