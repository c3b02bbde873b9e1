"""Uses that a program makes of Cowslip without having read how it works."""

import gc

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
