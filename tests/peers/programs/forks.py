"""Forks of a Python process with a large heap: each side must see its own bytes, and only those."""

import hashlib
import multiprocessing
import os
import random
import sys
import time

SIZE = 96 << 20
PIECE = 1 << 20
context = multiprocessing.get_context("fork")


def filled(seed):
    return bytearray(random.Random(seed).randbytes(PIECE) * (SIZE // PIECE))


def digest(data, piece=None):
    part = data if piece is None else memoryview(data)[piece * PIECE:(piece + 1) * PIECE]
    return hashlib.blake2b(part).hexdigest()


def wait_ok(pid):
    _, status = os.waitpid(pid, 0)
    assert status == 0, f"a child ended with {status}"


def child(work):
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return pid


def piece_digest(piece):
    return digest(BIG, piece)


def pool():
    """Pools one after the other, the memory changed between them."""
    global BIG
    BIG = filled(1)
    for turn in range(4):
        for piece in range(turn, SIZE // PIECE, 3):
            BIG[piece * PIECE + turn * 4096] ^= 0xFF
        expected = [digest(BIG, piece) for piece in range(SIZE // PIECE)]
        with context.Pool(3) as workers:
            assert workers.map(piece_digest, range(SIZE // PIECE)) == expected


def copies():
    """Parent and child write the same pages at the same time."""
    data = filled(2)
    before = digest(data)
    ready, go = os.pipe(), os.pipe()

    def work():
        assert digest(data) == before
        os.write(ready[1], b".")
        os.read(go[0], 1)
        assert digest(data) == before, "the child sees its parent's writes"
        data[::4096] = b"c" * (SIZE // 4096)
        assert data.count(b"c", 0, 1) == 1 and data[4096:4097] == b"c"

    pid = child(work)
    os.read(ready[0], 1)
    data[::4096] = b"p" * (SIZE // 4096)
    after = digest(data)
    os.write(go[1], b".")
    wait_ok(pid)
    assert digest(data) == after, "the parent sees its child's writes"


def nested():
    """Five generations, each with changes of its own."""
    data = filled(3)

    def generation(depth):
        data[depth * PIECE:(depth + 1) * PIECE] = bytes([depth]) * PIECE
        mine = digest(data)
        if depth < 5:
            wait_ok(child(lambda: generation(depth + 1)))
        assert digest(data) == mine

    generation(0)


def crowd():
    """Sixty children at once; half of them are killed."""
    data = filled(4)
    children = []
    for number in range(60):
        data[number * 4096] = number
        expected = digest(data, 0)

        def work(expected=expected, number=number):
            data[-1 - number] = 1
            assert digest(data, 0) == expected
            if number % 2:
                time.sleep(600)

        children.append(child(work))
    for pid in children[1::2]:
        os.kill(pid, 9)
        assert os.waitpid(pid, 0)[1] == 9
    for pid in children[::2]:
        wait_ok(pid)
    assert [data[n * 4096] for n in range(60)] == list(range(60))


def daemon():
    """A child that outlives its parent, allocates and forks again."""
    data = filled(5)
    expected = digest(data)
    said = os.pipe()

    def parent():
        parent_pid = os.getpid()

        def work():
            while os.getppid() == parent_pid:
                time.sleep(0.001)
            more = filled(6)
            wait_ok(child(lambda: more.__setitem__(0, 0)))
            assert digest(more) == digest(filled(6))
            os.write(said[1], digest(data).encode())

        os.setsid()
        child(work)

    wait_ok(child(parent))
    os.close(said[1])
    assert os.read(said[0], 200).decode() == expected


{it.__name__: it for it in (pool, copies, nested, crowd, daemon)}[sys.argv[1]]()
