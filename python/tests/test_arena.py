"""Arrays, views of an instant, wrong arguments."""

import gc
import inspect
import re
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


def test_a_view_shows_the_instant_and_the_array_goes_on(arena):
    table = arena.zeros((1 << 20,), np.float32)
    table += 1
    with arena.freeze() as then:
        table += 1
        assert (then[table] == 1).all() and (table == 2).all()
        assert (then[table[5:100:7]] == 1).all()
        assert then[table.reshape(1024, 1024).T].shape == (1024, 1024)
        with pytest.raises(ValueError):
            then[table][0] = 3
    assert then.closed
    with pytest.raises(cowslip.UsageError, match="closed"):
        then[table]


def test_a_view_says_its_age_and_that_it_is_closed(arena):
    then = arena.freeze()
    assert re.fullmatch(r"<cowslip\.Frozen, \d+\.\d s old>", repr(then))
    then.close()
    assert repr(then) == "<cowslip.Frozen, closed>"


def test_an_array_outlives_its_view_and_the_next(arena):
    table = arena.full((1 << 18,), 7, np.int64)
    view = arena.freeze()
    then = view[table]
    view.close()
    table[:] = 8
    gc.collect()
    assert (then == 7).all()
    with arena.freeze() as later:
        assert (then == 7).all() and (later[table] == 8).all()
    table[:] = 9
    assert (then == 7).all()


def test_memory_comes_back_when_nobody_has_the_array(arena):
    for _ in range(20):
        array = arena.empty((40 << 20,), np.uint8)
        array[-1] = 1
        del array
    with pytest.raises(cowslip.OutOfMemoryError):
        arena.empty((65 << 20,), np.uint8)


def test_an_array_outlives_the_arena():
    arena = cowslip.Arena("8M")
    array = arena.full((1000,), 3)
    arena.close()
    del arena
    gc.collect()
    assert (array == 3).all()


@settings(max_examples=50, deadline=None)
@given(
    shape=st.lists(st.integers(0, 20), min_size=0, max_size=3).map(tuple),
    dtype=st.sampled_from(["u1", "i2", "f4", "f8", "c16", "S5", "M8[s]"]),
    order=st.sampled_from("CF"),
)
def test_any_array_is_as_numpys(shape, dtype, order):
    arena = cowslip.Arena("8M")
    ours, numpys = arena.zeros(shape, dtype, order), np.zeros(shape, dtype, order)
    assert ours.shape == numpys.shape and ours.dtype == numpys.dtype and ours.strides == numpys.strides
    assert (ours == numpys).all()
    with arena.freeze() as then:
        assert (then[ours] == numpys).all() and then[ours].strides == numpys.strides


def test_threads_write_while_it_is_frozen(arena):
    words = arena.zeros((1 << 19,), np.uint64)
    over = threading.Event()

    def write():
        while not over.is_set():
            words[:] += np.uint64(1)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for _ in range(30):
            with arena.freeze() as then:
                first = then[words].copy()
                assert (then[words] == first).all()
    finally:
        over.set()
        thread.join()


def test_discarded_memory_is_zeroes(arena):
    array = arena.full((1 << 20,), 5, np.uint8)
    arena.discard(array)
    assert not array.any()
    with pytest.raises(cowslip.UsageError):
        arena.discard(array[::2])


def test_what_is_wrong_is_told(arena):
    for capacity in ["", "many", "-1", None, 0, "1000T"]:
        with pytest.raises(cowslip.Error):
            cowslip.Arena(capacity)
    with pytest.raises(cowslip.UsageError, match="backing"):
        cowslip.Arena("1M", backing="paper")
    with pytest.raises(cowslip.UsageError, match="objects"):
        arena.empty((3,), object)
    with pytest.raises(cowslip.UsageError):
        arena.freeze(timeout=-1)
    for wait in (arena.freeze, arena.template):
        with pytest.raises(TypeError, match="timeout is a number of seconds, or None to wait for ever, not str"):
            wait(timeout="x")
    with arena.freeze() as then, pytest.raises(cowslip.UsageError):
        then[np.zeros(3)]
    with arena.freeze() as then, pytest.raises(cowslip.UsageError):
        then[[1, 2]]
    arena.close()
    with pytest.raises(cowslip.UsageError, match="closed"):
        arena.empty((3,))


