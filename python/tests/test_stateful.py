"""Any order of writes, freezes, saves, restores and branches, against numpy alone."""

import shutil
import tempfile
from pathlib import Path

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, precondition, rule

import cowslip

lengths = st.one_of(st.integers(1, 100), st.integers(4000, 5000), st.integers(300_000, 600_000))
parts = st.tuples(st.floats(0, 1), st.floats(0, 1))
contents = st.integers(0, 255)


def cut(array, part):
    low, high = sorted(int(it * array.size) for it in part)
    return slice(low, high)


class AgainstNumpy(RuleBasedStateMachine):
    """Each array of the arena has a twin that is numpy's own."""

    names = Bundle("names")

    def __init__(self):
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.arena = cowslip.Arena("64M")
        self.arrays, self.twins = {}, {}
        self.view = self.then = self.branch = self.there = None
        self.count = 0

    def teardown(self):
        self.arena.close()
        shutil.rmtree(self.folder)

    @rule(target=names, length=lengths, content=contents, by_numpy=st.booleans())
    def make(self, length, content, by_numpy):
        self.count += 1
        name = f"array-{self.count}"
        if by_numpy:
            with self.arena.allocating():
                self.arrays[name] = np.full(length, content, np.uint8)
        else:
            self.arrays[name] = self.arena.full((length,), content, np.uint8)
        self.twins[name] = np.full(length, content, np.uint8)
        return name

    @rule(name=consumes(names))
    def drop(self, name):
        del self.arrays[name], self.twins[name]

    @rule(name=names, part=parts, content=contents)
    def write(self, name, part, content):
        where = cut(self.twins[name], part)
        self.arrays[name][where] = content
        self.twins[name][where] = content

    @precondition(lambda self: self.view is None and self.branch is None)
    @rule()
    def freeze(self):
        view = self.arena.freeze()
        self.view = {name: view[array] for name, array in self.arrays.items()}
        view.close()
        self.then = {name: twin.copy() for name, twin in self.twins.items()}

    @precondition(lambda self: self.view is not None)
    @rule()
    def thaw(self):
        self.view = None

    # An arena that holds nothing makes no template.
    @precondition(lambda self: self.view is None and self.branch is None and self.arrays)
    @rule()
    def fork_a_branch(self):
        self.branch = self.arena.branch(self.arrays)
        self.there = {name: twin.copy() for name, twin in self.twins.items()}
        self.written = dict(self.there)

    @precondition(lambda self: self.branch is not None and self.there)
    @rule(data=st.data(), part=parts, content=contents)
    def write_to_the_branch(self, data, part, content):
        name = data.draw(st.sampled_from(sorted(self.there)))
        where = cut(self.there[name], part)
        self.written[name] = self.written[name].copy()
        self.branch[name][where] = content
        self.written[name][where] = content

    @precondition(lambda self: self.branch is not None)
    @rule()
    def reset_the_branch(self):
        self.branch.reset()
        self.written = dict(self.there)

    @precondition(lambda self: self.branch is not None)
    @rule()
    def drop_the_branch(self):
        self.branch = None

    @precondition(lambda self: self.view is None and self.branch is None)
    @rule(compress=st.sampled_from(["none", "lz4", "zstd"]), parent=st.sampled_from([None, "auto"]), go_on=st.booleans())
    def save_and_restore(self, compress, parent, go_on):
        self.count += 1
        path = self.folder / f"{self.count}.cowslip"
        save = self.arena.save(path, self.arrays, compress=compress, parent=parent)
        expected = {name: twin.copy() for name, twin in self.twins.items()}
        for name in self.arrays:
            self.arrays[name] += 1
            self.twins[name] += 1
        save.result(60)
        arena, state = cowslip.restore(path)
        assert state.keys() == expected.keys()
        assert all((state[name] == expected[name]).all() for name in state)
        if go_on:
            self.arena, self.arrays, self.twins = arena, state, expected

    @invariant()
    def everything_is_as_numpy_has_it(self):
        for name, array in self.arrays.items():
            assert np.array_equal(array, self.twins[name])
        for name, array in (self.view or {}).items():
            assert np.array_equal(array, self.then[name])
        if self.branch is not None:
            for name, content in self.written.items():
                assert np.array_equal(self.branch[name], content)


TestAgainstNumpy = AgainstNumpy.TestCase
TestAgainstNumpy.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)
