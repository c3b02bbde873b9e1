"""Like profiled.c, for profilers of Python."""
import os

blocks = [bytearray([i % 256]) * 25_000 for i in range(2_000)]
child = os.fork()
if child == 0:
    os._exit(any(block[997] != i % 256 for i, block in enumerate(blocks)))
for i, block in enumerate(blocks):
    block[997] = (i + 1) % 256
assert os.waitpid(child, 0)[1] == 0
print("ok", flush=True)
