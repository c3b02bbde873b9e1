"""A training loop of PyTorch that checkpoints every few steps without a pause, and goes on after `kill -9` bit for bit.

    python train_torch.py IMAGE STEPS

`adopt` moves what PyTorch allocated into the arena: the model at once, the optimizer's moments when its first step has
made them. The state has the generator too, and so everything that the next step depends on.
"""

import hashlib
import os
import sys

import torch

import cowslip
import cowslip.torch

EVERY = 5
INPUTS, HIDDEN, BATCH = 32, 512, 64


def main(image, steps):
    torch.manual_seed(7)
    torch.use_deterministic_algorithms(True)
    model = torch.nn.Sequential(torch.nn.Linear(INPUTS, HIDDEN), torch.nn.Tanh(), torch.nn.Linear(HIDDEN, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    step = 0
    if os.path.exists(image):
        _, state = cowslip.restore(image)
        # load_state_dict copies: what was restored may go after it.
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["rng"])
        step = state["step"]
        print("resumed at step", step, flush=True)
    arena = cowslip.Arena("256M")
    save = None
    while step < steps:
        inputs = torch.randn(BATCH, INPUTS)
        loss = (model(inputs) - inputs.sum(1, keepdim=True).sin()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step % EVERY == 0:
            cowslip.torch.adopt(arena, model, optimizer)
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            if save:
                save.result()  # the one before; it was done long ago
            save = arena.save(image, state | {"rng": torch.get_rng_state(), "step": step})
            print("saving step", step, flush=True)
    arena.close()
    digest = hashlib.sha256(b"".join(it.detach().numpy().tobytes() for it in model.parameters()))
    print("weights", digest.hexdigest())


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
