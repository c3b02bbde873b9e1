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
    view = arena.freeze()
    del view
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
