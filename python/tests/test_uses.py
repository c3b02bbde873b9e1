"""Uses that a program makes of Cowslip without having read how it works."""

import concurrent.futures
import gc
import multiprocessing
import os
import subprocess
import sys

import numpy as np
import pytest

import cowslip


@pytest.fixture
def arena():
    with cowslip.Arena("64M") as arena:
        yield arena


def test_a_dropped_view_has_ended(arena):
    table = arena.full((1000,), 2.0)
    view = arena.freeze()
    del view
    table += 1
    arena.freeze(timeout=5).close()


def test_a_view_of_a_function_ends_with_it(arena):
    table = arena.full((1000,), 2.0)

    def total():
        return float(arena.freeze()[table].sum())

    assert [total() for _ in range(3)] == [2000.0] * 3


def test_a_dropped_view_does_not_hold_up_a_save(arena, tmp_path):
    table = arena.full((1000,), 2.0)
    view = arena.freeze()
    del view
    arena.save(tmp_path / "image", {"table": table}, timeout=5).result(60)


def test_an_array_outlives_the_view_that_was_dropped(arena):
    table = arena.full((1000,), 2.0)
    then = arena.freeze()[table]
    table[:] = 3
    gc.collect()
    assert (then == 2).all()
    del then
    arena.freeze(timeout=5).close()


def test_a_loop_that_keeps_an_array_goes_on(arena):
    table = arena.zeros((1000,))
    kept = []
    for step in range(5):
        table[:] = step
        with arena.freeze() as then:
            snapshot = then[table]
            kept.append(then[table[step::7]])
        assert (snapshot == step).all()
    assert [set(each) for each in kept] == [{step} for step in range(5)]


def test_a_large_array_that_is_kept_is_as_it_was(arena):
    table = arena.array(np.arange(3 << 20, dtype=np.int32))
    with arena.freeze() as then:
        snapshot = then[table]
    table += 1
    with arena.freeze() as then:
        assert (then[table] == snapshot + 1).all()
        assert (snapshot == np.arange(3 << 20)).all() and not snapshot.flags.writeable


def test_a_view_that_is_open_is_named(arena):
    table = arena.full((1000,), 2.0)
    views = [arena.freeze()]
    with pytest.raises(cowslip.BusyError) as caught:
        arena.freeze(timeout=0.01)
    assert any("the view of" in note and "test_uses.py:" in note for note in caught.value.__notes__)
    views.clear()
    assert (arena.freeze(timeout=5)[table] == 2).all()


def add(table):
    """Of a forked worker."""
    table += 1
    return float(table.sum())


def inherit():
    """Of a forked worker that was handed nothing."""
    return float(inherited.sum())


inherited = np.zeros(0)


def test_a_forked_child_has_the_arrays(arena):
    table = arena.full((1000,), 2.0)
    child = os.fork()
    if child == 0:
        table += 1
        os._exit(int(table.sum()) // 100)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 30
    assert (table == 2).all()


@pytest.fixture
def shared(arena):
    global inherited
    inherited = arena.full((1000,), 2.0)
    yield inherited
    inherited = np.zeros(0)


def test_a_pool_of_forks_has_the_arrays(shared):
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert [pool.apply_async(inherit).get(60) for _ in range(4)] == [2000.0] * 4


def test_a_process_that_is_forked_has_the_arrays(shared):
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=lambda: theirs.send(inherit()))
    process.start()
    assert ours.poll(60) and ours.recv() == 2000.0
    process.join(60)
    assert process.exitcode == 0


def test_an_executor_of_forks_has_the_arrays(shared):
    context = multiprocessing.get_context("fork")
    with concurrent.futures.ProcessPoolExecutor(2, context) as executor:
        assert [executor.submit(inherit).result(60) for _ in range(4)] == [2000.0] * 4


def test_an_array_can_be_an_argument_of_a_pool_of_forks(shared):
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map_async(add, [shared, shared]).get(60) == [3000.0] * 2
    assert (shared == 2).all()


def test_an_arena_is_frozen_again_when_the_children_are_gone(arena, shared):
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.apply_async(inherit).get(60) == 2000.0
        pool.close()
        pool.join()
    with arena.freeze() as then:
        assert (then[shared] == 2).all()


def test_an_arena_that_forks_leave_alone_is_saved_while_they_run(tmp_path):
    with cowslip.Arena("64M", at_fork=False) as arena, multiprocessing.get_context("fork").Pool(1) as pool:
        table = arena.full((1000,), 2.0)
        assert pool.apply_async(abs, (-3,)).get(60) == 3
        arena.save(tmp_path / "image", {"table": table}, timeout=5).result(60)


def test_a_restored_arena_is_forked_too(arena, tmp_path):
    arena.save(tmp_path / "image", {"table": arena.full((1000,), 2.0)}).result(60)
    restored, state = cowslip.restore(tmp_path / "image")
    child = os.fork()
    if child == 0:
        os._exit(int(state["table"].sum()) // 100)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 20


def test_a_child_that_ends_waits_for_no_save_of_its_parent(arena, tmp_path):
    table = arena.full((6 << 20,), 2.0)
    save = arena.save(tmp_path / "image", {"table": table}, compress="zstd:19")
    child = os.fork()
    if child == 0:
        arena.close()
        os._exit(3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    save.result(60)


INTERRUPTED = """
import cowslip, os, signal, sys, threading, warnings
arena = cowslip.Arena("64M")
table = arena.full((1000,), 1.0)
view = arena.freeze()
waits = threading.Event()
# The warning comes before the long wait, on the thread that waits next.
warnings.simplefilter("always")
warnings.showwarning = lambda *_: waits.set()

def interrupt():
    waits.wait()
    os.kill(os.getpid(), signal.SIGINT)

threading.Thread(target=interrupt, daemon=True).start()
try:
    {call}
except KeyboardInterrupt:
    print("interrupted", flush=True)
    os._exit(0)
"""


@pytest.mark.parametrize(
    "call", ["arena.freeze(timeout=600)", "arena.template(timeout=600)", "arena.save(sys.argv[1], table, timeout=600)"]
)
def test_control_c_ends_a_wait(tmp_path, call):
    program = tmp_path / "program.py"
    program.write_text(INTERRUPTED.replace("{call}", call))
    command = [sys.executable, program, tmp_path / "image"]
    # Less than the wait that nothing interrupts.
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=300)
    assert (done.stdout, done.returncode) == ("interrupted\n", 0)
