"""Saves while the program goes on, and restores."""

import contextlib
import asyncio
import os
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest

import cowslip


def state_of(arena, n=1 << 18):
    table = arena.array(np.arange(n, dtype=np.int64))
    return {
        "table": table,
        "part": table[10:20],
        "gaps": table.reshape(-1, 16)[1:, ::3],
        "matrix": arena.array(np.eye(50)),
        "columns": arena.array(np.arange(600).reshape(20, 30)).T,
        "nothing": table[5:5],
        "scalar": table[7:8].reshape(()),
        "outside": np.arange(3),
        "step": 3,
        "words": ["a", None, 2.5, (1, 2), {"deep": {4}}],
    }


def test_what_is_saved_is_of_the_call_and_comes_back(tmp_path):
    arena = cowslip.Arena("64M")
    state = state_of(arena)
    save = arena.save(tmp_path / "a.cowslip", state)
    state["table"][:] = -1
    result = save.result(60)
    assert result["file_bytes"] > 0 and save.done()
    cowslip.verify(tmp_path / "a.cowslip")
    again, found = cowslip.restore(tmp_path / "a.cowslip")
    assert (found["table"] == np.arange(1 << 18)).all()
    assert (found["part"] == np.arange(10, 20)).all() and (found["matrix"] == np.eye(50)).all()
    gaps = found["gaps"]
    assert (gaps == np.arange(1 << 18).reshape(-1, 16)[1:, ::3]).all() and gaps in again and not gaps.flags.c_contiguous
    columns = found["columns"]
    assert (columns == np.arange(600).reshape(20, 30).T).all() and columns in again and columns.flags.f_contiguous
    assert found["nothing"].shape == (0,) and found["scalar"] == 7 and found["scalar"] in again
    assert (found["outside"] == np.arange(3)).all() and found["outside"].flags.writeable
    assert found["step"] == 3 and found["words"] == state["words"]
    assert found["table"] in again and found["outside"] not in again
    found["table"][:] = 5
    assert again.save(tmp_path / "b.cowslip", found).result(60)
    _, third = cowslip.restore(tmp_path / "b.cowslip", eager=True)
    assert (third["table"] == 5).all()


def test_a_child_image_has_only_what_changed(tmp_path):
    arena = cowslip.Arena("256M")
    table = arena.zeros((16 << 20,), np.uint8)
    table[:] = np.random.default_rng(1).integers(0, 255, table.size, np.uint8)
    whole = arena.save(tmp_path / "0.cowslip", {"table": table}, parent="auto").result(60)
    for step in range(1, 4):
        table[step << 20] += 1
        saved = arena.save(tmp_path / f"{step}.cowslip", {"table": table}, parent="auto").result(60)
        assert saved["file_bytes"] < whole["file_bytes"] / 2
        assert (cowslip.restore(tmp_path / f"{step}.cowslip").state["table"] == table).all()


def test_an_image_is_not_its_own_parent(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arena = cowslip.Arena("64M")
    table = arena.full((1 << 20,), 1, np.int64)
    names = ["a.cowslip", "./a.cowslip", f"{tmp_path}/../{tmp_path.name}/a.cowslip", "b.cowslip"]
    whole = []
    for step, name in enumerate(names):
        table[step] = 7
        whole.append(arena.save(name, {"table": table}, parent="auto").result(60)["file_bytes"])
        assert (cowslip.restore(name).state["table"] == table).all()
    assert whole[0] == whole[1] == whole[2] and whole[3] < whole[0] / 2


def test_awaited_told_of_and_cancelled(tmp_path):
    arena = cowslip.Arena("256M")
    table = arena.full((100 << 20,), 3, np.uint8)

    async def main():
        told = []
        save = arena.save(tmp_path / "a.cowslip", table)
        save.on_progress(lambda done, total: told.append((done, total)))
        result = await save
        assert result["chunks"] > 0
        return told

    assert all(done <= total for done, total in asyncio.run(main()))
    save = arena.save(tmp_path / "b.cowslip", table, compress="zstd:19")
    assert save.cancel() and save.cancelled()
    assert not (tmp_path / "b.cowslip").exists() and os.listdir(tmp_path) == ["a.cowslip"]
    assert arena.save(tmp_path / "b.cowslip", table).result(60)


def test_code_does_not_run_unless_it_is_trusted(tmp_path):
    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "ran"),)

    arena = cowslip.Arena("8M")
    arena.save(tmp_path / "a.cowslip", {"evil": Evil()}).result(60)
    with pytest.raises(cowslip.UsageError, match="trust"):
        cowslip.restore(tmp_path / "a.cowslip")
    assert not (tmp_path / "ran").exists()
    cowslip.restore(tmp_path / "a.cowslip", trust=True)
    assert (tmp_path / "ran").exists()


def test_what_is_wrong_is_told(tmp_path):
    arena = cowslip.Arena("8M")
    with pytest.raises(cowslip.FileError):
        arena.save(tmp_path / "no" / "folder.cowslip", 1).result(60)
    with pytest.raises(cowslip.UsageError, match="zstd"):
        arena.save(tmp_path / "a.cowslip", 1, compress="best")
    with pytest.raises(cowslip.FileError):
        cowslip.restore(tmp_path / "none.cowslip")
    arena.save(tmp_path / "a.cowslip", {"x": arena.full((1 << 20,), 7, np.uint8)}).result(60)
    whole = (tmp_path / "a.cowslip").read_bytes()
    (tmp_path / "cut.cowslip").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(cowslip.CorruptError):
        cowslip.verify(tmp_path / "cut.cowslip")


