"""Children, branches, templates in other processes, pools."""

import concurrent.futures.process
import multiprocessing
import multiprocessing.reduction
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import cowslip

N = 1 << 18
START_METHODS = ["spawn", "forkserver", "fork"]


@pytest.fixture
def arena():
    with cowslip.Arena("64M") as arena:
        yield arena


def test_os_fork_takes_the_arena_along(arena):
    table = arena.full((N,), 3, np.int64)
    go, wake = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.read(go, 1)
        os._exit(0 if (table == 3).all() else 1)
    table[:] = 4
    os.write(wake, b".")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert (table == 4).all()


def test_all_arenas_are_taken_along(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import os, cowslip\n"
        "first = cowslip.Arena('16M')\n"
        "tables = [arena.full((1000,), 3) for arena in (first, cowslip.Arena('16M'))]\n"
        "go, wake = os.pipe()\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    os.read(go, 1)\n"
        "    os._exit(0 if all((table == 3).all() for table in tables) else 1)\n"
        "for table in tables:\n"
        "    table[:] = 4\n"
        "os.write(wake, b'.')\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0\n"
        "assert first.metrics()['forks'] == 1 and first.metrics()['passed_mappings'] == 0\n"
    )
    subprocess.run([sys.executable, program], check=True, timeout=60)


def test_a_branch_is_its_own(arena):
    table = arena.full((N,), 3, np.int64)
    with arena.branch({"table": table}) as branch:
        mine = branch[table]
        mine[:] = 9
        assert (branch["table"] == 9).all() and (table == 3).all()
        branch.reset()
        assert (mine == 3).all()
        with pytest.raises(KeyError):
            branch["other"]
    with pytest.raises(cowslip.UsageError, match="closed"):
        branch[table]


def look(branch, item):
    """Of a worker: what it finds, and what it leaves behind."""
    table = branch["table"]
    found = int(table.sum())
    table[item] = 1000
    return found


def first(template):
    """Of a process that was handed a template."""
    with template.branch() as branch:
        return int(branch["table"][7])


@pytest.mark.parametrize("start_method", START_METHODS)
def test_every_task_of_a_pool_starts_from_the_same_instant(arena, start_method):
    table = arena.full((N,), 1, np.int64)
    template = arena.template({"table": table})
    table[:] = 2
    with cowslip.Pool(2, template, reset=True, start_method=start_method) as pool:
        assert pool.map(look, range(40)) == [N] * 40
        assert pool.submit(look, 5).result(60) == N
    assert (table == 2).all()


def test_without_reset_a_worker_finds_what_it_wrote(arena):
    template = arena.template({"table": arena.full((N,), 1, np.int64)})
    with cowslip.Pool(1, template) as pool:
        assert pool.map(look, range(3)) == [N, N + 999, N + 2 * 999]


@pytest.mark.parametrize("start_method", START_METHODS)
def test_a_template_pickles_as_descriptors(arena, start_method):
    template = arena.template({"table": arena.full((N,), 42, np.int64)})
    with multiprocessing.get_context(start_method).Pool(2) as pool:
        assert pool.map(first, [template] * 4) == [42] * 4
    assert len(multiprocessing.reduction.ForkingPickler.dumps(template)) < 1000


def overwrite(array):
    """Of a process that was handed an array of a template."""
    found = array[3].tolist(), array.flags.writeable, array.shape, array.strides
    array[:] = -1
    return found


@pytest.mark.parametrize("start_method", START_METHODS)
def test_an_array_of_a_template_arrives_as_a_private_array(arena, start_method):
    table = arena.array(np.arange(N).reshape(-1, 8))
    template = arena.template({"table": table})
    table[:] = 0
    part = table[:, ::2]
    expected = np.arange(N).reshape(-1, 8)[:, ::2]
    with multiprocessing.get_context(start_method).Pool(2) as pool:
        for _ in range(3):
            found = pool.map(overwrite, [template[part], template["table"]])
            assert found[0] == (expected[3].tolist(), True, part.shape, part.strides)
            assert found[1][0] == np.arange(24, 32).tolist()
    assert (template[table].array() == np.arange(N).reshape(-1, 8)).all() and not table.any()


def fail(branch, item):
    """Of a worker: a task that leaves the table damaged."""
    branch["table"][:] = 0
    raise ValueError(item)


def test_a_task_that_fails_leaves_nothing_behind(arena):
    template = arena.template({"table": arena.full((N,), 1, np.int64)})
    with cowslip.Pool(1, template, reset=True) as pool:
        with pytest.raises(ValueError, match="17"):
            pool.map(fail, [17])
        assert pool.map(look, [3]) == [N]


def dirty_without_a_reset(branch, item):
    """Of a worker: an exception of a signal's handler that comes where the reset would."""

    def interrupted():
        del branch.reset
        raise KeyboardInterrupt

    branch["table"][:] = 0
    branch.reset = interrupted


