"""Several processes train one model, and checkpoint it with torch.distributed.checkpoint as images.

    torchrun --nproc-per-node 2 dcp_torch.py FOLDER STEPS

FOLDER is one of the file system, or a URL of an object store (docs/remote.md): s3://bucket/run. Each process has half of
the wide layer (FSDP would do the same), stages it by a freeze, and writes an image of its own while the loop goes on. A
checkpoint has a folder of its own. Started again, the processes go on from the one whose step is asked for with RESUME.
"""

import hashlib
import os
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

import cowslip
import cowslip.torch

EVERY = 5
INPUTS, HIDDEN, BATCH = 32, 512, 64


def main(folder, steps):
    dist.init_process_group("gloo")
    rank, processes = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (processes,))
    torch.manual_seed(7)
    wide = (torch.randn(HIDDEN, INPUTS) * 0.1).chunk(processes)[rank].clone().requires_grad_()
    narrow = (torch.randn(1, HIDDEN) * 0.1).requires_grad_()
    arena = cowslip.Arena("64M")
    with torch.no_grad():
        for weight in (wide, narrow):
            weight.data = cowslip.torch.empty(arena, weight.shape).copy_(weight)
    step = int(os.environ.get("RESUME", 0))

    def state():
        return {"wide": DTensor.from_local(wide.detach(), mesh, [Shard(0)]), "narrow": narrow.detach()}

    def checkpoint(number):
        return f"{folder.rstrip('/')}/{number}"

    if step:
        dcp.load(state(), storage_reader=cowslip.torch.ImageReader(checkpoint(step)))
    # Checkpoints talk while the loop does: in a group of their own.
    talking = dist.new_group(backend="gloo")
    saving = None
    while step < steps:
        inputs = torch.randn(BATCH, INPUTS, generator=torch.Generator().manual_seed(step))
        mine = narrow.chunk(processes, 1)[rank]
        output = torch.tanh(inputs @ wide.T) @ mine.T
        whole = output.detach().clone()
        dist.all_reduce(whole)
        # What is wrong with the sum of all processes' halves, for this one's.
        output.backward(2 * (whole - inputs.sum(1, keepdim=True).sin()) / BATCH)
        dist.all_reduce(narrow.grad)
        with torch.no_grad():
            for weight in (wide, narrow):
                weight -= 0.01 * weight.grad
                weight.grad = None
        step += 1
        if step % EVERY == 0:
            if saving:
                saving.result()  # the one before; it was done long ago
            writer = cowslip.torch.ImageWriter(checkpoint(step), arena)
            saving = dcp.async_save(state(), storage_writer=writer, process_group=talking)
    if saving:
        saving.result()
    parts = [torch.empty(wide.shape) for _ in range(processes)]
    dist.all_gather(parts, wide.detach())
    if rank == 0:
        digest = hashlib.sha256(b"".join(it.numpy().tobytes() for it in [*parts, narrow.detach()]))
        print("weights", digest.hexdigest(), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
