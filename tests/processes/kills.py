"""Commands that are killed, at any moment and at each of their system calls: the program goes on, and nothing stays.

A step is the n-th call of a name by a thread of the command, before which `strace --inject` kills it.
"""

from __future__ import annotations

import collections
import os
import random
import re
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from common import COWSLIP, HERE, PROGRAMS, PYTHON, Failed, Table, about_threads, children, first, folder, ran, read, running, wait_until

CRIU = os.environ.get("CRIU", str(HERE / "criu"))
SILENT = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
# The time in which all that a killed command leaves has to be gone.
SOON_S = 20
# A holder that CRIU was to dump ends by itself after a minute.
MOST_S = 75


class Program:
    """A program that says its state, and the folder that is in the command line of all that comes of it."""

    def __init__(self, place: Path, starter: tuple[str, ...] = ()) -> None:
        self.place = place
        words = [*starter, PYTHON, PROGRAMS / "state.py", place]
        self.child = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        self.pid = self.child.pid
        self.line()

    def line(self) -> str:
        if not select.select([self.child.stdout], [], [], 60)[0]:
            raise Failed(f"the program is silent\n\n{about_threads(self.pid)}")
        return self.child.stdout.readline()

    def ask(self, word: str) -> int:
        """Its number of changes, if all is right."""
        self.child.stdin.write(f"{word}\n")
        return self.check(self.line())

    @staticmethod
    def check(line: str) -> int:
        words = line.split()
        if words[1:] != ["True", "True", "6"]:
            raise Failed(f"the program says {line!r}")
        return int(words[0])

    def of_it(self) -> list[int]:
        """Processes that came of it, and live."""
        return [pid for pid in with_words(str(self.place)) if pid != self.pid]

    def end(self) -> None:
        self.child.kill()
        self.child.wait()


def with_words(*words: str) -> list[int]:
    """The processes, but for those of strace, with these words in their command lines."""
    pids = [int(name) for name in os.listdir("/proc") if name.isdecimal()]
    lines = {pid: read(f"/proc/{pid}/cmdline") for pid in pids}
    return [pid for pid, line in lines.items() if all(word in line for word in words) and not line.startswith("strace")]


class Kill:
    """A way to kill a command: after a time, or at a step."""

    def __init__(self, rng: random.Random, seconds: float, steps: list[tuple[str, int]], follow: list[str]) -> None:
        self.after, self.prefix = rng.uniform(0, 1.3 * seconds), []
        if steps and rng.random() < 0.6:
            # Each name as often, whatever the number of its calls.
            name = rng.choice(sorted({name for name, _ in steps}))
            name, number = rng.choice([step for step in steps if step[0] == name] if rng.random() < 0.5 else steps)
            self.prefix = ["strace", *follow, "-qq", "-o", "/dev/null", "-e", f"inject={name}:signal=SIGKILL:when={number}"]
            self.after = 5

    def __str__(self) -> str:
        return f"killed at {self.prefix[-1]}" if self.prefix else f"killed after {self.after * 1000:.2f} ms"

    def run(self, words: list[str], **options: object) -> None:
        child = subprocess.Popen([*self.prefix, *words], **SILENT | options)
        try:
            child.wait(self.after)
        except subprocess.TimeoutExpired:
            # strace would let it go on.
            for pid in children(child.pid) if self.prefix else []:
                kill(pid)
            child.kill()
            child.wait()


def age_s(pid: int) -> float:
    words = read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(words[19]) / os.sysconf("SC_CLK_TCK") if words else 0


def kill(pid: int) -> None:
    try:
        os.kill(pid, 9)
    except ProcessLookupError:
        pass


class Command:
    """A command that is killed again and again, beside a program."""

    # It can be killed at its steps; strace follows it into threads and children.
    has_steps, follow = True, ["-f"]
    # Words before the program's own.
    starter: tuple[str, ...] = ()

    def __init__(self, place: Path) -> None:
        self.place, self.program, self.left = place, Program(place, self.starter), 0
        self.fifo = place / "fifo"
        os.mkfifo(self.fifo)
        # It never ends, and copies wait for it.
        self.input = os.open(self.fifo, os.O_RDWR)

    def words(self) -> list[str]:
        raise NotImplementedError

    def options(self) -> dict[str, object]:
        return {}

    def is_there(self) -> bool:
        """It has done its work, and waits or has ended."""
        raise NotImplementedError

    def prepare(self) -> None:
        """Before each kill."""

    def settle(self) -> None:
        """After each kill."""

    def finally_(self) -> None:
        """After all of them: the next command has the program forget its children that have ended."""
        wait_until(self.is_cleared, "the program has no child", MOST_S)

    def is_cleared(self) -> bool:
        ran(COWSLIP, "mark", self.program.pid)
        ran(COWSLIP, "mark", self.program.pid, "--drop")
        return not children(self.program.pid)

    def once(self, how: Kill) -> None:
        self.prepare()
        how.run(self.words(), **self.options())
        self.settle()
        self.check()

    def check(self) -> None:
        program = self.program
        wait_until(self.is_over, "the processes end that came of the program", SOON_S)
        if "TracerPid:\t0\n" not in read(f"/proc/{program.pid}/status"):
            raise Failed("the program is traced")
        program.ask("say")
        # Those that have ended stay until the next command, or the program's end.
        ended = children(program.pid)
        self.left = max(self.left, len(ended))

    def is_over(self) -> bool:
        """Of the program's processes it alone is left."""
        return not self.program.of_it()

    def end(self) -> None:
        os.close(self.input)
        self.program.end()
        self.settle()
        wait_until(lambda: not self.program.of_it(), "nothing stays of a program that has ended", MOST_S)