def test_an_interrupt_in_place_of_a_reset_leaves_nothing_behind(arena):
    template = arena.template({"table": arena.full((N,), 1, np.int64)})
    with cowslip.Pool(1, template, reset=True) as pool:
        with pytest.raises(KeyboardInterrupt):
            pool.submit(dirty_without_a_reset, 0).result(60)
        assert pool.map(look, [3, 4]) == [N, N]


def kill_itself(branch, item):
    """Of a worker: ends without a word at one of its items."""
    branch["table"][:] = 0
    if item == 7:
        os.kill(os.getpid(), signal.SIGKILL)
    return item


@pytest.mark.parametrize("start_method", START_METHODS)
def test_a_killed_worker_is_an_error_and_frees_the_arena(arena, start_method):
    table = arena.full((N,), 1, np.int64)
    template = arena.template({"table": table})
    with cowslip.Pool(2, template, reset=True, start_method=start_method) as pool:
        for later in (lambda: pool.map(kill_itself, range(40), chunksize=1), lambda: pool.submit(look, 1)):
            try:
                later()
                pytest.fail("the pool goes on")
            except concurrent.futures.process.BrokenProcessPool:
                pass  # and its frames, which have the template, are gone
    with pytest.raises(cowslip.UsageError, match="the pool is closed"):
        pool.submit(look, 1)
    del template, later
    with arena.freeze(timeout=60) as then:
        assert (then[table] == 1).all()


def kill_itself_or_wait(branch, item):
    if item == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(600)


def test_a_broken_pool_ends_all_its_processes(arena, monkeypatch):
    """Tasks that the executor is about to fail are not cancelled: its thread would end before the processes."""
    template = arena.template({"table": arena.full((N,), 1, np.int64)})
    given_up = threading.Event()
    fail = concurrent.futures.Future.set_exception
    failed = []

    def fail_all_but_the_first_late(future, exception):
        if failed:
            given_up.wait(60)
        failed.append(future)
        fail(future, exception)

    with cowslip.Pool(2, template, start_method="fork") as pool:
        monkeypatch.setattr(concurrent.futures.Future, "set_exception", fail_all_but_the_first_late)
        with pytest.raises(concurrent.futures.process.BrokenProcessPool):
            pool.map(kill_itself_or_wait, range(40), chunksize=1)
        given_up.set()
    assert len(failed) > 1 and not any(future.cancelled() for future in failed)
    assert not multiprocessing.active_children()


def test_map_divides_what_it_is_given(arena):
    template = arena.template({"table": arena.full((N,), 1, np.int64)})
    with cowslip.Pool(2, template, reset=True) as pool:
        for count in (0, 1, 7, 8, 9, 100):
            assert pool.map(look, iter(range(count))) == [N] * count
        assert pool.map(look, range(9), chunksize=4) == [N] * 9


@pytest.mark.parametrize("start_method", START_METHODS)
def test_control_c_ends_a_pool(tmp_path, start_method):
    program = tmp_path / "program.py"
    program.write_text(
        "import cowslip, itertools, time\n"
        "def spin(branch, item):\n"
        "    branch['table'][:] = item\n"
        "    if item == 0:\n"
        "        print('ready', flush=True)\n"
        "        time.sleep(600)\n"
        "if __name__ == '__main__':\n"
        "    arena = cowslip.Arena('64M')\n"
        "    template = arena.template({'table': arena.full((1 << 18,), 1)})\n"
        f"    with cowslip.Pool(2, template, reset=True, start_method={start_method!r}) as pool:\n"
        "        pool.map(spin, range(100), chunksize=1)\n"
    )
    # A session of its own: the signal goes to all of it, as a terminal's does.
    with subprocess.Popen(
        [sys.executable, program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout.readline() == "ready\n"
        os.killpg(process.pid, signal.SIGINT)
        # Until all of its processes have closed the pipes.
        _, told = process.communicate(timeout=120)
    assert process.returncode == -signal.SIGINT and "KeyboardInterrupt" in told


def test_a_closed_template_leaves_its_branches(arena):
    table = arena.full((N,), 1, np.int64)
    template = arena.template({"table": table})
    branch = template.branch()
    template.close()
    assert (branch["table"] == 1).all()
    for use in (template.branch, lambda: template[table], lambda: multiprocessing.reduction.ForkingPickler.dumps(template)):
        with pytest.raises(cowslip.UsageError, match="the template is closed"):
            use()
    branch.close()
    arena.freeze(timeout=10).close()


def test_an_arena_with_a_template_in_use_is_frozen_beside_it(arena):
    table = arena.full((N,), 1, np.int64)
    branch = arena.branch({"table": table})
    table += 1
    with arena.freeze(timeout=0) as then:
        assert then[table].sum() == 2 * N and branch["table"].sum() == N
    branch.close()
    del branch
    arena.freeze(timeout=10).close()
