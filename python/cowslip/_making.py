"""New arrays in an arena, with the signatures and the types of numpy's functions."""

import math
import operator
from typing import Any, Literal, SupportsIndex, overload

import numpy as np
import numpy.typing as npt

from . import _native
from ._errors import UsageError
from ._views import S, array_of

Array = npt.NDArray[Any]
Shape = SupportsIndex | tuple[SupportsIndex, ...] | list[SupportsIndex]
Order = Literal["C", "F"]
# A type that a type checker can tell the elements by; others of numpy's, such as "f4", it cannot.
Known = type[S] | np.dtype[S]


class Making:
    """What makes arrays in the memory that `_open` returns."""

    def _open(self) -> _native.Arena:
        raise NotImplementedError

    @overload
    def empty(self, shape: Shape, *, order: Order = "C") -> npt.NDArray[np.float64]: ...
    @overload
    def empty(self, shape: Shape, dtype: Known[S], order: Order = "C") -> npt.NDArray[S]: ...
    @overload
    def empty(self, shape: Shape, dtype: npt.DTypeLike, order: Order = "C") -> Array: ...
    def empty(self, shape: Shape, dtype: npt.DTypeLike = float, order: Order = "C") -> Array:
        """An array of zeroes: new memory has no other content. Its memory is given back with the last reference."""
        dtype = np.dtype(dtype)
        if dtype.hasobject:
            raise UsageError("arrays of Python objects hold addresses, which mean nothing in an image")
        sizes = tuple(operator.index(size) for size in (shape if isinstance(shape, tuple | list) else (shape,)))
        length = math.prod(sizes) * dtype.itemsize
        if length <= 0:
            return np.empty(sizes, dtype, order)
        return array_of(self._open().allocate(length), sizes, dtype, order=order)

    zeros = empty

    @overload
    def ones(self, shape: Shape) -> npt.NDArray[np.float64]: ...
    @overload
    def ones(self, shape: Shape, dtype: Known[S]) -> npt.NDArray[S]: ...
    @overload
    def ones(self, shape: Shape, dtype: npt.DTypeLike) -> Array: ...
    def ones(self, shape: Shape, dtype: npt.DTypeLike = float) -> Array:
        """An array of ones."""
        return self.full(shape, 1, dtype)

    @overload
    def full(self, shape: Shape, fill_value: Any, dtype: Known[S]) -> npt.NDArray[S]: ...
    @overload
    def full(self, shape: Shape, fill_value: Any, dtype: npt.DTypeLike | None = None) -> Array: ...
    def full(self, shape: Shape, fill_value: Any, dtype: npt.DTypeLike | None = None) -> Array:
        """An array that holds `fill_value` everywhere."""
        array: Array = self.empty(shape, np.asarray(fill_value).dtype if dtype is None else dtype)
        array[...] = fill_value
        return array

    @overload
    def empty_like(self, other: npt.NDArray[S], dtype: None = None) -> npt.NDArray[S]: ...
    @overload
    def empty_like(self, other: npt.ArrayLike, dtype: Known[S]) -> npt.NDArray[S]: ...
    @overload
    def empty_like(self, other: npt.ArrayLike, dtype: npt.DTypeLike | None = None) -> Array: ...
    def empty_like(self, other: npt.ArrayLike, dtype: npt.DTypeLike | None = None) -> Array:
        """An array of zeroes in the shape and type of another."""
        other = np.asarray(other)
        array: Array = self.empty(other.shape, other.dtype if dtype is None else dtype)
        return array

    zeros_like = empty_like

    @overload
    def ones_like(self, other: npt.NDArray[S], dtype: None = None) -> npt.NDArray[S]: ...
    @overload
    def ones_like(self, other: npt.ArrayLike, dtype: Known[S]) -> npt.NDArray[S]: ...
    @overload
    def ones_like(self, other: npt.ArrayLike, dtype: npt.DTypeLike | None = None) -> Array: ...
    def ones_like(self, other: npt.ArrayLike, dtype: npt.DTypeLike | None = None) -> Array:
        """An array of ones in the shape and type of another."""
        return self.full_like(other, 1, dtype)

    @overload
    def full_like(self, other: npt.NDArray[S], fill_value: Any, dtype: None = None) -> npt.NDArray[S]: ...
    @overload
    def full_like(self, other: npt.ArrayLike, fill_value: Any, dtype: Known[S]) -> npt.NDArray[S]: ...
    @overload
    def full_like(self, other: npt.ArrayLike, fill_value: Any, dtype: npt.DTypeLike | None = None) -> Array: ...
    def full_like(self, other: npt.ArrayLike, fill_value: Any, dtype: npt.DTypeLike | None = None) -> Array:
        """An array in the shape and type of another that holds `fill_value` everywhere."""
        array: Array = self.empty_like(other, dtype)
        array[...] = fill_value
        return array

    @overload
    def array(self, values: npt.NDArray[S], dtype: None = None) -> npt.NDArray[S]: ...
    @overload
    def array(self, values: npt.ArrayLike, dtype: Known[S]) -> npt.NDArray[S]: ...
    @overload
    def array(self, values: npt.ArrayLike, dtype: npt.DTypeLike | None = None) -> Array: ...
    def array(self, values: npt.ArrayLike, dtype: npt.DTypeLike | None = None) -> Array:
        """A copy of `values` in the arena."""
        values = np.asarray(values, dtype)
        array: Array = self.empty(values.shape, values.dtype)
        array[...] = values
        return array