def recorded(command: Command) -> tuple[float, list[tuple[str, int]]]:
    """The time until a command has done its work, and its steps until then."""
    times, log = [], command.place / "strace"
    for prefix in [], ["strace", *command.follow, "-qq", "-o", str(log)]:
        if prefix and not first("strace"):
            return times[0], []
        command.prepare()
        began = time.monotonic()
        with running(*prefix, *command.words(), **SILENT | command.options()) as child:
            wait_until(lambda: command.is_there() or child.poll() is not None, "the command has done its work")
            times.append(time.monotonic() - began)
            for pid in children(child.pid) if child.poll() is None else []:
                kill(pid)
        command.settle()
        command.check()
    counts = collections.Counter(re.findall(r"^(\d* *)(\w+)\(", log.read_text(), re.MULTILINE))
    most = {name: max(count for (_, other), count in counts.items() if other == name) for _, name in counts}
    most.pop("execve", None)
    return times[0], [(name, number) for name, count in most.items() for number in range(1, count + 1)]


class Branch(Command):
    def words(self) -> list[str]:
        return [COWSLIP, "branch", str(self.program.pid), "-n", "2", "--net", "--input", str(self.fifo)]

    def is_there(self) -> bool:
        own = os.readlink("/proc/self/ns/net")
        apart = [pid for pid in self.program.of_it() if namespace(pid) not in (None, own)]
        return len(apart) >= 2


def namespace(pid: int) -> str | None:
    try:
        return os.readlink(f"/proc/{pid}/ns/net")
    except OSError:
        return None


class Mark(Command):
    def words(self) -> list[str]:
        return [COWSLIP, "mark", str(self.program.pid)]

    def keepers(self) -> list[int]:
        return with_words(COWSLIP, f"\0mark\0{self.program.pid}\0--keep")

    def is_there(self) -> bool:
        # strace waits for the process that keeps it, too.
        return str(self.program.pid) in ran(COWSLIP, "mark", "--list").stdout.split()

    def settle(self) -> None:
        """Drops the mark, if the process that keeps it was started and lives."""
        wait_until(self.dropped, "the mark is dropped", SOON_S)

    def dropped(self) -> bool:
        ran(COWSLIP, "mark", self.program.pid, "--drop")
        return not self.keepers()

    def prepare(self) -> None:
        self.settle()


class Keeper(Mark):
    """The process that keeps a mark is killed while it makes it, or later."""

    def words(self) -> list[str]:
        return [COWSLIP, "mark", str(self.program.pid), "--keep"]

    def options(self) -> dict[str, object]:
        return {"stdin": subprocess.DEVNULL}


class RollBack(Mark):
    def words(self) -> list[str]:
        # A thread has ended since.
        return [COWSLIP, "rollback", str(self.program.pid), "--force"]

    def is_there(self) -> bool:
        return False

    def prepare(self) -> None:
        self.settle()
        self.before = self.program.ask("say")
        marked = ran(COWSLIP, "mark", self.program.pid)
        if marked.returncode != 0:
            raise Failed(marked.stderr)
        self.program.ask("change")

    def check(self) -> None:
        super().check()
        if self.program.ask("say") - self.before not in (0, 1):
            raise Failed("the program is neither as at its mark nor as later")


class RollBackKeeper(RollBack):
    """The process that keeps the mark is killed while it rolls back: it takes the program with it, or leaves it whole.

    It is killed before one of its first calls of ptrace(2), if strace is there, or later.
    """

    has_steps = False

    def once(self, how: Kill) -> None:
        self.prepare()
        inject = f"inject=ptrace:signal=SIGKILL:when={random.randint(1, 400)}"
        step = ["strace", "-qq", "-o", "/dev/null", "-e", "trace=ptrace", "-e", inject, "-p"] if first("strace") else ["true"]
        keeper = str(self.keepers()[0])
        with running(*step, keeper, **SILENT) as tracer:
            if first("strace"):
                wait_until(lambda: "TracerPid:\t0\n" not in read(f"/proc/{keeper}/status"), "it is traced", SOON_S)
            with running(*self.words(), **SILENT):
                time.sleep(how.after)
            tracer.kill()
            tracer.wait()
            for pid in self.keepers():
                kill(pid)
        wait_until(lambda: not self.keepers(), "the process that keeps the mark is gone", SOON_S)
        try:
            self.check()
        except (Failed, OSError) as error:
            # A program that was killed closes its files before it has ended.
            try:
                self.program.child.wait(SOON_S)
            except subprocess.TimeoutExpired:
                raise error from None
            self.program = Program(self.place, self.starter)


