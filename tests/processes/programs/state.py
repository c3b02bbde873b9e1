"""A program with threads, memory and a file, which says after each line of its input that all are right: state.py FOLDER."""

import hashlib
import os
import sys
import threading
import time

NAME = f"{sys.argv[1]}/data.{os.getpid()}"
with open(NAME, "w") as new:
    new.write("0123456789" * 1000)
data = open(NAME, "rb", buffering=0)
pairs, lock = [[0, 0] for _ in range(4)], threading.Lock()


def work(pair):
    while True:
        with lock:
            pair[0] += 1
            pair[1] -= 1
        time.sleep(0.0005)


def counted():
    """Waits until each thread has counted since."""
    before = [pair[0] for pair in pairs]
    deadline = time.monotonic() + 60
    while any(pair[0] <= then for pair, then in zip(pairs, before)):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.0005)
    return True


[threading.Thread(target=work, args=(pair,), daemon=True).start() for pair in pairs]
SIZE = 1 << 20
memory, changes = bytearray(SIZE), 0


def is_right():
    with lock:
        left = sum(map(sum, pairs))
    block = hashlib.sha256(str(changes).encode()).digest()
    return left == 0 and memory == block * (SIZE // 32) and os.lseek(data.fileno(), 0, os.SEEK_CUR) == changes % 1000


def start_waiter():
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait, daemon=True)
    thread.start()
    return thread, stop


waiter = start_waiter()


def change():
    """Another state, in which a thread of the last one has ended."""
    global changes, waiter
    thread, stop = waiter
    stop.set()
    thread.join()
    waiter = start_waiter()
    changes += 1
    memory[:] = hashlib.sha256(str(changes).encode()).digest() * (SIZE // 32)
    os.lseek(data.fileno(), changes % 1000, os.SEEK_SET)


change()
print("ready", flush=True)
for line in iter(sys.stdin.readline, ""):
    if line == "change\n":
        change()
    print(changes, is_right(), counted(), threading.active_count(), flush=True)
