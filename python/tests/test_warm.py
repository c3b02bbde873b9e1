"""A warm Python: what each start has of its own."""

import os
import subprocess
import sys

import pytest

NAME = f"test-python-{os.getpid()}"


@pytest.fixture(scope="module")
def start():
    command = [sys.executable, "-m", "cowslip"]
    warm = subprocess.Popen(
        [*command, "warm", NAME, "--", sys.executable, "-m", "cowslip.warm", "numpy", "decimal"],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    lines = iter(warm.stderr.readline, "")
    assert any("is warm after" in line for line in lines), "it does not become warm"

    def run(*arguments, input="", **options):
        words = [*command, "start", NAME, "--", *arguments]
        return subprocess.run(words, input=input, capture_output=True, text=True, timeout=60, **options)

    yield run
    warm.terminate()
    warm.wait()


def test_a_script_has_its_arguments_and_its_folder(start, tmp_path):
    (tmp_path / "beside.py").write_text("VALUE = 7\n")
    script = tmp_path / "script.py"
    script.write_text("import beside, os, sys\nprint(sys.argv[1:], beside.VALUE, os.getcwd(), __name__, os.environ['OF_START'])\n")
    ran = start("script.py", "--flag", cwd=tmp_path, env={**os.environ, "OF_START": "yes"})
    assert ran.stdout == f"['--flag'] 7 {tmp_path} __main__ yes\n", ran.stderr


def test_code_and_input_and_exit_codes(start):
    ran = start("-c", "import sys; print('numpy' in sys.modules, sys.stdin.read()); sys.exit(3)", input="words")
    assert (ran.stdout, ran.returncode) == ("True words\n", 3), ran.stderr
    assert start(input="print(6 * 7)").stdout == "42\n"
    failed = start("-c", "raise ValueError('of the copy')")
    assert failed.returncode == 1 and "of the copy" in failed.stderr


def test_random_numbers_differ(start):
    code = "import random, numpy; print(random.random(), numpy.random.random())"
    said = [start("-c", code).stdout for _ in range(10)]
    numbers = [number for line in said for number in line.split()]
    assert len(set(numbers)) == 20
