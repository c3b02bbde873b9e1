"""The types that programs are checked with."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

import cowslip


def check(folder, *command):
    # Elsewhere than in a virtual environment's folder, whose packages mypy would take for the program's.
    done = subprocess.run([sys.executable, "-m", *command], cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_package_and_a_program_that_uses_it_are_typed(tmp_path):
    pytest.importorskip("mypy")
    program = tmp_path / "program.py"
    program.write_text(
        "import cowslip, numpy as np\n"
        "arena = cowslip.Arena('64M')\n"
        "table = arena.zeros((10,), np.float32)\n"
        "with arena.freeze() as then, arena.allocating():\n"
        "    length: int = then[table].nbytes\n"
        "def add(branch: cowslip.Branch, item: int) -> float:\n"
        "    return float(branch['table'][item])\n"
        "async def main() -> dict[str, int]:\n"
        "    return await arena.save('a.cowslip', {'table': table})\n"
        "with cowslip.Pool(2, arena.template({'table': table}), reset=True) as pool:\n"
        "    found: list[float] = pool.map(add, range(3))\n"
        "from typing import assert_type\n"
        "import numpy.typing as npt\n"
        "with arena.freeze() as then:\n"
        "    assert_type(then[table], npt.NDArray[np.float32])\n"
        "assert_type(table, npt.NDArray[np.float32])\n"
        "assert_type(arena.ones(3, np.dtype(np.int8)), npt.NDArray[np.int8])\n"
        "assert_type(arena.full((2, 2), 7, np.uint16), npt.NDArray[np.uint16])\n"
        "assert_type(arena.zeros_like(table), npt.NDArray[np.float32])\n"
        "assert_type(arena.array(table, np.int64), npt.NDArray[np.int64])\n"
        "assert_type(arena.zeros(3), npt.NDArray[np.float64])\n"
        "restored, state = cowslip.restore('a.cowslip')\n"
        "restored.close()\n"
    )
    names = [path.stem for path in Path(cowslip.__file__).parent.glob("*.py")]
    # Where PyTorch or Ray is not installed, nothing can be said of what uses it.
    unknown = {name for name in ("torch", "ray") if importlib.util.find_spec(name) is None}
    modules = [f"cowslip.{name}" for name in names if name not in {"__init__", *unknown}]
    check(tmp_path, "mypy", "--strict", *(word for module in ["cowslip", *modules] for word in ("-m", module)))
    check(tmp_path, "mypy", "--strict", str(program))
    wrong = tmp_path / "wrong.py"
    wrong.write_text("import cowslip\ncowslip.Arena('1M', backing='paper')\n")
    with pytest.raises(AssertionError, match="backing"):
        check(tmp_path, "mypy", "--strict", str(wrong))


def test_the_stubs_are_of_the_module(tmp_path):
    pytest.importorskip("mypy")
    check(tmp_path, "mypy.stubtest", "cowslip._native")
