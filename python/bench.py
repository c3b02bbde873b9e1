"""Measures what Cowslip does for Python against what one would use without it.

    python python/bench.py [--json FILE] [--folder FOLDER] [--only NAME]...

All that is compared runs in turns in one process; a figure is the median of its rounds. The files go to FOLDER, on a disk
with 8 GiB free. PyTorch's rows need PyTorch.
"""

import argparse
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

# The package that is installed, and not its sources, which are beside this file.
sys.path[:] = [place for place in sys.path if Path(place).resolve() != Path(__file__).parent.resolve()]
import cowslip  # noqa: E402

GIB = 1 << 30
ROUNDS = 3
rows: list[dict[str, Any]] = []
ratios: list[dict[str, Any]] = []


def row(name: str, value: float, unit: str) -> float:
    rows.append({"name": name, "value": value, "unit": unit})
    print(f"  {name:66} {value:12.4g} {unit}", flush=True)
    return value


def ratio(name: str, value: float, bound: float, at_least: bool = True) -> None:
    held = value >= bound if at_least else value <= bound
    ratios.append({"name": name, "value": value, "bound": bound, "at_least": at_least, "held": held})
    sign = ">=" if at_least else "<="
    print(f"{'ok  ' if held else 'MISS'}{name:64} {value:12.4g} {sign} {bound:g}", flush=True)