def test_a_killed_program_goes_on_from_its_last_checkpoint(tmp_path):
    program = tmp_path / "train.py"
    program.write_text(
        textwrap.dedent(
            """
            import os, sys
            import numpy as np, cowslip
            image, steps, kill_at = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
            if os.path.exists(image):
                arena, state = cowslip.restore(image)
            else:
                arena = cowslip.Arena("64M")
                state = {"weights": arena.zeros((1 << 16,)), "step": 0, "rng": np.random.default_rng(7).bit_generator.state}
            rng = np.random.default_rng()
            rng.bit_generator.state = state["rng"]
            save = None
            for step in range(state["step"], steps):
                if step == kill_at:
                    save and save.result()
                    os.kill(os.getpid(), 9)
                state["weights"] += rng.standard_normal(1 << 16)
                state["step"], state["rng"] = step + 1, rng.bit_generator.state
                if step % 5 == 4:
                    save and save.result()
                    save = arena.save(image, state)
            save and save.result()
            print(state["weights"].tobytes().hex()[:64], float(state["weights"].sum()).hex())
            """
        )
    )

    def run(image, steps, kill_at):
        command = [sys.executable, program, tmp_path / image, str(steps), str(kill_at)]
        return subprocess.run(command, capture_output=True, text=True, timeout=120)

    straight = run("straight.cowslip", 30, -1)
    assert straight.returncode == 0, straight.stderr
    killed = run("killed.cowslip", 30, 17)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    resumed = run("killed.cowslip", 30, -1)
    assert resumed.returncode == 0, resumed.stderr
    assert resumed.stdout == straight.stdout, "bit for bit"


def command():
    """The `cowslip` command of the package."""
    from cowslip import _binaries

    try:
        return _binaries.command()
    except cowslip.UsageError as error:
        pytest.skip(str(error))


@contextlib.contextmanager
def serving(path, socket):
    """A server that has an image in memory."""
    server = subprocess.Popen([command(), "serve", path, "--socket", socket], stderr=subprocess.PIPE, text=True)
    metrics = [command(), "serve", "--metrics", "--socket", socket]
    try:
        while "cowslip_serve_images 1\n" not in subprocess.run(metrics, capture_output=True, text=True).stdout:
            assert server.poll() is None, server.communicate()[1]
        yield
    finally:
        server.kill()
        server.communicate()


def anonymous_bytes():
    """Memory that this process has alone."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith("RssAnon:"))


def read_all(branch, _):
    """Of a worker: the sum, and what memory of its own it took to read all."""
    before = anonymous_bytes()
    return int(branch["table"].sum()), anonymous_bytes() - before


def test_processes_that_borrow_a_served_image_hold_one_copy(tmp_path):
    path, socket, count = tmp_path / "a.cowslip", tmp_path / "socket", 4 << 20
    arena = cowslip.Arena("64M")
    table = arena.array(np.arange(count))
    arena.save(path, {"table": table, "note": ["borrowed"], "part": table[::2]}).result(60)
    with serving(path, socket):
        template, state = cowslip.Template.via(path, socket)
        assert state["note"] == ["borrowed"] and (state["table"] == table).all() and (state["part"] == table[::2]).all()
        state["table"][:] = 0
        with template, cowslip.Pool(2, template, reset=True) as pool:
            assert (template["part"][1:3] == [2, 4]).all()
            for total, own_bytes in pool.map(read_all, range(8), chunksize=1):
                assert total == count * (count - 1) // 2 and own_bytes < table.nbytes // 4
        with pytest.raises(FileNotFoundError):
            cowslip.Template.via(path, tmp_path / "none")


def test_a_restore_takes_the_memory_of_a_server(tmp_path, monkeypatch):
    path, socket = tmp_path / "a.cowslip", tmp_path / "socket"
    arena = cowslip.Arena("64M")
    arena.save(path, state_of(arena)).result(60)
    monkeypatch.delenv("COWSLIP_SERVE", raising=False)
    with serving(path, socket):
        for via, named, expected in [
            (socket, None, "resident"),
            (None, socket, "resident"),
            (str(socket), tmp_path / "none", "resident"),
            ("", socket, "hybrid"),
            (None, tmp_path / "none", "hybrid"),
            (None, None, "hybrid"),
        ]:
            monkeypatch.delenv("COWSLIP_SERVE", raising=False)
            if named is not None:
                monkeypatch.setenv("COWSLIP_SERVE", str(named))
            restored = cowslip.restore(path, via=via)
            # Without userfaultfd it is eager.
            assert restored.strategy == expected or {restored.strategy, expected} == {"eager", "hybrid"}
            assert (restored.state["table"] == np.arange(1 << 18)).all()
            restored.state["table"][:] = 5
            assert restored.wait(60)
            assert (restored.state["table"] == 5).all() and (restored.state["matrix"] == np.eye(50)).all()
        with pytest.raises(cowslip.FileError, match="none"):
            cowslip.restore(path, via=tmp_path / "none")
        kept = cowslip.restore(path, via=socket)
    assert (kept.state["table"] == np.arange(1 << 18)).all()
