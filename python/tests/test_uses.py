"""Uses that a program makes of Cowslip without having read how it works."""

import builtins
import concurrent.futures
import errno
import gc
import multiprocessing
import os
import pickle
import stat
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


@pytest.fixture
def hugetlb():
    """A pool of huge pages for as long as a test."""
    pool = "/proc/sys/vm/nr_hugepages"
    with open(pool) as setting:
        before = setting.read()
    try:
        with open(pool, "w") as setting:
            setting.write(str(int(before) + 32))
    except PermissionError:
        pytest.skip("hugetlb: only root makes a pool")
    yield
    with open(pool, "w") as setting:
        setting.write(before)


def test_a_loop_that_keeps_an_array_of_hugetlb_goes_on(hugetlb):
    with cowslip.Arena("16M", backing="hugetlb") as arena:
        table = arena.zeros((1000,))
        kept = []
        for step in range(5):
            table[:] = step
            with arena.freeze(timeout=5) as then:
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
    views = [arena.freeze() for _ in range(64)]
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
# As many as can be.
views = [arena.freeze() for _ in range(64)]
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


SILENT = """
import cowslip, os, signal, socket, sys, threading, time
from cowslip import _native
image, path, said = sys.argv[1], sys.argv[2], bytes.fromhex("{said}")
server = socket.socket(socket.AF_UNIX)
server.bind(path)
server.listen()
began = None

def interrupt():
    global began
    client, _ = server.accept()
    client.recv(48)
    client.send(said)
    clients.append(client)
    began = time.monotonic()
    os.kill(os.getpid(), signal.SIGINT)

clients = []
threading.Thread(target=interrupt, daemon=True).start()
try:
    {call}
except KeyboardInterrupt:
    print(time.monotonic() - began, flush=True)
    os._exit(0)
"""


# Nothing, a part of an answer, that the template follows, and a part of the template.
@pytest.mark.parametrize("said", [b"", b"\0\0\0", bytes(8), bytes(8) + b"COWSLIPD\1\0"], ids=len)
@pytest.mark.parametrize("call", ["cowslip.Template.via(image, path)", "cowslip.restore(image, via=path)"])
def test_control_c_ends_a_wait_for_a_silent_server(arena, tmp_path, call, said):
    image = tmp_path / "image"
    arena.save(image, {"table": arena.full((1000,), 1.0)}).result(60)
    program = tmp_path / "program.py"
    program.write_text(SILENT.replace("{call}", call).replace("{said}", said.hex()))
    command = [sys.executable, program, image, tmp_path / "socket"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=50)
    assert done.returncode == 0 and float(done.stdout) < 1


def test_a_missing_image_is_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        cowslip.restore(tmp_path / "none")
    assert caught.value.errno == errno.ENOENT and isinstance(caught.value, cowslip.FileError)


def test_a_save_to_no_folder_is_an_error_of_the_system(arena, tmp_path):
    save = arena.save(tmp_path / "none" / "image", {"table": arena.full((1000,), 2.0)})
    with pytest.raises(OSError) as caught:
        save.result(60)
    assert caught.value.errno == errno.ENOENT and str(tmp_path) in str(caught.value)


@pytest.mark.parametrize("place", ["device", "fifo", "folder", "link"])
def test_a_save_refuses_what_is_no_file(arena, tmp_path, place):
    path = tmp_path / place
    if place == "device":
        if os.geteuid() != 0:
            pytest.skip("only root makes devices")
        os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    elif place == "fifo":
        os.mkfifo(path)
    elif place == "folder":
        path.mkdir()
    else:
        path.symlink_to(tmp_path / "nothing")
    before = os.lstat(path)
    with pytest.raises(cowslip.FileError):
        arena.save(path, {"table": arena.ones((1000,))}).result(60)
    after = os.lstat(path)
    assert (after.st_ino, after.st_mode, after.st_rdev) == (before.st_ino, before.st_mode, before.st_rdev)
    assert os.listdir(tmp_path) == [place]


def test_a_full_arena_is_a_memory_error(arena):
    with pytest.raises(MemoryError, match="cannot allocate"):
        arena.zeros((1 << 30,))


def test_a_busy_arena_is_a_time_out(arena):
    table = arena.full((1000,), 2.0)
    views = [arena.freeze() for _ in range(64)]
    with pytest.raises(TimeoutError) as caught:
        arena.freeze(timeout=0)
    views.clear()
    assert str(caught.value).startswith("cannot freeze") and "freeze_timeout" not in str(caught.value)
    assert caught.value.advice in str(caught.value) and table.any()


@pytest.mark.parametrize("wrong", ["many", -1, "1000T", 0, 1.5, None])
def test_a_wrong_size_is_a_value_error(wrong):
    with pytest.raises(ValueError):
        cowslip.Arena(wrong)


def test_a_damaged_image_is_a_value_error(arena, tmp_path):
    (tmp_path / "image").write_bytes(b"no image at all" * 1000)
    with pytest.raises(ValueError) as caught:
        cowslip.restore(tmp_path / "image")
    assert isinstance(caught.value, cowslip.CorruptError)


def test_an_error_goes_to_another_process(arena):
    with pytest.raises(cowslip.UsageError) as caught:
        arena.empty((3,), object)
    again = pickle.loads(pickle.dumps(caught.value))
    assert type(again) is cowslip.UsageError and again.args == caught.value.args


def test_an_import_of_all_leaves_pythons_names_alone():
    scope = {}
    exec("from cowslip import *", scope)
    assert not set(cowslip.__all__) & set(dir(builtins)) and scope["Arena"] is cowslip.Arena


