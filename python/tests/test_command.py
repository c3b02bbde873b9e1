"""The command in the wheel, and what Python does with it."""

import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

import cowslip
from cowslip import _binaries

try:
    _binaries.command()
except cowslip.UsageError as error:
    pytest.skip(str(error), allow_module_level=True)


def run(*command, **options):
    return subprocess.run(command, capture_output=True, text=True, timeout=120, **options)


def test_the_command_is_on_the_path_and_a_module():
    script = shutil.which("cowslip", path=os.path.dirname(sys.executable))
    assert script, "the wheel brings it"
    for command in ([script], [sys.executable, "-m", "cowslip"]):
        assert run(*command, "--version").stdout.split()[-1] == cowslip.__version__
        assert json.loads(run(*command, "doctor", "--json", "-").stdout)["schema"] == "cowslip.doctor/1"
        assert run(*command, "run", "--", "sh", "-c", "exit 7").returncode == 7


def test_run_preloads_the_libraries_of_the_package():
    done = run(sys.executable, "-m", "cowslip", "run", "--", sys.executable, "-c", "print(open('/proc/self/maps').read())")
    assert done.returncode == 0, done.stderr
    libraries = {line.split()[-1] for line in done.stdout.splitlines() if "libcowslip_" in line}
    assert {os.path.dirname(it) for it in libraries} == {os.path.dirname(_binaries.command())}
    assert {os.path.basename(it) for it in libraries} == {"libcowslip_preload.so", "libcowslip_malloc.so"}


@pytest.mark.parametrize("name", ["faults.html", "faults.csv", "faults.trace"])
def test_a_trace_has_the_faults_of_the_block(tmp_path, name):
    with cowslip.trace(tmp_path / name) as output:
        array = np.ones(16 << 20, np.uint8)
    assert array.all() and output.stat().st_size > 1000
    if name == "faults.csv":
        low = array.__array_interface__["data"][0]
        header, *rows = (line.split(",") for line in output.read_text().splitlines())
        address = header.index("address")
        touched = [int(row[address], 0) for row in rows if row[address]]
        assert any(low <= it < low + array.nbytes for it in touched)


def test_what_a_trace_cannot_do_is_told(tmp_path):
    with pytest.raises(cowslip.Error, match="no/where"), cowslip.trace(tmp_path / "no" / "where" / "faults.trace"):
        pass
    with pytest.raises(ZeroDivisionError), cowslip.trace(tmp_path / "faults.html"):
        1 // 0


def test_a_comparison_is_columns(tmp_path):
    rng = np.random.default_rng(3)
    for side, mean in [("good", 10.0), ("bad", 20.0)]:
        (tmp_path / side).mkdir()
        for i in range(6):
            rows = [f"{value:.6f},{rng.normal(5):.6f}" for value in rng.normal(mean, 0.5, 20)]
            (tmp_path / side / f"{i}.csv").write_text("\n".join(["latency,noise", *rows]) + "\n")
    found = cowslip.compare(tmp_path / "good", tmp_path / "bad")
    assert found.differs and found["metric"][0] == "latency" and found["verdict"][0] == "differs"
    assert found["change"][0] == pytest.approx(1.0, abs=0.2) and found["p"][0] < 0.001
    assert len({len(column) for column in found.values()}) == 1 and set(found["metric"]) == {"latency", "noise"}
    assert not cowslip.compare(tmp_path / "good", [tmp_path / "good"], "--metric=latency").differs
    with pytest.raises(cowslip.MissingFileError, match="none"):
        cowslip.compare(tmp_path / "none", tmp_path / "bad")


def test_the_counters_that_explain_the_time_are_causes(tmp_path):
    for side, system, faults in [("good", 0.1, 1e3), ("bad", 0.6, 1e6)]:
        (tmp_path / side).mkdir()
        for i in range(5):
            times = {"wall_seconds": 1 + system + i / 1000, "rusage.user_seconds": 1, "rusage.system_seconds": system + i / 1000}
            row = times | {"rusage.minor_faults": faults + i}
            lines = [",".join(row), ",".join(f"{value:.6f}" for value in row.values())]
            (tmp_path / side / f"{i}.csv").write_text("\n".join([*lines, ""]))
    (cause,) = cowslip.compare(tmp_path / "good", tmp_path / "bad").causes
    assert (cause["part"], cause["counter"], cause["certainty"]) == ("system", "rusage.minor_faults", "certain")
    assert cause["share"] == pytest.approx(1, abs=0.1)
