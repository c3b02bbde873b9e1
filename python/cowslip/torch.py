"""PyTorch's tensors in arenas, and checkpoints of `torch.distributed.checkpoint` without a copy.

PyTorch has no hook for where it allocates: `adopt` moves what is there already. `arena.save` and `cowslip.restore` know
tensors without this module. `import cowslip.torch` needs PyTorch; nothing else of the package does.
"""

import contextlib
import copy
import io
import os
import pickle
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import (
    LoadItemType,
    LoadPlan,
    LoadPlanner,
    ReadItem,
    SavePlan,
    SavePlanner,
    WriteItemType,
)
from torch.distributed.checkpoint.staging import AsyncStager
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.distributed.tensor import DTensor
from torch.futures import Future

from . import _native
from ._arena import Arena
from ._image import restore
from ._save import start_save
from ._errors import CorruptError, UsageError
from ._remote import fetched, is_url, within, written

__all__ = ["ImageReader", "ImageWriter", "adopt", "empty"]

_METADATA = ".metadata"
# Below a URL, where there are images and nothing else.
_METADATA_IMAGE = "metadata.cowslip"


def _tensor_of(memory: _native.Memory, dtype: torch.dtype, shape: torch.Size) -> torch.Tensor:
    with warnings.catch_warnings():
        # A view of an instant is for reading only, of which PyTorch has no notion.
        warnings.filterwarnings("ignore", message="The given buffer is not writable")
        return torch.frombuffer(cast(Any, memory), dtype=dtype, count=shape.numel()).reshape(shape)


def empty(arena: Arena, shape: Iterable[int], dtype: torch.dtype | None = None) -> torch.Tensor:
    """A tensor of zeroes in the arena; its memory is given back when nobody has it."""
    dtype, sizes = dtype or torch.get_default_dtype(), torch.Size(shape)
    if sizes.numel() == 0:
        return torch.empty(sizes, dtype=dtype)
    with arena.allocating():
        content = np.zeros(sizes.numel() * dtype.itemsize, np.uint8)
    return torch.from_numpy(content).view(dtype).reshape(sizes)


def _is_within(tensor: torch.Tensor, start: int, length: int) -> bool:
    is_plain = tensor.layout == torch.strided and tensor.device.type == "cpu" and tensor.numel() > 0
    return is_plain and start <= tensor.data_ptr() < start + length


def _moved(arena: Arena, tensor: torch.Tensor) -> torch.Tensor:
    if tensor.device.type != "cpu" or tensor.layout != torch.strided or tensor.numel() == 0:
        return tensor
    if _is_within(tensor, *arena._open().range):
        return tensor
    moved = empty(arena, tensor.shape, tensor.dtype)
    with torch.no_grad():
        moved.copy_(tensor)
    return moved


def adopt(arena: Arena, *what: torch.nn.Module | torch.optim.Optimizer) -> None:
    """Moves the parameters and buffers of modules, their gradients, and the state of optimizers into the arena.

    What is there already stays where it is, so that it may be called before each checkpoint: an optimizer makes its state
    in its first step. The objects stay the same; what shares memory with them otherwise does not any more.
    """
    for each in what:
        if isinstance(each, torch.nn.Module):
            for one in [*each.parameters(), *each.buffers()]:
                one.data = _moved(arena, one.data)
                if one.grad is not None:
                    one.grad.data = _moved(arena, one.grad.data)
        elif isinstance(each, torch.optim.Optimizer):
            for state in each.state.values():
                for name, value in state.items():
                    if isinstance(value, torch.Tensor):
                        state[name] = _moved(arena, value)
        else:
            raise UsageError(f"a module or an optimizer is wanted, not {type(each).__name__}")


def _each_tensor(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """A copy of `value`, whose tensors are what `change` makes of them."""
    if isinstance(value, DTensor):
        local, shape, stride = change(value.to_local().detach()), value.size(), value.stride()
        return DTensor.from_local(local, value.device_mesh, value.placements, run_check=False, shape=shape, stride=stride)
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, dict):
        return type(value)((key, _each_tensor(one, change)) for key, one in value.items())
    if type(value) in (list, tuple):
        return type(value)(_each_tensor(one, change) for one in value)
    return copy.deepcopy(value)


