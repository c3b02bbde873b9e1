"""numpy's own arrays in an arena (NEP 49)."""

import asyncio
import gc
import os
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cowslip


@pytest.fixture
def arena():
    with cowslip.Arena("64M") as arena:
        yield arena


def test_arrays_of_unchanged_code_are_of_the_arena(arena):
    before = np.arange(10)
    with arena.allocating():
        numbers = np.arange(1000)
        made = [numbers, numbers * 2, np.zeros((300, 300)), np.sort(numbers[::-1]), np.concatenate([numbers, before])]
        text = np.array(["a", "bcd"])
        empty = np.empty((0, 3))
    after = np.arange(1000)
    assert all(array in arena for array in made) and text in arena
    assert before not in arena and after not in arena and empty.size == 0
    assert (made[1] == 2 * np.arange(1000)).all() and not made[2].any() and list(text) == ["a", "bcd"]
    with arena.freeze() as then:
        made[1][:] = 0
        assert (then[made[1]] == 2 * np.arange(1000)).all()


def test_they_are_saved_without_a_copy(arena, tmp_path):
    with arena.allocating():
        table = np.arange(1 << 20)
    save = arena.save(tmp_path / "a.cowslip", {"table": table, "view": table[5:9]})
    table[:] = 0
    save.result(60)
    again, state = cowslip.restore(tmp_path / "a.cowslip")
    assert state["table"] in again and (state["table"] == np.arange(1 << 20)).all()
    assert list(state["view"]) == [5, 6, 7, 8]


def test_a_handler_holds_for_its_context_only(arena):
    found = {}

    def elsewhere():
        found["thread"] = np.zeros(1000) in arena

    async def inside():
        with arena.allocating():
            await asyncio.sleep(0)
            found["inside"] = np.zeros(1000) in arena

    async def beside():
        await asyncio.sleep(0)
        found["beside"] = np.zeros(1000) in arena

    async def both():
        await asyncio.gather(inside(), beside())

    with arena.allocating():
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
    asyncio.run(both())
    # Since 3.14 a free-threaded Python's threads begin with the context of who starts them.
    assert found["inside"] and not found["beside"]
    other = cowslip.Arena("8M")
    with arena.allocating():
        with other.allocating():
            inner = np.zeros(10)
        outer = np.zeros(10)
    assert inner in other and inner not in arena and outer in arena


def test_a_failure_inside_gives_the_heap_back(arena):
    with pytest.raises(ZeroDivisionError), arena.allocating():
        1 // 0
    assert np.zeros(100) not in arena


def test_arrays_outlive_the_arena_and_free_themselves():
    arena = cowslip.Arena("16M")
    with arena.allocating():
        kept = [np.full(n, n) for n in (1, 100, 10_000, 300_000)]
    arena.close()
    del arena
    gc.collect()
    assert all((array == array.size).all() for array in kept)
    with pytest.raises(cowslip.UsageError, match="closed"), cowslip.Arena("1M") as closed:
        closed.close()
        with closed.allocating():
            pass


def test_memory_comes_back(arena):
    with arena.allocating():
        for n in range(200):
            large = np.ones(2 << 20, np.uint8)
            large = np.ones((20 << 20) + n, np.uint8)
            small = [np.ones(100) for _ in range(1000)]
            del large, small
        with pytest.raises(MemoryError):
            np.ones(65 << 20, np.uint8)
        assert np.ones(30 << 20, np.uint8).all()


def test_a_child_takes_memory_of_the_heap(arena):
    with arena.allocating():
        table = np.arange(1 << 18)
        pid = os.fork()
        if pid == 0:
            mine = table + 1
            is_right = mine not in arena and (mine == np.arange(1, (1 << 18) + 1)).all()
            mine.resize(1 << 19, refcheck=False)
            del mine
            os._exit(0 if is_right else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_no_two_arrays_share_memory(data):
    """Arrays of any lengths are made, resized and dropped: each keeps its content."""
    arena = cowslip.Arena("32M")
    lengths = st.one_of(st.integers(0, 200), st.integers(1000, 40_000), st.integers(100_000, 300_000))
    living: list[tuple[np.ndarray, int]] = []
    with arena.allocating():
        for stamp in range(1, data.draw(st.integers(1, 40))):
            match data.draw(st.sampled_from(["make", "zeros", "resize", "drop"])):
                case "make":
                    living.append((np.full(data.draw(lengths), stamp % 256, np.uint8), stamp % 256))
                case "zeros":
                    zeros = np.zeros(data.draw(lengths), np.uint8)
                    assert not zeros.any()
                    zeros[:] = stamp % 256
                    living.append((zeros, stamp % 256))
                case "resize" if living:
                    array, content = living.pop(data.draw(st.integers(0, len(living) - 1)))
                    before = array.size
                    array.resize(data.draw(lengths), refcheck=False)
                    assert (array[:before] == content).all() and not array[before:].any()
                    array[:] = content
                    living.append((array, content))
                case "drop" if living:
                    living.pop(data.draw(st.integers(0, len(living) - 1)))
            assert all((array == content).all() for array, content in living)
