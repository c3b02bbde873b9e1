"""A training loop that checkpoints every few steps without a pause, and goes on after `kill -9` bit for bit.

    python train_numpy.py IMAGE STEPS

A network of one hidden layer learns a function. The state is everything that the next step depends on: weights, Adam's
moments, the generator of batches and the number of the step. A checkpoint costs the loop a fraction of a millisecond;
the image replaces the one before when it is whole, so that a kill at any time leaves a whole one.
"""

import hashlib
import os
import sys

import numpy as np

import cowslip

EVERY = 5
INPUTS, HIDDEN, BATCH = 32, 512, 64


def begin(arena):
    rng = np.random.default_rng(7)
    weights = [rng.normal(0, 0.1, shape) for shape in ((INPUTS, HIDDEN), (HIDDEN,), (HIDDEN, 1), (1,))]
    weights = [arena.array(it) for it in weights]
    moments = [(arena.zeros(it.shape), arena.zeros(it.shape)) for it in weights]
    return {"weights": weights, "moments": moments, "rng": rng.bit_generator.state, "step": 0}


def gradients(weights, rng):
    into_hidden, hidden_bias, out_of_hidden, bias = weights
    inputs = rng.standard_normal((BATCH, INPUTS))
    wanted = np.sin(inputs.sum(axis=1, keepdims=True))
    hidden = np.tanh(inputs @ into_hidden + hidden_bias)
    error = (hidden @ out_of_hidden + bias - wanted) / BATCH
    behind = (error @ out_of_hidden.T) * (1 - hidden**2)
    return [inputs.T @ behind, behind.sum(axis=0), hidden.T @ error, error.sum(axis=0)]


def update(state, rng):
    state["step"] += 1
    for weight, (first, second), gradient in zip(state["weights"], state["moments"], gradients(state["weights"], rng)):
        first += 0.1 * (gradient - first)
        second += 0.001 * (gradient**2 - second)
        rate = 1e-3 / (1 - 0.9 ** state["step"])
        weight -= rate * first / (np.sqrt(second / (1 - 0.999 ** state["step"])) + 1e-8)


def main(image, steps):
    if os.path.exists(image):
        arena, state = cowslip.restore(image)
        print("resumed at step", state["step"], flush=True)
    else:
        arena = cowslip.Arena("256M")
        state = begin(arena)
    rng = np.random.default_rng()
    rng.bit_generator.state = state["rng"]
    save = None
    while state["step"] < steps:
        update(state, rng)
        if state["step"] % EVERY == 0:
            state["rng"] = rng.bit_generator.state
            if save:
                save.result()  # the one before; it was done long ago
            save = arena.save(image, state)
            print("saving step", state["step"], flush=True)
    arena.close()
    digest = hashlib.sha256(b"".join(it.tobytes() for it in state["weights"]))
    print("weights", digest.hexdigest())


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