def test_runs_that_are_not_there_are_missing_files():
    with pytest.raises(FileNotFoundError, match="^/none: "):
        cowslip.compare("/none", "/none")


def test_a_template_ends_with_its_block(arena):
    table = arena.full((1000,), 2.0)
    with arena.template({"table": table}) as template, template.branch() as branch:
        assert (branch["table"] == 2).all()
    with pytest.raises(ValueError, match="the template is closed"):
        template.branch()
    del branch
    arena.freeze(timeout=5).close()


def test_an_array_of_a_template_is_looked_at_where_it_is(arena):
    table = arena.array(np.arange(10))
    shared = arena.template()[table]
    table[:] = 0
    assert shared[3] == 3 and len(shared) == 10 and shared.shape == (10,) and shared.dtype == table.dtype
    assert np.asarray(shared).sum() == 45 and list(shared[2:4]) == [2, 3]
    with pytest.raises(ValueError):
        shared[2:4][0] = 1


def test_a_masked_array_keeps_its_mask(arena):
    masked = np.ma.MaskedArray(arena.array(np.arange(4)), arena.array([False, True, False, True]))
    with arena.freeze() as then:
        masked[0] = np.ma.masked
        assert then[masked].sum() == 2 and then[masked].count() == 2
        assert (then[np.ma.MaskedArray(masked.data)] == np.arange(4)).all()
        with pytest.raises(ValueError, match="mask is not in the arena"):
            then[np.ma.MaskedArray(masked.data, [False, True, False, True])]


@pytest.mark.parametrize("shape", [(1.5,), 2.5, "3", (3, "4"), None])
def test_a_shape_of_no_integers_is_a_type_error(arena, shape):
    with pytest.raises(TypeError):
        arena.zeros(shape)


def test_a_negative_shape_is_a_value_error(arena):
    for shape in (-1, (2, -3), (-2, -3)):
        with pytest.raises(ValueError):
            arena.zeros(shape)


def test_arrays_are_made_as_numpy_makes_them(arena):
    like = np.arange(6, dtype=np.int16).reshape(2, 3)
    for ours, numpys in [
        (arena.ones((2, 3), np.float32), np.ones((2, 3), np.float32)),
        (arena.ones(4), np.ones(4)),
        (arena.zeros_like(like), np.zeros_like(like)),
        (arena.ones_like(like), np.ones_like(like)),
        (arena.full_like(like, 7), np.full_like(like, 7)),
        (arena.full_like(like, 7.5, float), np.full_like(like, 7.5, float)),
        (arena.empty_like([[1, 2]]), np.zeros((1, 2), int)),
        (arena.full((2, 2), 3), np.full((2, 2), 3)),
    ]:
        assert ours in arena and ours.dtype == numpys.dtype and (ours == numpys).all()


def test_anything_may_be_asked_for_in_an_arena(arena):
    table = arena.zeros((10,))
    assert table in arena and table[3:] in arena and table.T in arena
    for other in (3, None, "table", [1, 2], np.zeros(3), arena):
        assert other not in arena


def test_an_array_goes_through_numpys_files(arena, tmp_path):
    table = arena.array(np.arange(1000))
    with arena.freeze() as then:
        table[:] = 0
        np.save(tmp_path / "then.npy", then[table])
    assert (np.load(tmp_path / "then.npy") == np.arange(1000)).all()


def test_a_view_in_a_comprehension(arena):
    tables = [arena.full((1000,), number) for number in range(5)]
    with arena.freeze() as then:
        for table in tables:
            table[:] = -1
        assert [int(then[table][0]) for table in tables] == list(range(5))


def test_a_view_is_read_by_threads(arena):
    table = arena.array(np.arange(1 << 16))
    with arena.freeze() as then, concurrent.futures.ThreadPoolExecutor(4) as executor:
        found = executor.map(lambda start: int(then[table[start::4]].sum()), range(4))
        table[:] = 0
        assert sum(found) == (1 << 16) * ((1 << 16) - 1) // 2


def test_a_view_that_an_exception_left(arena):
    table = arena.full((1000,), 2.0)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError), arena.freeze(timeout=5) as then:
            table += 1
            int(then[table][0]) // 0
    assert (table == 5).all()


def test_a_save_in_each_turn_of_a_loop(arena, tmp_path):
    table = arena.zeros((1 << 16,))
    for step in range(5):
        table[:] = step
        arena.save(tmp_path / f"{step}", {"table": table, "step": step})
    arena.close()
    for step in range(5):
        state = cowslip.restore(tmp_path / f"{step}").state
        assert state["step"] == step and (state["table"] == step).all()


def test_a_state_of_one_array_and_of_none(arena, tmp_path):
    for state in (arena.full((10,), 3.0), None, {}, [1, "two", 3.0]):
        arena.save(tmp_path / "image", state).result(60)
        restored = cowslip.restore(tmp_path / "image").state
        assert np.array_equal(restored, state) if isinstance(state, np.ndarray) else restored == state


def test_a_branch_in_a_function_ends_with_it(arena):
    table = arena.full((1000,), 2.0)

    def what_if():
        branch = arena.branch()
        branch[table][:] = 9
        return float(branch[table].sum())

    assert what_if() == 9000.0 and (table == 2).all()
    arena.freeze(timeout=5).close()


def test_a_worker_of_an_executor_raises_our_error(shared):
    context = multiprocessing.get_context("fork")
    with concurrent.futures.ProcessPoolExecutor(1, context) as executor, pytest.raises(ValueError, match="size"):
        executor.submit(cowslip.Arena, "many").result(60)
