"""A program's state in an image: a pickle whose arrays of the arena are places in it."""

import base64
import importlib
import io
import json
import pickle

import numpy as np

from ._native import CorruptError, UsageError
from ._views import extent

_KEY = "cowslip.python"
# What a state is made of when nobody says that the image may run code.
_PLAIN = {
    "builtins": {"complex", "set", "frozenset", "bytearray", "range", "slice"},
    "collections": {"OrderedDict", "deque", "defaultdict", "Counter"},
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
}


def dump(state, start, length):
    """What the image remembers of `state`, and its roots; the arena is `length` bytes from `start` on."""
    roots = {}

    def place(buffer):
        view = buffer.raw()
        try:
            address, size = extent(np.frombuffer(view, np.uint8))
        finally:
            view.release()
        if not (start <= address and address + size <= start + length):
            return True  # not of the arena: into the pickle
        roots[f"buffer.{len(roots)}"] = (address, size)
        return False

    pickled = pickle.dumps(state, protocol=5, buffer_callback=place)
    words = {"pickle": base64.b64encode(pickled).decode(), "buffers": len(roots)}
    return {_KEY: json.dumps(words)}, roots


class _Plain(pickle.Unpickler):
    def find_class(self, module, name):
        allowed = _PLAIN.get(module, ())
        if allowed is None or name in allowed:
            return getattr(importlib.import_module(module), name)
        raise UsageError(
            f"the state has a {module}.{name}, whose code would run; if you trust the image: "
            "cowslip.restore(..., trust=True)"
        )


def load(description, root, memory_at, trust):
    """The state that an image remembers, with arrays of the restored arena."""
    words = description.get("user", {}).get(_KEY)
    if words is None:
        raise UsageError("the image was not saved by Python: it has arenas, and no state")
    try:
        words = json.loads(words)
        pickled, count = base64.b64decode(words["pickle"]), words["buffers"]
        places = [root(f"buffer.{i}") for i in range(count)]
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptError(f"the image's state is damaged: {error}") from None
    if None in places:
        raise CorruptError("the image's state is damaged: it names memory that the image has not")
    buffers = [memory_at(*place) for place in places]
    unpickler = pickle.Unpickler if trust else _Plain
    return unpickler(io.BytesIO(pickled), buffers=buffers).load()
