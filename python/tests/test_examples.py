"""The examples, README and the documentation, as a reader runs them."""

import doctest
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import cowslip

HERE = Path(__file__).parent
EXAMPLES = HERE.parent / "examples"
STEPS = 40


def train(example, image, steps=STEPS, **options):
    command = [sys.executable, EXAMPLES / example, image, str(steps)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **options)


def finish(training):
    told, _ = training.communicate(timeout=120)
    assert training.returncode == 0
    return told.splitlines()


@pytest.mark.parametrize("example", ["train_numpy.py", "train_torch.py"])
def test_a_loop_killed_in_a_save_goes_on_bit_for_bit(tmp_path, example):
    if "torch" in example and importlib.util.find_spec("torch") is None:
        pytest.skip("PyTorch is not installed")
    weights = finish(train(example, tmp_path / "straight.cowslip"))[-1]
    assert weights.startswith("weights ")
    image = tmp_path / "killed.cowslip"
    resumed_at = 0
    # Each time it is killed as soon as it says that a save is under way: the second of this run.
    for _ in range(3):
        training = train(example, image)
        saves = 0
        for line in training.stdout:
            saves += line.startswith("saving")
            if saves == 2:
                break
        training.kill()
        training.communicate()
        assert training.returncode == -9
        cowslip.verify(image)
        step = cowslip.restore(image).state["step"]
        assert step > resumed_at and step < STEPS
        resumed_at = step
    told = finish(train(example, image))
    assert told[0] == f"resumed at step {resumed_at}"
    assert told[-1] == weights, "bit for bit"


def test_rollouts_in_ray(tmp_path):
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed")
    done = subprocess.run(
        [sys.executable, EXAMPLES / "ray_rollouts.py", "16"], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert re.findall(r"^(\w+) node: 8 tasks in \d process(?:es)?, 8000 writes$", done.stdout, re.M) == ["first", "second"]


def blocks(page):
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", [HERE.parent / "README.md", HERE.parents[1] / "docs" / "guides" / "python.md"], ids=lambda it: it.name)
def test_what_a_page_shows_runs_as_it_stands(tmp_path, page):
    if not page.exists():
        pytest.skip(f"{page} is not here: the tests were copied without the repository")
    shown = blocks(page)
    assert shown
    # In order, as a reader goes through them; what needs PyTorch or Ray is run where it is.
    missing = [it for it in ("torch", "ray") if importlib.util.find_spec(it) is None]
    program = "\n".join(it for it in shown if not any(re.search(rf"\b{name}\b", it) for name in missing))
    (tmp_path / "page.py").write_text(f"if __name__ == '__main__':\n{re.sub('^', '    ', program, flags=re.MULTILINE)}")
    done = subprocess.run([sys.executable, "page.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_a_notebook_runs_readmes_example(tmp_path):
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    cells = [nbformat.v4.new_code_cell(it) for it in blocks(HERE.parent / "README.md")]
    cells.append(nbformat.v4.new_code_cell("await arena.save('again.cowslip', {'table': table}); cowslip.doctor()"))
    notebook = nbformat.v4.new_notebook(cells=cells)
    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": tmp_path}}).execute()
    shown = "".join(it["data"]["text/plain"] for it in notebook.cells[-1].outputs if "data" in it)
    assert "Cowslip" in shown and "userfaultfd" in shown
    assert (tmp_path / "again.cowslip").exists()


@pytest.mark.parametrize("module", ["cowslip", "cowslip._arena"])
def test_docstrings_are_true(module, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tested = doctest.testmod(importlib.import_module(module))
    assert tested.attempted and not tested.failed
