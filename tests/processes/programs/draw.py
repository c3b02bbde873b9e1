"""Draws random numbers, then again for each line of its input: of each source a line `kind name number`."""

import json
import os
import random
import secrets
import ssl
import sys
import uuid

import numpy

generator, seeded = numpy.random.default_rng(), random.Random(1)


def draw():
    return {
        "kernel os.urandom": os.urandom(16).hex(),
        "kernel secrets": secrets.token_hex(16),
        "kernel uuid.uuid4": uuid.uuid4().hex,
        "library ssl.RAND_bytes": ssl.RAND_bytes(16).hex(),
        "memory random": random.getrandbits(128),
        "memory numpy.random": numpy.random.bytes(16).hex(),
        "object numpy.random.default_rng": generator.bytes(16).hex(),
        "seed random.Random(1)": seeded.getrandbits(128),
    }


draw()
print("ready", flush=True)
if "COWSLIP_WARM_FD" in os.environ and sys.argv[1:] == ["job"]:
    from cowslip import warm

    warm.ready()
else:
    sys.stdin.readline()
for name, number in draw().items():
    print(name, number, flush=True)
