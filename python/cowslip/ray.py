"""Templates in Ray: a descriptor for the workers of the same node, an image for those of others.

Ray pickles an argument once, and workers unpickle it as often as they like, wherever they are. So what travels is a note:
where a socket is, and where an image is. `import cowslip.ray` needs Ray; nothing else of the package does.
"""

import contextlib
import os
import socket
import struct
import tempfile
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import ray
import ray.util

from . import _native
from ._arena import Arena, Array
from ._image import restore
from ._save import start_save
from ._errors import UsageError, VanishedError
from ._remote import fetched, is_url, written
from ._template import Template, _Layout

__all__ = ["template"]

# For a process of the same node that is stopped, or hands the template to many.
_PATIENCE_SECONDS = 60


@dataclass(frozen=True, slots=True)
class _Note:
    """What travels in the place of a template."""

    node: str
    socket: str
    image: str | None
    identity: str | None
    layouts: dict[str, _Layout]


_notes: weakref.WeakKeyDictionary[Template, _Note] = weakref.WeakKeyDictionary()
# The last image that this process restored. Tasks that follow each other have clones of the same template.
_restored: tuple[str, _native.Template] | None = None


@contextlib.contextmanager
def template(
    arena: Arena,
    arrays: Mapping[str, Array] | None = None,
    *,
    image: str | os.PathLike[str] | None = None,
    compress: str = "none",
    timeout: float = 60.0,
) -> Iterator[Template]:
    """A template of the arena now, which Ray's tasks, actors and objects may be handed in a `with` block.

    So may `template[table]`: a task that is handed that has an `ndarray`, a private clone. On this node a descriptor
    travels. `image` is for other nodes: the arena is saved there, once and before this returns, and their workers restore
    it. It is a path that all nodes have, or a URL. A worker keeps the last image that it restored, as a template.

    The block's end closes the template, and the arena is free again when no worker has a clone. Who unpickles a note after
    that restores the image too, or gets a `VanishedError`.
    """
    where, identity = None, None
    frozen = arena._freeze(timeout)
    try:
        if image is not None:
            where = os.fspath(image) if is_url(image) else os.path.abspath(image)
            with written(where) as file:
                start_save(arena._native, frozen, file, dict(arrays or {}), None, compress, 0).result()
                identity = _native.identity(file)
        made = Template(frozen.take_template(), dict(arrays or {}))
    finally:
        frozen.close()
    # Nobody else may look into it.
    with contextlib.closing(made), tempfile.TemporaryDirectory(prefix="cowslip-ray-") as folder:
        path = os.path.join(folder, "template")
        with contextlib.closing(made._open().serve(path)):
            _register(made, _Note(_node(), path, where, identity, made._layouts))
            try:
                yield made
            finally:
                del _notes[made]


def _node() -> str:
    return ray.get_runtime_context().get_node_id()


def _register(made: Template, note: _Note) -> None:
    _notes[made] = note
    ray.util.register_serializer(Template, serializer=_note_of, deserializer=_arrive)


def _note_of(made: Template) -> _Note:
    note = _notes.get(made)
    if note is None:
        raise UsageError("Ray may have the templates of `with cowslip.ray.template(...)`, within the block")
    return note


def _arrive(note: _Note) -> Template:
    """In a worker: the template that a note is of. It may hand that on to its own tasks."""
    native = _received(note.socket) if _node() == note.node else None
    if native is None:
        native = _of_image(note)
    made = Template(native, {})
    made._layouts = note.layouts
    _register(made, note)
    return made


def _received(path: str) -> _native.Template | None:
    """From the process that has the template; `None` if that has ended, or is done with it."""
    with socket.socket(socket.AF_UNIX) as end:
        try:
            end.connect(path)
            _, user, _ = struct.unpack("@iII", end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            # Somebody else may have made a folder of that name since.
            return _native.Template.receive(end.fileno(), _PATIENCE_SECONDS) if user in (0, os.geteuid()) else None
        except (FileNotFoundError, ConnectionError, VanishedError):
            return None


def _of_image(note: _Note) -> _native.Template:
    global _restored
    if note.image is None or note.identity is None:
        raise VanishedError(
            "the template is of another node, or its `with cowslip.ray.template(...)` has ended: "
            "workers elsewhere need template(..., image=PATH)"
        )
    if _restored is None or _restored[0] != note.identity:
        # Its memory first, then that of the next.
        _restored = None
        with fetched(note.image) as file:
            found = restore(file)
            if found._restoring.identity != note.identity:
                raise VanishedError(f"{note.image} is another image than the one that was saved for this template")
            # The freeze ends the restore, which needs the file.
            _restored = note.identity, found.arena._freeze(_PATIENCE_SECONDS).take_template()
    return _restored[1]
