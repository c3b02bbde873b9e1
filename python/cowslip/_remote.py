"""Images at URLs, by way of a temporary file: the command sends and fetches them (docs/remote.md)."""

import contextlib
import os
import re
import tempfile
from collections.abc import Iterator

from ._command import _run

Place = str | os.PathLike[str]


def is_url(place: Place) -> bool:
    """Whether it names something in an object store, rather than a file."""
    return isinstance(place, str) and re.match("[A-Za-z0-9]+://", place) is not None


def within(folder: Place, name: str) -> str:
    """What is called `name` in a folder, or below a URL."""
    folder = os.fspath(folder)
    return f"{folder.rstrip('/')}/{name}" if is_url(folder) else os.path.join(folder, name)


@contextlib.contextmanager
def written(place: Place) -> Iterator[str]:
    """A file to write an image to, which is at `place` when the block has ended well."""
    place = os.fspath(place)
    if not is_url(place):
        yield os.path.abspath(place)
        return
    with tempfile.TemporaryDirectory(prefix="cowslip-") as folder:
        file = os.path.join(folder, "image")
        yield file
        _run("image", "push", file, place)


@contextlib.contextmanager
def fetched(place: Place) -> Iterator[str]:
    """A file with the image that is at `place`, until the block ends."""
    place = os.fspath(place)
    if not is_url(place):
        yield place
        return
    with tempfile.TemporaryDirectory(prefix="cowslip-") as folder:
        file = os.path.join(folder, "image")
        _run("image", "pull", place, file)
        yield file
