"""Secrets that a program keeps out of core files are in no checkpoint of it, in any file."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from common import COWSLIP, HERE, PROGRAMS, Failed, Table, folder, ran, running

# CRIU itself, where it runs.
CRIU = os.environ.get("CRIU", str(HERE / "criu"))
# Consecutive bytes of a secret.
PART_BYTES = 16


def run(table: Table, images: int) -> None:
    with folder() as place:
        subprocess.run(["cc", "-O1", "-o", place / "program", PROGRAMS / "secrets.c"], check=True)
        found = {"public": 0, "dontdump": 0, "dontdump, --secrets": 0}
        for number in range(images):
            planted = checkpointed(place, [])
            found["public"] += planted["public"]
            found["dontdump"] += planted["dontdump"]
            if planted["dontdump"]:
                table.failed("secrets", f"image {number} has memory with MADV_DONTDUMP", str(planted))
        found["dontdump, --secrets"] += checkpointed(place, ["--secrets"])["dontdump"]
        if found["public"] != images or not found["dontdump, --secrets"]:
            table.failed("secrets", f"the search finds nothing: {found}")
        for what, count in found.items():
            table.row("secrets", f"by {Path(CRIU).name}", what, f"in {count} of {1 if '--' in what else images} images")
        table.row("secrets", "memfd_secret", secretmem(table, place))


def started(place: Path, *words: str) -> running:
    return running(place / "program", place, *words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def keeps(program: subprocess.Popen[str]) -> bool:
    program.stdin.write("say\n")
    program.stdin.flush()
    return program.stdout.readline() == "kept\n"


def checkpointed(place: Path, options: list[str]) -> dict[str, bool]:
    """The values that some file of a checkpoint has a part of."""
    kept = place / "kept"
    shutil.rmtree(kept, ignore_errors=True)
    with started(place) as program:
        program.stdout.readline()
        words = [COWSLIP, "checkpoint", program.pid, "-o", kept, "--criu", CRIU, "--compression", "none", *options]
        answer = ran(*words)
        if answer.returncode != 0 or not keeps(program):
            raise Failed(answer.stderr)
    files = [path.read_bytes() for path in kept.rglob("*") if path.is_file()]
    return {name: is_in(files, (place / name).read_bytes()) for name in ("public", "dontdump")}


def is_in(files: list[bytes], secret: bytes) -> bool:
    parts = [secret[at : at + PART_BYTES] for at in range(0, len(secret), PART_BYTES)]
    return any(part in file for file in files for part in parts)


def secretmem(table: Table, place: Path) -> str:
    """A program with memory that no other process can read: nothing holds it."""
    with started(place, "secretmem") as program:
        if program.stdout.readline() != "ready\n":
            return "SKIPPED: the kernel has none"
        answers = [
            ran(COWSLIP, "checkpoint", program.pid, "-o", place / "none", "--criu", CRIU),
            ran(COWSLIP, "mark", program.pid),
            ran(COWSLIP, "branch", program.pid),
        ]
        for answer in answers:
            if answer.returncode == 0 or "the kernel shows it to no other process" not in answer.stderr:
                table.failed("secrets memfd_secret", f"not refused: {answer.args[1]}", answer.stdout + answer.stderr)
        if not keeps(program) or (place / "none").exists():
            table.failed("secrets memfd_secret", "the program has lost it, or there is a checkpoint")
    return "refused by name"
