#!/usr/bin/env python3
"""Compares the results under cowslip with the native ones, test by test.

    table.py RESULTS [--only SUITE/UNIT] [--json FILE] [--markdown FILE]

RESULTS holds SUITE/UNIT/native.tsv and cowslip.tsv, each line an outcome (pass, fail, skip) and a
test's name; figures, the seconds that each took and how many forks cowslip saw; and again-*.tsv, the
native results of a unit that was repeated. Exits with 1 if a test fails under cowslip, or is missing
there, that passes natively every time.
"""

import argparse
import json
import sys
from collections import Counter
from pathlib import Path

OUTCOMES = ("pass", "fail", "skip")
FINISHED = "comes to its end in time"  # a test that contain.py adds


def read(file):
    """How often each test passed, failed and was skipped: a name may occur more than once."""
    tests = {}
    for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
        outcome, name = line.split("\t", 1)
        tests.setdefault(name, Counter())[outcome] += 1
    return tests


def is_worse(there, counts):
    return there["fail"] > counts["fail"] or there["pass"] < counts["pass"]


def totals(tests):
    return {it: sum(counts[it] for counts in tests.values()) for it in OUTCOMES}


def compare(unit):
    native, cowslip = read(unit / "native.tsv"), read(unit / "cowslip.tsv")
    again = [read(file) for file in sorted(unit.glob("again-*.tsv"))]
    again = [it for it in again if it.get(FINISHED, {}).get("pass")]
    native_s, cowslip_s, forks = map(int, (unit / "figures").read_text().split())
    worse, unsteady = [], []
    for name, counts in native.items():
        if is_worse(cowslip.get(name, Counter()), counts):
            is_unsteady = any(is_worse(it.get(name, Counter()), counts) for it in again)
            (unsteady if is_unsteady else worse).append(name)
    worse += [it for it in cowslip if it not in native and cowslip[it]["fail"]]
    return {
        "suite": unit.parent.name,
        "unit": unit.name,
        "native": totals(native),
        "cowslip": totals(cowslip),
        "forks": forks,
        "native_s": native_s,
        "cowslip_s": cowslip_s,
        "fail_only_under_cowslip": worse,
        "fail_natively_too_when_repeated": unsteady,
    }


def cells(row):
    both = [row[way][it] for way in ("native", "cowslip") for it in OUTCOMES]
    return [f"{row['suite']}: {row['unit']}", *both, row["forks"], row["native_s"],
            row["cowslip_s"], len(row["fail_only_under_cowslip"])]


def summed(rows):
    total = [sum(column) for column in list(zip(*map(cells, rows)))[1:]]
    return ["all", *total]


HEAD = ["suite", "native: pass", "fail", "skip", "cowslip: pass", "fail", "skip",
        "forks", "native, s", "cowslip, s", "worse"]


def markdown(lines):
    out = ["| " + " | ".join(HEAD) + " |", "| --- |" + " ---: |" * (len(HEAD) - 1)]
    return "\n".join(out + ["| " + " | ".join(map(str, line)) + " |" for line in lines]) + "\n"


def plain(lines):
    width = max(len(line[0]) for line in lines)
    form = f"{{:{width}}}  {{:>6}} {{:>4}} {{:>4}}   {{:>6}} {{:>4}} {{:>4}}  {{:>6}}  {{:>5}} {{:>5}}  {{:>5}}"
    print(form.format("", "native", "", "", "cowslip", "", "", "", "s", "s", ""))
    print(form.format("", *("pass", "fail", "skip") * 2, "forks", "nat.", "cows.", "worse"))
    for line in lines:
        print(form.format(*line))


parser = argparse.ArgumentParser()
parser.add_argument("results", type=Path)
parser.add_argument("--only", default="*/*")
parser.add_argument("--json", type=argparse.FileType("w"))
parser.add_argument("--markdown", type=argparse.FileType("w"))
args = parser.parse_args()
rows = [compare(file.parent) for file in sorted(args.results.glob(f"{args.only}/cowslip.tsv"))]
if not rows:
    sys.exit("no suite could run")
lines = [*map(cells, rows), summed(rows)]
plain(lines)
for row in rows:
    where = f"{row['suite']}: {row['unit']}"
    for name in row["fail_natively_too_when_repeated"]:
        print(f"UNSTEADY {where}: {name} (fails or is missing natively too, in a repeated run)")
    for name in row["fail_only_under_cowslip"]:
        print(f"WORSE {where}: {name}")
if args.json:
    json.dump({"schema": "cowslip.peers/1", "rows": rows}, args.json, indent=2)
if args.markdown:
    args.markdown.write(markdown(lines))
sys.exit(any(row["fail_only_under_cowslip"] for row in rows))
