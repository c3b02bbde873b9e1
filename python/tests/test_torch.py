"""PyTorch's tensors in arenas, and checkpoints of torch.distributed.checkpoint."""

import io
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import torch.distributed.checkpoint as dcp  # noqa: E402
from torch.distributed.tensor import DTensor, Shard  # noqa: E402

import cowslip  # noqa: E402
import cowslip.torch  # noqa: E402

EXAMPLE = Path(__file__).parent.parent / "examples" / "dcp_torch.py"


@pytest.fixture
def arena():
    with cowslip.Arena("128M") as arena:
        yield arena


def trained(arena, steps=3):
    """A model, its optimizer with state, both in the arena."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.BatchNorm1d(256), torch.nn.Linear(256, 8))
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(steps):
        step(model, optimizer)
        cowslip.torch.adopt(arena, model, optimizer)
    return model, optimizer


def step(model, optimizer):
    optimizer.zero_grad(set_to_none=False)
    model(torch.randn(32, 64)).square().mean().backward()
    optimizer.step()


def place(tensor):
    return np.asarray(tensor.detach().reshape(-1).view(torch.uint8))


def tensors(value):
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict | list | tuple):
        for one in value.values() if isinstance(value, dict) else value:
            yield from tensors(one)


def state_of(model, optimizer):
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 3}


def same(one, other):
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


def test_what_is_adopted_is_trained_in_the_arena(arena):
    model, optimizer = trained(arena)
    assert all(place(tensor) in arena for tensor in tensors(state_of(model, optimizer)))
    before = [tensor.data_ptr() for tensor in tensors(state_of(model, optimizer))]
    cowslip.torch.adopt(arena, model, optimizer)
    step(model, optimizer)
    assert before == [tensor.data_ptr() for tensor in tensors(state_of(model, optimizer))]
    plain_arena = cowslip.Arena("128M")
    again, plain = trained(plain_arena)
    step(again, plain)
    assert same(state_of(model, optimizer), state_of(again, plain)), "as where it was not moved"
    with pytest.raises(cowslip.UsageError, match="module"):
        cowslip.torch.adopt(arena, [1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8, torch.bool, torch.complex64])
def test_tensors_are_saved_as_of_the_call(arena, tmp_path, dtype):
    table = cowslip.torch.empty(arena, (1000, 7), dtype)
    table.copy_((torch.arange(7000) % 2).reshape(1000, 7))
    state = {"table": table, "outside": torch.ones(3, dtype=dtype), "scalar": torch.tensor(2.5), "none": torch.empty(0, 4)}
    state["parameter"] = torch.nn.Parameter(torch.ones(3))
    state["strided"] = torch.arange(12).reshape(3, 4).T
    expected = {name: value.detach().clone() for name, value in state.items()}
    save = arena.save(tmp_path / "a.cowslip", state)
    table.zero_()
    save.result(60)
    again, found = cowslip.restore(tmp_path / "a.cowslip")
    assert same(expected, found) and found["table"].dtype == dtype and place(found["table"]) in again
    assert isinstance(found["parameter"], torch.nn.Parameter) and found["parameter"].requires_grad
    found["table"].zero_()


def test_dcp_stages_by_a_freeze(arena, tmp_path):
    model, optimizer = trained(arena)
    state = state_of(model, optimizer) | {"words": ["a", (1, 2)], "outside": torch.full((5,), 7.0)}
    buffer = io.BytesIO()
    torch.save(state, buffer)
    expected = torch.load(io.BytesIO(buffer.getvalue()))
    writer = cowslip.torch.ImageWriter(tmp_path / "checkpoint", arena)
    staged = writer.stage(state)
    assert all(place(tensor) not in arena for tensor in tensors(staged["model"]))
    writer.close()
    del staged
    saving = dcp.async_save(state, storage_writer=writer)
    state["outside"].zero_()
    for _ in range(3):
        step(model, optimizer)
    saving.result(60)
    assert not same(expected["model"], model.state_dict())
    torch.manual_seed(2)
    found = {name: tensor.new_zeros(tensor.shape) for name, tensor in expected["model"].items()}
    found = {"model": found, "optimizer": state_of(*trained(arena, 1))["optimizer"], "step": 0, "words": [], "outside": torch.zeros(5)}
    dcp.load(found, storage_reader=cowslip.torch.ImageReader(tmp_path / "checkpoint"))
    assert same(expected["model"], found["model"]) and same(expected["optimizer"], found["optimizer"])
    assert found["step"] == 3 and found["words"] == ["a", (1, 2)] and (found["outside"] == 7).all()


def run_processes(folder, steps, resume=0):
    """What the first of two processes says at the end of their training."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--rdzv-backend", "c10d"]
    command += ["--rdzv-endpoint", "127.0.0.1:0", "--local-addr", "127.0.0.1", EXAMPLE, folder, str(steps)]
    settings = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "RESUME": str(resume)}
    with tempfile.TemporaryFile("w+") as told:
        # Into a file: a process that outlives its parent holds no pipe that somebody waits for.
        done = subprocess.run(command, stdout=told, stderr=told, timeout=300, env=os.environ | settings)
        told.seek(0)
        text = told.read()
    assert done.returncode == 0, text
    return re.findall("^weights .*$", text, re.M)


