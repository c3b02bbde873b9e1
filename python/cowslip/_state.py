"""A program's state in an image: a pickle whose arrays of the arena are places in it."""

import base64
import importlib
import io
import json
import pickle
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ._errors import CorruptError, UsageError
from ._native import STATE_KEY, Arena
from ._views import MemoryAt, address_of, array_of, extent, is_within

# What a state is made of when nobody says that the image may run code.
_PLAIN: dict[str, set[str] | None] = {
    "builtins": {"complex", "set", "frozenset", "bytearray", "range", "slice"},
    "collections": {"OrderedDict", "deque", "defaultdict", "Counter"},
    "cowslip._state": {"strided", "tensor"},
    "datetime": {"datetime", "date", "time", "timedelta", "timezone"},
    "numpy": {"dtype", "ndarray"},
    "numpy.dtypes": None,
    "numpy.core.multiarray": {"scalar", "_reconstruct"},
    "numpy._core.multiarray": {"scalar", "_reconstruct"},
    "numpy.core.numeric": {"_frombuffer"},
    "numpy._core.numeric": {"_frombuffer"},
    "_codecs": {"encode"},
    "pathlib": {"PosixPath", "PurePosixPath"},
    "random": {"Random"},
    "torch": {"Size"},
}


class _Pickler(pickle.Pickler):
    """Pickles arrays and PyTorch's tensors so that their memory in the arena may stay where it is."""

    def __init__(self, file: io.BytesIO, arena: Arena, place: Callable[[pickle.PickleBuffer], bool]) -> None:
        super().__init__(file, protocol=5, buffer_callback=place)
        self._arena = arena
        self._torch = sys.modules.get("torch")

    def reducer_override(self, value: Any) -> Any:
        if type(value) is np.ndarray:
            return NotImplemented if value.flags.forc else self._strided(value)
        return NotImplemented if self._torch is None else self._tensor(self._torch, value)

    def _strided(self, value: npt.NDArray[Any]) -> Any:
        low, length = extent(value)
        if value.dtype.hasobject or not is_within(low, length, *self._arena.range):
            return NotImplemented
        content = array_of(self._arena.memory_at(low, length), (length,), np.dtype(np.uint8))
        return strided, (content, value.shape, value.dtype, address_of(value) - low, value.strides)

    def _tensor(self, torch: Any, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return NotImplemented
        if value.layout != torch.strided or value.device.type != "cpu":
            return NotImplemented
        plain = value.detach().contiguous()
        content = plain.reshape(-1).view(torch.uint8).numpy()
        kind = str(value.dtype).removeprefix("torch.")
        is_parameter = isinstance(value, torch.nn.Parameter)
        return tensor, (content, kind, tuple(value.shape), value.requires_grad, is_parameter)


def strided(
    content: npt.NDArray[np.uint8], shape: tuple[int, ...], dtype: np.dtype[Any], offset: int, strides: tuple[int, ...]
) -> npt.NDArray[Any]:
    """The array with gaps that a `_Pickler` pickled: it shares its memory with `content`."""
    return np.ndarray(shape, dtype, content, offset, strides)


def tensor(
    content: npt.NDArray[np.uint8], kind: str, shape: tuple[int, ...], requires_grad: bool, is_parameter: bool
) -> Any:
    """The tensor that a `_Pickler` pickled: it shares its memory with `content`."""
    torch = importlib.import_module("torch")
    dtype = getattr(torch, kind, None)
    if not isinstance(dtype, torch.dtype):
        raise CorruptError(f"the image's state is damaged: PyTorch has no type {kind!r}")
    made = torch.from_numpy(content).view(dtype).reshape(shape) if content.size else torch.empty(shape, dtype=dtype)
    return torch.nn.Parameter(made, requires_grad) if is_parameter else made.requires_grad_(requires_grad)


def dump(state: object, arena: Arena) -> tuple[bytes, dict[str, tuple[int, int]]]:
    """The pickle of `state`, and the places of its buffers in the arena: the image's roots."""
    roots: dict[str, tuple[int, int]] = {}

    def place(buffer: pickle.PickleBuffer) -> bool:
        with buffer.raw() as content:
            found = arena.place_of(content)
        if found is None:
            return True  # not of the arena: into the pickle
        roots[f"buffer.{len(roots)}"] = found
        return False

    pickled = io.BytesIO()
    _Pickler(pickled, arena, place).dump(state)
    return pickled.getvalue(), roots


class _Plain(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        allowed = _PLAIN.get(module, set())
        if allowed is None or name in allowed:
            return getattr(importlib.import_module(module), name)
        raise UsageError(
            f"the state has a {module}.{name}, whose code would run; if you trust the image: "
            "cowslip.restore(..., trust=True)"
        )


def load(
    description: dict[str, Any], root: Callable[[str], tuple[int, int] | None], memory_at: MemoryAt, trust: bool
) -> Any:
    """The state that an image remembers, with arrays of the restored arena."""
    told = description.get("user", {}).get(STATE_KEY)
    if told is None:
        raise UsageError("the image was not saved by Python: it has arenas, and no state")
    try:
        words = json.loads(told)
        pickled, count = base64.b64decode(words["pickle"]), words["buffers"]
        places = [root(f"buffer.{i}") for i in range(count)]
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptError(f"the image's state is damaged: {error}") from None
    buffers = []
    for place in places:
        if place is None:
            raise CorruptError("the image's state is damaged: it names memory that the image has not")
        buffers.append(memory_at(*place))
    unpickler = pickle.Unpickler if trust else _Plain
    return unpickler(io.BytesIO(pickled), buffers=buffers).load()
