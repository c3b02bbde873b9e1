"""Random numbers of copies: each draws its own, but for those that a program's own seed or memory determines."""

from __future__ import annotations

import collections
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from common import COWSLIP, PROGRAMS, PYTHON, Failed, Table, first, folder, ran, running

# Copies of one instant.
AT_ONCE = 50
# The kinds of sources with equal numbers in copies, as `docs/templates.md` says: of the program's seed, of a generator or
# a buffer in memory, of one that the program has made.
EQUAL = {"seed", "memory", "object"}


def build(place: Path, *words: object) -> str:
    subprocess.run([str(word) for word in words], check=True)
    return str(place / "draw")


def programs(place: Path) -> dict[str, tuple[str, Callable[[], list[str]]]]:
    """The program that each needs, and its command."""
    return {
        "python": (PYTHON, lambda: [PYTHON, str(PROGRAMS / "draw.py")]),
        "node": ("node", lambda: ["node", str(PROGRAMS / "draw.js")]),
        "java": ("java", lambda: ["java", str(PROGRAMS / "Draw.java")]),
        "c": ("cc", lambda: [build(place, "cc", "-O2", "-o", place / "draw", PROGRAMS / "draw.c")]),
        "go": ("go", lambda: [build(place, "go", "build", "-o", place / "draw", PROGRAMS / "draw.go")]),
    }


def run(table: Table, only: list[str], copies: int) -> None:
    with folder() as place:
        for name, (need, command) in programs(place).items():
            if only and name not in only:
                continue
            if not first(need):
                table.row("copies", name, f"SKIPPED: {need} is not there")
                continue
            judge(table, name, "branch PID", branched(place, command(), copies), EQUAL)
        if not only or "warm" in only:
            if ran(PYTHON, "-c", "from cowslip import warm").returncode == 0:
                judge(table, "python", "warm", started(copies), {"seed", "object"})
            else:
                table.row("copies", "python", "warm", f"SKIPPED: {PYTHON} has no module cowslip")


def branched(place: Path, command: list[str], copies: int) -> list[str]:
    """The output of each copy of a running program."""
    with running(*command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
        program.stdout.readline()
        # Bytes that it has read ahead are of use for a moment.
        time.sleep(0.5)
        said = []
        for number in range(AT_ONCE):
            (place / f"{number}.in").write_text("draw\n")
        while len(said) < copies:
            some = min(AT_ONCE, copies - len(said))
            answer = ran(COWSLIP, "branch", program.pid, "-n", some, "--input", place / "%i.in", "--output", place / "%i.out")
            if answer.returncode != 0:
                raise Failed(answer.stderr)
            said += [(place / f"{number}.out").read_text() for number in range(some)]
    return said


def started(copies: int) -> list[str]:
    """The output of each start of a warm Python."""
    name = f"draw-{os.getpid()}"
    words = [COWSLIP, "warm", name, "--", PYTHON, PROGRAMS / "draw.py", "job"]
    with running(*words, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL) as warm:
        if not any("is warm after" in line for line in warm.stderr):
            raise Failed("it did not become warm")
        return [ran(COWSLIP, "start", name).stdout for _ in range(copies)]


def judge(table: Table, name: str, how: str, said: list[str], may_be_equal: set[str]) -> None:
    """Compares the numbers that all copies drew from each source."""
    drawn: dict[str, list[str]] = collections.defaultdict(list)
    for text in said:
        for line in text.splitlines():
            kind, source, number = line.split(" ", 2)
            drawn[f"{kind} {source}"].append(number)
    if not drawn:
        table.failed(f"copies {name}", "they drew nothing", "\n".join(said))
    for source, numbers in drawn.items():
        kind, source = source.split(" ", 1)
        counts = collections.Counter(numbers)
        equal = sum(count for count in counts.values() if count > 1)
        if equal and kind not in may_be_equal:
            table.failed(f"copies {name} {how}", f"{source}: {equal} of {len(numbers)} are equal", "\n".join(numbers))
        if len(numbers) != len(said):
            table.failed(f"copies {name} {how}", f"{source}: {len(numbers)} numbers of {len(said)} copies")
        table.row("copies", name, how, source, kind, f"{equal} of {len(numbers)} equal")