UNDER_RUN = (COWSLIP, "run", "--")


class KeeperUnderRun(Keeper):
    starter = UNDER_RUN


class RollBackUnderRun(RollBack):
    starter = UNDER_RUN


class RollBackKeeperUnderRun(RollBackKeeper):
    starter = UNDER_RUN


class Checkpoint(Command):
    def folder(self) -> Path:
        return self.place / "kept"

    def words(self) -> list[str]:
        return [COWSLIP, "checkpoint", str(self.program.pid), "-o", str(self.folder()), "--criu", CRIU]

    def is_there(self) -> bool:
        return False

    def is_over(self) -> bool:
        return not [pid for pid in self.program.of_it() if age_s(pid) > MOST_S]

    def settle(self) -> None:
        if self.folder().exists():
            verified = ran(COWSLIP, "image", "verify", self.folder() / "memory.image")
            names = sorted(path.name for path in self.folder().iterdir())
            if verified.returncode != 0 or names != ["criu", "memory.image", "process.json"]:
                raise Failed(f"a checkpoint is not whole: {names} {verified.stderr}")
            shutil.rmtree(self.folder())

    def finally_(self) -> None:
        answer = ran(*self.words())
        if answer.returncode != 0 or (self.place / ".kept.partial").exists():
            raise Failed(f"a checkpoint after those that were killed: {answer.stderr}")
        self.settle()
        super().finally_()


class Warm(Command):
    """The program that the command starts ends with it. A traced one cannot be held."""

    follow = []

    def name(self) -> str:
        return f"kills-{self.program.pid}"

    def words(self) -> list[str]:
        return [COWSLIP, "warm", self.name(), "--", PYTHON, str(PROGRAMS / "state.py"), str(self.place)]

    def is_there(self) -> bool:
        return "is warm" in read(str(self.place / "log"))

    def options(self) -> dict[str, object]:
        return {"stderr": open(self.place / "log", "w"), "stdin": subprocess.DEVNULL}


class WarmServer(Warm):
    """One that reads no input."""

    def words(self) -> list[str]:
        code = f"import time; {str(self.place)!r}; time.sleep(1000)"
        return [COWSLIP, "warm", self.name(), "--until", "seconds:0.3", "--", PYTHON, "-c", code]


class Start(Command):
    def __init__(self, place: Path) -> None:
        super().__init__(place)
        self.name = f"kills-{self.program.pid}"
        words = [COWSLIP, "warm", self.name, "--", PYTHON, PROGRAMS / "state.py", place]
        self.warm = subprocess.Popen(words, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        if not any("is warm" in line for line in self.warm.stderr):
            raise Failed("it did not become warm")
        self.kept = set(self.program.of_it())

    def words(self) -> list[str]:
        return [COWSLIP, "start", self.name]

    def options(self) -> dict[str, object]:
        return {"stdin": self.input}

    def is_there(self) -> bool:
        return len(self.program.of_it()) > len(self.kept) + 1

    def check(self) -> None:
        wait_until(lambda: set(self.program.of_it()) == self.kept, "the copies end", SOON_S)
        answer = ran(COWSLIP, "start", self.name, input="say\n")
        self.program.check(answer.stdout)

    def end(self) -> None:
        self.warm.kill()
        self.warm.wait()
        super().end()


COMMANDS = {
    "branch": Branch,
    "mark": Mark,
    "mark --keep": Keeper,
    "rollback": RollBack,
    "rollback, its keeper": RollBackKeeper,
    "mark --keep, under run": KeeperUnderRun,
    "rollback, under run": RollBackUnderRun,
    "rollback under run, its keeper": RollBackKeeperUnderRun,
    "checkpoint": Checkpoint,
    "warm": Warm,
    "warm --until": WarmServer,
    "start": Start,
}


@contextmanager
def beside_program(kind: type[Command]) -> Iterator[Command]:
    with folder() as place:
        command = kind(place)
        try:
            yield command
        finally:
            command.end()


def run(table: Table, only: list[str], seconds: float, seed: int) -> None:
    for name, kind in COMMANDS.items():
        if not only or name in only:
            kills_of(table, name, kind, seconds, random.Random(f"{seed} {name}"))


def kills_of(table: Table, name: str, kind: type[Command], seconds: float, rng: random.Random) -> None:
    until, kills, failures, left, kinds, done = time.monotonic() + seconds, 0, 0, 0, 0, set()
    while time.monotonic() < until and failures < 10:
        how = "at the end"
        try:
            with beside_program(kind) as command:
                took, steps = recorded(command)
                kinds = max(kinds, len(steps))
                while time.monotonic() < until:
                    how = Kill(rng, took, steps if kind.has_steps else [], kind.follow)
                    command.once(how)
                    kills += 1
                    left = max(left, command.left)
                    done.add(how.prefix[-1] if how.prefix else "")
                how = "at the end"
                command.finally_()
        except Failed as error:
            failures += 1
            table.failed(f"kill {name}", f"{how}, kill {kills}: {error}")
    table.row("kill", name, f"{kills} kills", f"{len(done)} of {kinds} steps", f"{failures} failures", f"at most {left} ended children left")
