"""What the command does for a program of Python: traces of its page faults, and comparisons of runs as columns."""

import contextlib
import errno
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

from . import _errors
from ._binaries import command

PathOrPaths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]

# Exit codes of the command (docs/README.md).
_ERRORS: dict[int, type[_errors.Error]] = {
    2: _errors.UsageError,
    3: _errors.UnsupportedError,
    4: _errors.DeniedError,
    5: _errors.VanishedError,
    6: _errors.CorruptError,
}


def _failure(code: int, told: str) -> _errors.Error:
    # Before the reason comes what it was at.
    text = told.rpartition("cowslip: ")[2].strip() or f"the command ended with {code}"
    return _ERRORS.get(code, _errors.Error)(text)


def _run(*arguments: str, answers: tuple[int, ...] = (0,)) -> str:
    done = subprocess.run([command(), *arguments], capture_output=True, text=True)
    if done.returncode not in answers:
        raise _failure(done.returncode, done.stderr)
    return done.stdout


@contextlib.contextmanager
def trace(
    output: str | os.PathLike[str],
    *,
    detail: Literal["faults", "access"] = "faults",
    stacks: Literal["none", "maps", "faults"] = "maps",
) -> Iterator[Path]:
    """Records every page fault and mapping of this process in a `with` block, into a page (`.html`), a table
    (`.csv`), lines (`.jsonl`) or a trace for `cowslip trace report`.

    The process runs on undisturbed. `cowslip trace permissions` says what may be seen.
    """
    output = Path(output)
    kind = output.suffix.removeprefix(".")
    with tempfile.TemporaryDirectory() as folder:
        recorded = output if kind not in {"html", "csv", "jsonl"} else Path(folder) / "cowslip.trace"
        recording = subprocess.Popen(
            [command(), "trace", "--pid", str(os.getpid()), "--detail", detail, "--stacks", stacks, "-o", str(recorded)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "TERM": "dumb"},
        )
        assert recording.stderr is not None
        told = ""
        try:
            for line in recording.stderr:
                if line.startswith("recording"):
                    break
                told += line
            else:
                raise _failure(recording.wait(), told)
            yield output
        finally:
            recording.send_signal(signal.SIGINT)
            told += recording.communicate()[1]
        if recording.returncode != 0:
            raise _failure(recording.returncode, told)
        if recorded == output:
            return
        if kind in {"csv", "jsonl"}:
            _run("trace", "export", str(recorded), "--format", kind, "-o", str(output))
        else:
            _run("trace", "html", str(recorded), "-o", str(output))


def _paths(paths: PathOrPaths) -> list[str]:
    listed = [os.fspath(path) for path in ([paths] if isinstance(paths, str | os.PathLike) else paths)]
    for path in listed:
        if not os.path.exists(path):
            error = _errors.MissingFileError(f"{path}: there are no runs of that name")
            error.errno = errno.ENOENT
            raise error
    return listed


class Comparison(dict[str, list[Any]]):
    """What differs between good and bad runs, as columns: `pandas.DataFrame(comparison)`, `comparison["metric"]`.

    A row is a metric, ranked as `cowslip compare` does. Columns are `metric`, `verdict` ("differs", "perhaps" or "unproven"),
    `good` and `bad` (means), `change`, `t`, `p`, `adjusted_p`, `rank_p`, `effect`. `cause` says it in a sentence, `causes`
    are the counters that explain the time, the best first, each with `part`, `counter`, `means`, `seconds`, `share` and
    `certainty` ("certain", "likely", "perhaps" or "little"). `details` is all that the command said.
    """

    def __init__(self, details: dict[str, Any]) -> None:
        rows = details["comparison"]["rows"]

        def column(*keys: str) -> list[Any]:
            values = []
            for row in rows:
                value: Any = row
                for key in keys:
                    value = None if value is None else value[key]
                values.append(value)
            return values

        super().__init__(
            metric=column("metric"),
            verdict=column("verdict"),
            good=[row["means"][0] for row in rows],
            bad=[row["means"][1] for row in rows],
            change=column("change", "value"),
            t=column("welch", "t"),
            p=column("p"),
            adjusted_p=column("adjusted_p"),
            rank_p=column("rank", "p"),
            effect=column("effect", "value"),
        )
        self.details = details
        self.cause: str | None = details["cause"]
        self.causes: list[dict[str, Any]] = details["causes"]
        self.differs: bool = details["differs"]


def compare(good: PathOrPaths, bad: PathOrPaths, *options: str) -> Comparison:
    """What differs between good and bad runs: files or folders of `cowslip compare run`, hyperfine, perf, sadf or CSV.

    `options` are the command's, such as "--metric=^vmstat" or "--alpha=0.01".
    """
    arguments = ["compare", "--json=-", *options, *_paths(good), "--", *_paths(bad)]
    return Comparison(json.loads(_run(*arguments, answers=(0, 1))))