class ImageWriter(StorageWriter, AsyncStager):
    """Checkpoints of `torch.distributed.checkpoint` as images, staged by a freeze instead of by a copy.

    >>> dcp.async_save(state, storage_writer=ImageWriter(folder, arena)).result()  # doctest: +SKIP

    Tensors of the arena are neither copied nor waited for; others are copied when they are staged. Each rank writes an image
    into the folder, and the first one the metadata, as PyTorch's own writers do. The folder may be a URL: each image goes
    through a temporary file, and without the metadata, which comes last, there is no checkpoint.
    """

    _synchronize_after_execute = False

    def __init__(
        self, path: str | os.PathLike[str], arena: Arena, *, compress: str = "none", threads: int = 0, timeout: float = 60.0
    ) -> None:
        self._path, self._arena = os.fspath(path), arena
        self._compress, self._threads, self._timeout = compress, threads, timeout
        self._frozen: _native.Frozen | None = None
        self._rank = 0

    def stage(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        self.close()
        self._frozen = frozen = self._arena._freeze(self._timeout)
        place = self._arena._native.range

        def as_of_now(tensor: torch.Tensor) -> torch.Tensor:
            if not _is_within(tensor, *place) or not tensor.is_contiguous():
                return tensor.detach().clone()
            memory = frozen.memory_at(tensor.data_ptr(), tensor.numel() * tensor.element_size())
            return _tensor_of(memory, tensor.dtype, tensor.shape)

        return cast(dict[str, Any], _each_tensor(state_dict, as_of_now))

    def close(self) -> None:
        """Lets a view go that was staged and not written."""
        if self._frozen is not None:
            self._frozen.close()
            self._frozen = None

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        if checkpoint_id is not None:
            self._path = os.fspath(checkpoint_id)

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        self._rank = kwargs.get("rank", 0)

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        if not is_url(self._path):
            os.makedirs(self._path, exist_ok=True)
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        return plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> "Future[list[WriteResult]]":
        if self._frozen is None:
            # dcp.save, which the program waits for: what it saves holds still.
            self._frozen = self._arena._freeze(self._timeout)
        arena, frozen = self._arena._native, self._frozen
        start, length = arena.range
        view = frozen.memory_at(start, length).address
        image = f"__{self._rank}.cowslip"
        state: dict[str, Any] = {}
        results = []
        for number, item in enumerate(plan.items):
            value = planner.resolve_data(item)
            if item.type == WriteItemType.BYTE_IO:
                content: Any = cast(io.BytesIO, value).getvalue()
                size = len(content)
            else:
                content = cast(torch.Tensor, value).detach()
                size = content.numel() * content.element_size()
                if _is_within(content, view, length) and content.is_contiguous():
                    # Where it is in the arena: the image has it already.
                    memory = arena.memory_at(content.data_ptr() - view + start, size)
                    content = _tensor_of(memory, content.dtype, content.shape)
            state[str(number)] = content
            results.append(WriteResult(item.index, size, (image, str(number))))
        with written(within(self._path, image)) as file:
            save = start_save(arena, frozen, file, state, None, self._compress, self._threads)
            self.close()
            save.result()
        done: Future[list[WriteResult]] = Future()
        done.set_result(results)
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        metadata.storage_data = {one.index: one.storage_data for each in results for one in each}
        metadata.storage_meta = self.storage_meta()
        if is_url(self._path):
            with written(within(self._path, _METADATA_IMAGE)) as image, Arena("2M") as arena:
                arena.save(image, pickle.dumps(metadata)).result()
            return
        path = within(self._path, _METADATA)
        temporary = f"{path}.tmp"
        # What another user planted there is not followed.
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        with open(temporary, "xb") as file:
            pickle.dump(metadata, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return isinstance(checkpoint_id, str | os.PathLike)


class ImageReader(StorageReader):
    """Reads what an `ImageWriter` wrote, into a folder or below a URL, with `dcp.load(state, storage_reader=ImageReader(folder))`.

    Only checkpoints of your own: PyTorch's metadata is a pickle, whose code runs.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.fspath(path)
        self._places: dict[Any, tuple[str, str]] = {}

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        if checkpoint_id is not None:
            self._path = os.fspath(checkpoint_id)

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        path = within(self._path, _METADATA_IMAGE if is_url(self._path) else _METADATA)
        with fetched(path) as file:
            content = restore(file).state if is_url(path) else Path(file).read_bytes()
        metadata = pickle.loads(content)
        if not isinstance(metadata, Metadata):
            raise CorruptError(f"{path} is not a checkpoint's metadata")
        return metadata

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        self._places = metadata.storage_data or {}

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> "Future[None]":
        states: dict[str, Any] = {}
        with contextlib.ExitStack() as files:
            for item in plan.items:
                image, key = self._places[item.storage_index]
                if image not in states:
                    states[image] = restore(files.enter_context(fetched(within(self._path, image)))).state
                self._read(item, states[image][key], planner)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _read(self, item: ReadItem, found: Any, planner: LoadPlanner) -> None:
        if item.type == LoadItemType.BYTE_IO:
            planner.load_bytes(item, io.BytesIO(found))
            return
        for dimension, (first, count) in enumerate(zip(item.storage_offsets, item.lengths, strict=True)):
            found = found.narrow(dimension, first, count)
        target = planner.resolve_tensor(item).detach()
        target.copy_(found)
        planner.commit_tensor(item, target)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return is_url(checkpoint_id) or (Path(checkpoint_id) / _METADATA).is_file()