@pytest.mark.parametrize("place", ["folder", "object store"])
def test_processes_go_on_from_a_checkpoint(tmp_path, request, place):
    folder = str(tmp_path) if place == "folder" else f"{request.getfixturevalue('bucket')}/run"
    straight = run_processes(folder, 15)
    assert len(straight) == 1
    assert run_processes(folder, 15, resume=10) == straight, "bit for bit"


def test_shards_of_the_arena_are_not_copied(arena, tmp_path):
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
        local = cowslip.torch.empty(arena, (64, 8))
        local.fill_(3)
        sharded = DTensor.from_local(local, mesh, [Shard(0)])
        writer = cowslip.torch.ImageWriter(tmp_path / "checkpoint", arena)
        staged = writer.stage({"table": sharded})
        local.fill_(4)
        # Its memory is the view's, and was not written to since.
        found = staged["table"].to_local()
        assert (found == 3).all() and staged["table"].placements == sharded.placements
        # A copy would not be of the view's memory, which is as it was.
        writer.close()
        arena.freeze(timeout=0).close()
        assert (found == 3).all()
        del found, staged
        arena.freeze(timeout=10).close()
    finally:
        torch.distributed.destroy_process_group()


def test_a_checkpoint_below_a_url_is_whole_or_none(arena, bucket):
    state = {"model": trained(arena)[0].state_dict(), "step": 3}
    expected = {name: tensor.clone() for name, tensor in state["model"].items()}
    dcp.save(state, storage_writer=cowslip.torch.ImageWriter(f"{bucket}/whole/", arena))
    for tensor in state["model"].values():
        tensor.zero_()
    state["step"] = 0
    dcp.load(state, storage_reader=cowslip.torch.ImageReader(f"{bucket}/whole"))
    assert same(expected, dict(state["model"])) and state["step"] == 3
    for place in (f"{bucket}/none", "s3://nowhere/none"):
        with pytest.raises(dcp.api.CheckpointException):
            dcp.load(state, storage_reader=cowslip.torch.ImageReader(place))
    with pytest.raises(dcp.api.CheckpointException) as raised:
        dcp.save(state, storage_writer=cowslip.torch.ImageWriter("s3://nowhere/there", arena))
    assert "this-is-secret" not in str(raised.value)
    arena.freeze(timeout=10).close()


def test_dcp_saves_and_waits_too(arena, tmp_path):
    model, _ = trained(arena)
    dcp.save({"model": model.state_dict()}, storage_writer=cowslip.torch.ImageWriter(tmp_path / "checkpoint", arena))
    found = {"model": {name: torch.zeros_like(tensor) for name, tensor in model.state_dict().items()}}
    dcp.load(found, storage_reader=cowslip.torch.ImageReader(tmp_path / "checkpoint"))
    assert same(dict(model.state_dict()), found["model"])
    with pytest.raises(dcp.api.CheckpointException):
        dcp.load(found, storage_reader=cowslip.torch.ImageReader(tmp_path / "none"))
    arena.freeze(timeout=10).close()