def test_errors_mirror_the_engines():
    assert issubclass(cowslip.BusyError, cowslip.Error)
    with pytest.raises(cowslip.Error) as caught:
        cowslip.Arena("1000T")
    assert caught.value.errno is None and caught.value.advice is None and "memory and swap" in str(caught.value)


def test_errors_speak_no_rust(arena, tmp_path):
    (tmp_path / "text").write_text("no image")
    table = arena.full((1000,), 1.0)
    held = [arena.freeze() for _ in range(64)]
    assert held[0][table][7] == 1.0
    for wrong in [
        lambda: cowslip.Arena(0),
        lambda: cowslip.Arena("1000T"),
        lambda: arena.empty((1 << 40,), "u1"),
        lambda: arena.freeze(timeout=0),
        lambda: arena.template(timeout=0),
        lambda: arena.save(tmp_path / "none" / "image", {}, timeout=0),
        lambda: arena.save(tmp_path, {}, timeout=0, compress="paper"),
        lambda: cowslip.restore(tmp_path),
        lambda: cowslip.restore(tmp_path / "none"),
        lambda: cowslip.restore(tmp_path / "text"),
        lambda: cowslip.Template.via(tmp_path / "text", tmp_path / "none"),
    ]:
        with pytest.raises(cowslip.Error) as caught:
            wrong()
        told = f"{caught.value} {caught.value.advice}"
        assert "::" not in told and "(..)" not in told, told
    held.clear()


def test_views_of_many_instants_and_the_way_back(arena):
    table = arena.zeros((3 << 20,), "u1")
    views = []
    for step in range(8):
        table[step << 18 :] = step
        views.append(arena.freeze())
    assert [int(then[table][-1]) for then in views] == list(range(8))
    arena.undo(views[2])
    assert table[-1] == 2 and table[0] == 0
    newer = arena.ones(1000)
    arena.undo(views[5])
    assert table[-1] == 5 and not newer.any()
    with pytest.raises(cowslip.UsageError):
        arena.undo(table)
    views[1].close()
    with pytest.raises(cowslip.UsageError, match="closed"):
        arena.undo(views[1])
    with cowslip.Arena("16M") as other, other.freeze() as foreign, pytest.raises(cowslip.UsageError, match="another arena"):
        arena.undo(foreign)
    assert [int(then[table][-1]) for then in views[2:]] == list(range(2, 8))


def test_a_view_that_holds_up_a_freeze_is_named(arena):
    table = arena.full((1000,), 1.0)
    holders = [arena.freeze() for _ in range(64)]
    then = holders[0][table]
    with pytest.raises(cowslip.BusyError) as caught:
        arena.freeze(timeout=0)
    frozen_at = inspect.currentframe().f_code.co_firstlineno + 2
    assert any(f"test_arena.py:{frozen_at}, " in note for note in caught.value.__notes__)

    def end(message, *_, **__):
        told.append(message)
        holders.clear()

    told = []
    # Whoever is told drops the view: only then does the freeze go on.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("warnings.warn", end)
        arena.freeze(timeout=60).close()
    assert f"test_arena.py:{frozen_at}, " in told[0] and (then == 1).all()


def test_metrics_and_doctor(arena):
    arena.freeze().close()
    assert arena.metrics()["freezes"] == 1
    report = cowslip.doctor()
    assert report["schema"] == "cowslip.doctor/1" and "Cowslip" in str(report)
    assert {it["answer"] for it in report["capabilities"]} <= {"available", "unsupported", "denied", "unknown"}
