#!/usr/bin/env python3
"""Runs a command with a time limit and ends, by id, every process it leaves behind.

    contain.py LIMIT_S RESULTS COMMAND...

Appends the outcomes of two tests to RESULTS: whether the command came to its end in time, and
whether nothing was left running then. Exits with the command's exit code, or 124.
"""

import ctypes
import os
import signal
import sys
import time

PR_SET_CHILD_SUBREAPER = 36
GRACE_S = 3  # for what is about to end by itself


def living():
    """Every descendant that has not ended, as (pid, name)."""
    children = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:
                name, rest = stat.read().split("(", 1)[1].rsplit(")", 1)
        except OSError:
            continue  # it ended meanwhile
        state, parent = rest.split()[:2]
        children.setdefault(int(parent), []).append((int(pid), name, state))
    found, parents = [], [os.getpid()]
    while parents:
        for pid, name, state in children.get(parents.pop(), []):
            parents.append(pid)
            if state != "Z":
                found.append((pid, name))
    return found


def reap():
    """Exit codes by pid of the children that have ended. Orphans are reaped at once, as by init:
    programs ask with kill(pid, 0) whether a daemon has ended."""
    ended = {}
    try:
        while (it := os.waitpid(-1, os.WNOHANG)) != (0, 0):
            ended[it[0]] = os.waitstatus_to_exitcode(it[1])
    except ChildProcessError:
        pass
    return ended


def end_all():
    while left := living():
        for pid, _ in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        time.sleep(0.01)
        reap()


def stop(signum, _frame):
    end_all()
    sys.exit(128 + signum)


def wait(command, limit_s):
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        ended = reap()
        if command in ended:
            return ended[command]
        time.sleep(0.01)
    return None


limit_s, results = int(sys.argv[1]), sys.argv[2]
if ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
    sys.exit("contain.py: this kernel has no subreapers")
for it in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(it, stop)
stdin = (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0)
command = os.posix_spawnp(sys.argv[3], sys.argv[3:], os.environ, file_actions=[stdin], setsid=True)
code = wait(command, limit_s)
if code is None:
    end_all()
deadline = time.monotonic() + GRACE_S
while (left := living()) and time.monotonic() < deadline:
    time.sleep(0.05)
    reap()
end_all()
with open(results, "a", encoding="utf-8") as out:
    print("fail" if code is None else "pass", "comes to its end in time", sep="\t", file=out)
    print("fail" if left else "pass", "leaves no process behind", sep="\t", file=out)
if left:
    print("left behind:", ", ".join(f"{name} ({pid})" for pid, name in left))
sys.exit(124 if code is None else code if code >= 0 else 128 - code)
