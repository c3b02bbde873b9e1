"""A warm Python: what each start has of its own."""

import os
import subprocess
import sys
import threading

import pytest

from cowslip import warm

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


def test_openssl_differs():
    code = "import ssl; print(ssl.RAND_bytes(16)); from cowslip import warm; warm.ready(); print(ssl.RAND_bytes(16))"
    name = f"{NAME}-ssl"
    words = [sys.executable, "-m", "cowslip", "warm", name, "--", sys.executable, "-c", code]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as program:
        assert any("is warm after" in line for line in program.stderr), "it does not become warm"
        start = [sys.executable, "-m", "cowslip", "start", name]
        said = {subprocess.run(start, capture_output=True, timeout=60).stdout for _ in range(5)}
        program.terminate()
    assert len(said) == 5 and b"" not in said


def test_copies_are_started_from_python(start, tmp_path):
    with open(tmp_path / "out", "w+") as out:
        copy = warm.start(NAME, "-c", "print(6 * 7); raise SystemExit(5)", stdout=out)
        assert copy.pid > 0 and copy.wait(60) == 5 and copy.poll() == 5
        out.seek(0)
        assert out.read() == "42\n"
    sleeper = "import time; time.sleep(1000)"
    with warm.start(NAME, "-c", sleeper) as copy:
        assert copy.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            copy.wait(0.01)
        copy.terminate()
        assert copy.wait(60) == -15
    # Without a job they run their standard input, which is at its end.
    with warm.start(NAME, "-c", sleeper) as copy:
        waiter = threading.Thread(target=copy.wait)
        waiter.start()
        copy.kill()
        waiter.join(60)
        assert copy.returncode == -9
    copies = warm.fork(NAME, 4, timeout=60)
    assert [copy.wait(60) for copy in copies] == [0] * 4
    assert len({copy.pid for copy in copies}) == 4


def test_errors_are_named(start):
    with pytest.raises(ConnectionRefusedError, match="is not warm"):
        warm.start("no-such-name")
    with pytest.raises(FileNotFoundError):
        warm.start(NAME, cwd="/nonexistent")


WORK = """
import concurrent.futures, multiprocessing, sys
from cowslip import warm

def square(number):
    assert "numpy" in sys.modules
    return number * number

def fill(queue, lock, number):
    with lock:
        queue.put(number)
    sys.exit(number)

if __name__ == "__main__":
    context = warm.context("numpy")
    queue, lock = context.Queue(), context.Lock()
    processes = [context.Process(target=fill, args=(queue, lock, number)) for number in range(4)]
    for process in processes:
        process.start()
    assert sorted(queue.get() for _ in processes) == [0, 1, 2, 3]
    for process in processes:
        process.join(60)
    print([process.exitcode for process in processes], len({process.pid for process in processes}))
    sleeper = context.Process(target=__import__("time").sleep, args=(1000,))
    sleeper.start()
    assert sleeper.is_alive()
    sleeper.terminate()
    sleeper.join(60)
    print(sleeper.exitcode)
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as pool:
        print(sum(pool.map(square, range(100))))
    multiprocessing.set_start_method("cowslip", force=True)
    with multiprocessing.Pool(2) as pool:
        print(pool.map(square, [5]))
"""


def test_multiprocessing_starts_copies(tmp_path):
    script = tmp_path / "work.py"
    script.write_text(WORK)
    ran = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120)
    assert ran.stdout == "[0, 1, 2, 3] 4\n-15\n328350\n[25]\n", ran.stderr