def took(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


class Held:
    """How much memory this process holds: its private pages, and the file of its arena.

    The proportional set size says something else: it leaves out the arena's pages that nothing maps, as after a thaw, and
    counts those twice that move from one mapping to another while it adds up.
    """

    def __init__(self, array: Any) -> None:
        address = array.__array_interface__["data"][0]
        file = next(file for low, high, file in self._mappings() if low <= address < high)
        names = (f"/proc/self/fd/{descriptor}" for descriptor in os.listdir("/proc/self/fd"))
        # The listing has its own descriptor, which is closed.
        self._file = next(name for name in names if os.path.exists(name) and self._identity(name) == file)

    @staticmethod
    def _mappings() -> Iterator[tuple[int, int, tuple[int, int, int]]]:
        for line in Path("/proc/self/maps").read_text().splitlines():
            addresses, _, _, device, inode, *_ = line.split()
            (low, high), (major, minor) = addresses.split("-"), device.split(":")
            yield int(low, 16), int(high, 16), (int(major, 16), int(minor, 16), int(inode))

    @staticmethod
    def _identity(name: str) -> tuple[int, int, int]:
        it = os.stat(name)
        return os.major(it.st_dev), os.minor(it.st_dev), it.st_ino

    def bytes(self) -> int:
        rollup = Path("/proc/self/smaps_rollup").read_text()
        anonymous = int(rollup.split("\nAnonymous:")[1].split()[0]) << 10
        return anonymous + os.stat(self._file).st_blocks * 512


class Peak:
    """The most memory that the process held in a `with` block."""

    def __init__(self, held: Held) -> None:
        self._held = held

    def __enter__(self) -> "Peak":
        self.most, self._over = self._held.bytes(), threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._over.wait(0.02):
            self.most = max(self.most, self._held.bytes())

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def fill(table: Any) -> None:
    rng = np.random.default_rng(1)
    block = rng.random(1 << 20, np.float32)
    for at in range(0, table.size, block.size):
        table[at : at + block.size] = block


def steps(table: Any, count: int, rng: np.random.Generator) -> float:
    """A loop that updates a thousandth of the table a step; the median step's seconds."""
    part = table.size // 1000

    def step() -> None:
        at = int(rng.integers(0, table.size - part))
        table[at : at + part] *= np.float32(1.001)

    return statistics.median(took(step) for _ in range(count))


def settle(arena: cowslip.Arena) -> None:
    """Waits until what the last view or save left behind is cleared away, as it is long before the next checkpoint."""
    while arena.metrics()["frozen_chunks"]:
        time.sleep(0.01)


def checkpoint(folder: Path) -> None:
    """The stall of a loop at a checkpoint of 2 GiB, and the memory that it takes."""
    arena = cowslip.Arena("5G")
    ours, numpys = arena.empty((GIB // 2,), np.float32), np.empty(GIB // 2, np.float32)
    fill(ours), fill(numpys)
    rng = np.random.default_rng(2)
    try:
        import torch
    except ImportError:
        torch = None  # type: ignore[assignment]
    stalls: dict[str, list[float]] = {name: [] for name in ("cowslip", "copy", "np.save", "torch.save")}
    peaks: dict[str, list[float]] = {"cowslip": [], "copy": []}
    slower = []
    state, held = ours.nbytes, Held(ours)

    def settle_all() -> None:
        """No stall pays for what the one before left to write."""
        settle(arena)
        os.sync()

    def stalled() -> cowslip.Save:
        began = time.perf_counter()
        save = arena.save(folder / "ours.cowslip", {"table": ours, "step": 3})
        stalls["cowslip"].append(time.perf_counter() - began)
        return save

    def write_a_tenth(table: Any) -> None:
        # A tenth of the pages, in pieces of 64 KiB, all over it.
        pieces = table.reshape(-1, 16384)
        for i in rng.choice(len(pieces), len(pieces) // 10, replace=False):
            pieces[i] += 1

    for _ in range(ROUNDS):
        settle_all()
        before = steps(ours, 50, rng)
        save = stalled()
        slower.append(steps(ours, 50, rng) / before)
        save.result()
        settle_all()
        steps(ours, 50, rng)
        memory = held.bytes()
        with Peak(held) as peak:
            save = stalled()
            write_a_tenth(ours)
            save.result()
        peaks["cowslip"].append((peak.most - memory) / state)

        settle_all()
        memory = held.bytes()
        with Peak(held) as peak:
            began = time.perf_counter()
            copy = numpys.copy()
            thread = threading.Thread(target=np.save, args=(folder / "copy.npy", copy))
            thread.start()
            stalls["copy"].append(time.perf_counter() - began)
            write_a_tenth(numpys)
            thread.join()
        peaks["copy"].append((peak.most - memory) / state)
        del copy, thread
        settle_all()
        stalls["np.save"].append(took(lambda: np.save(folder / "numpy.npy", numpys)))
        if torch is not None:
            tensor = torch.from_numpy(numpys)
            settle_all()
            stalls["torch.save"].append(took(lambda: torch.save({"table": tensor, "step": 3}, folder / "torch.pt")))
    for path in folder.iterdir():
        path.unlink()
    stall = row("stall at a checkpoint of 2 GiB: arena.save", statistics.median(stalls["cowslip"]) * 1e3, "ms")
    row("the loop's steps while it saves, over before", statistics.median(slower), "times")
    for name, told in [("copy", "copy, then np.save in a thread"), ("np.save", "np.save"), ("torch.save", "torch.save")]:
        if stalls[name]:
            row(f"stall at a checkpoint of 2 GiB: {told}", statistics.median(stalls[name]) * 1e3, "ms")
    ratio("stall: copy-then-save over Cowslip", statistics.median(stalls["copy"]) * 1e3 / stall, 500)
    for name in ("np.save", "torch.save"):
        if stalls[name]:
            ratio(f"stall: {name} in the loop over Cowslip", statistics.median(stalls[name]) * 1e3 / stall, 5000)
    row("memory above the state while saving: copy-then-save", statistics.median(peaks["copy"]), "of it")
    ratio("memory above the state while saving, a tenth written", statistics.median(peaks["cowslip"]), 0.15, False)


def freeze(folder: Path) -> None:
    """What Python adds to a freeze."""
    arena = cowslip.Arena("2G")
    table = arena.empty((GIB // 4,), np.float32)
    fill(table)
    whole, engine = [], []
    for _ in range(100):
        settle(arena)
        steps(table, 3, np.random.default_rng(1))
        began = time.perf_counter_ns()
        view = arena.freeze()
        whole.append(time.perf_counter_ns() - began)
        engine.append(view._native.took_ns)
        view.close()
    row("freeze of 1 GiB, Rust's call alone", statistics.median(engine) / 1e3, "us")
    over = statistics.median(one - other for one, other in zip(whole, engine, strict=True))
    ratio("Python's freeze over Rust's, us", over / 1e3, 30, False)


PAGES = 1 << 18
big: Any = None


def neighbours(table: Any, seed: int) -> int:
    """Writes to 100 pages side by side."""
    first = seed * 977 % (PAGES - 100)
    table[first * 1024 : (first + 100) * 1024 : 1024] += 1
    return int(table[first * 1024])


def scattered(table: Any, seed: int) -> int:
    """Writes to 100 pages all over it."""
    at = (np.arange(100) * 2617 + seed * 977) % PAGES * 1024
    table[at] += 1
    return int(table[at[0]])


def task_neighbours(branch: cowslip.Branch, seed: int) -> int:
    return neighbours(branch["table"], seed)


def task_scattered(branch: cowslip.Branch, seed: int) -> int:
    return scattered(branch["table"], seed)


def fresh_neighbours(seed: int) -> int:
    return neighbours(big, seed)


def fresh_scattered(seed: int) -> int:
    return scattered(big, seed)


def told(work: Callable[[int], int], seed: int, results: Any) -> None:
    results.send(work(seed))


def one_process_each(work: Callable[[int], int], seeds: range) -> None:
    context = multiprocessing.get_context("fork")
    for seed in seeds:
        ours, theirs = context.Pipe()
        process = context.Process(target=told, args=(work, seed, theirs))
        process.start()
        assert ours.recv() >= 1
        process.join()


def pool_of_fresh(work: Callable[[int], int], seeds: range) -> None:
    with multiprocessing.get_context("fork").Pool(2, maxtasksperchild=1) as pool:
        assert min(pool.map(work, seeds, chunksize=1)) >= 1


def pool(folder: Path) -> None:
    """Tasks a second that each start from the same 1 GiB and write to 100 pages of it."""
    global big
    arena = cowslip.Arena("2G")
    table = arena.empty((GIB // 4,), np.float32)
    fill(table)
    big = np.empty(GIB // 4, np.float32)
    fill(big)
    template = arena.template({"table": table})
    for where, task, work in [
        ("side by side", task_neighbours, fresh_neighbours),
        ("all over it", task_scattered, fresh_scattered),
    ]:
        ours, each, pooled = [], [], []
        with cowslip.Pool(2, template, reset=True) as workers:
            workers.map(task, range(200))
            for _ in range(ROUNDS):
                ours.append(4000 / took(lambda: workers.map(task, range(4000))))
                each.append(50 / took(lambda: one_process_each(work, range(50))))
                pooled.append(100 / took(lambda: pool_of_fresh(work, range(100))))
        mine = row(f"Pool(2, reset=True), 1 GiB, 100 pages {where}", statistics.median(ours), "tasks/s")
        fork = row(f"a forked Process each, 100 pages {where}", statistics.median(each), "tasks/s")
        pools = row(f"multiprocessing.Pool(2, maxtasksperchild=1), {where}", statistics.median(pooled), "tasks/s")
        ratio(f"Pool(reset=True) over the better fork each, 100 pages {where}", mine / max(fork, pools), 50)
    big = None


def first_reads(end: Any) -> None:
    while True:
        array = end.recv()
        if array is None:
            return
        end.send(float(array[12345]))
        del array


def spawn(folder: Path) -> None:
    """Time until a worker that runs already has read from 1 GiB that it was handed."""
    arena = cowslip.Arena("2G")
    table = arena.empty((GIB // 4,), np.float32)
    fill(table)
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    worker = context.Process(target=first_reads, args=(theirs,))
    worker.start()

    def hand(value: Any) -> None:
        ours.send(value)
        assert ours.recv() == float(table[12345])

    hand(arena.template()[table])
    descriptor, pickled = [], []
    for _ in range(ROUNDS):
        for _ in range(10):
            settle(arena)
            descriptor.append(took(lambda: hand(arena.template()[table])))
        pickled.append(took(lambda: hand(table)))
    ours.send(None)
    worker.join()
    quick = row("1 GiB to a spawned worker by descriptor, freeze and first read", statistics.median(descriptor) * 1e3, "ms")
    slow = row("1 GiB to a spawned worker as pickled bytes, and first read", statistics.median(pickled) * 1e3, "ms")
    ratio("time to first read: pickled bytes over descriptor", slow / quick, 1000)


def imports(folder: Path) -> None:
    """`import cowslip`, alone and up to the first arena in a program that has numpy."""

    def fresh_python(before: str, timed: str) -> float:
        program = f"import time\n{before}\nt = time.perf_counter()\n{timed}\nprint(time.perf_counter() - t)"
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        return float(done.stdout) * 1e3

    alone = statistics.median(fresh_python("", "import cowslip") for _ in range(21))
    both = statistics.median(fresh_python("import numpy", "import cowslip; cowslip.Arena") for _ in range(21))
    row("import cowslip; cowslip.Arena, where numpy was imported", both, "ms")
    row("import numpy, for comparison", statistics.median(fresh_python("", "import numpy") for _ in range(7)), "ms")
    ratio("import cowslip, ms", alone, 15, False)


PARTS = [imports, freeze, spawn, pool, checkpoint]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--folder", type=Path, help="where files go [default: a new one in the current folder]")
    parser.add_argument("--only", action="append", choices=[part.__name__ for part in PARTS])
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder or Path.cwd()) as folder:
        for part in PARTS:
            if not arguments.only or part.__name__ in arguments.only:
                print(part.__doc__, flush=True)
                part(Path(folder))
    if arguments.json:
        host = {"cpus": os.cpu_count(), "kernel": os.uname().release, "python": sys.version.split()[0]}
        arguments.json.write_text(json.dumps({"host": host, "rows": rows, "ratios": ratios}, indent=1))
    return 0 if all(it["held"] for it in ratios) else 1


if __name__ == "__main__":
    sys.exit(main())
