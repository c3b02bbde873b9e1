"""Programs that are held again and again print and answer the same as without."""

from __future__ import annotations

import hashlib
import http.client
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from common import COWSLIP, HOLD, PROGRAMS, PYTHON, Failed, Table, about_threads, first, folder, free_port, ran, running, wait_until

# A run of a program without holds takes seconds.
ROUNDS = 60
# With holds it takes longer, by as much as it stands still.
LIMIT_S = 600


class Load:
    """A program, and its result: its output, or the answers to a client."""

    def __init__(self, name: str, command: Callable[[Path], list[str]], needs: tuple[str, ...], under_run: bool = True) -> None:
        self.name, self.command, self.needs, self.under_run = name, command, needs, under_run

    @contextmanager
    def started(self, place: Path, prefix: list[str]) -> Iterator[tuple[int, Callable[[], str]]]:
        with running(*prefix, *self.command(place), cwd=place, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as child:
            yield child.pid, lambda: child.communicate(timeout=LIMIT_S)[0]


class Server(Load):
    """A server with a client; the result is a text."""

    def __init__(self, name, command, needs, client, pid_of=lambda pid: pid, under_run=True) -> None:
        super().__init__(name, command, needs, under_run)
        self.client, self.pid_of = client, pid_of

    @contextmanager
    def started(self, place: Path, prefix: list[str]) -> Iterator[tuple[int, Callable[[], str]]]:
        port = free_port()
        (place / "port").write_text(str(port))
        with running(*prefix, *self.command(place), cwd=place, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as child:
            wait_until(lambda: listens(port), f"{self.name} listens")
            yield self.pid_of(child.pid), lambda: self.client(port)


def listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
        return True
    except OSError:
        return False


def all_of(clients: list[Callable[[], str]]) -> str:
    """The output of all clients, side by side."""
    said: dict[int, str] = {}

    def say(number: int) -> None:
        try:
            said[number] = clients[number]()
        except Exception as error:
            said[number] = f"failed: {error!r}"

    threads = [threading.Thread(target=say, args=(number,)) for number in range(len(clients))]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    return "\n".join(said[number] for number in sorted(said))


def redis(place: Path) -> list[str]:
    port = (place / "port").read_text()
    return ["redis-server", "--port", port, "--save", "", "--enable-debug-command", "local", "--io-threads", "3"]


class Resp:
    """A connection that asks a Redis."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S)
        self.file = self.socket.makefile("rb")

    def ask(self, *words: object) -> str:
        texts = [str(word).encode() for word in words]
        self.socket.sendall(b"*%d\r\n" % len(texts) + b"".join(b"$%d\r\n%s\r\n" % (len(text), text) for text in texts))
        line = self.file.readline().rstrip().decode()
        if not line.startswith("$"):
            return line
        return self.file.read(int(line[1:]) + 2)[:-2].decode() if line != "$-1" else ""


def ask_redis(port: int) -> str:
    def client(number: int) -> str:
        asked = Resp(port)
        for turn in range(ROUNDS * 60):
            key, value = f"{number}:{turn % 997}", f"{turn}" * 40
            answers = asked.ask("set", key, value), asked.ask("get", key), asked.ask("incr", f"count{number}")
            if answers != ("+OK", value, f":{turn + 1}"):
                raise Failed(f"client {number}, turn {turn}: {answers}")
            if number == 0 and turn % 500 == 0:
                # A child, and its SIGCHLD.
                asked.ask("bgsave")
        return f"{turn + 1}"

    # It has read the file of the run before.
    Resp(port).ask("flushall")
    said = all_of([lambda number=number: client(number) for number in range(4)])
    return said + Resp(port).ask("debug", "digest")


def nginx(place: Path) -> list[str]:
    (place / "page").write_text("cowslip " * 20_000)
    (place / "conf").write_text(
        f"daemon off; master_process on; worker_processes 1; user root; pid {place}/pid; error_log {place}/log;\n"
        "events {}\nhttp { access_log off; keepalive_requests 100000; server {\n"
        f"listen 127.0.0.1:{(place / 'port').read_text()}; root {place}; gzip on; gzip_types *; }} }}\n"
    )
    return ["nginx", "-p", str(place), "-c", f"{place}/conf"]


def worker_of(pid: int) -> int:
    found = lambda: ran("pgrep", "-P", pid, "-f", "worker process").stdout.split()
    wait_until(found, "nginx has a worker")
    return int(found()[0])


def ask_nginx(port: int) -> str:
    def client(number: int) -> str:
        connection, digest = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S), hashlib.sha256()
        for turn in range(ROUNDS * 10):
            headers = {"Accept-Encoding": "gzip"} if number % 2 else {"Range": f"bytes={turn * 100}-{turn * 200 + 5000}"}
            connection.request("GET", "/page", headers=headers)
            answer = connection.getresponse()
            digest.update(f"{answer.status} {answer.getheader('Content-Range')}".encode() + answer.read())
        return digest.hexdigest()

    return all_of([lambda number=number: client(number) for number in range(4)])


def postgres(place: Path) -> list[str]:
    data = place / "data"
    if not data.exists():
        subprocess.run(["chown", "-R", "postgres", place], check=True)
        as_user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
        subprocess.run([*as_user, "initdb", "-D", data, "-A", "trust", "-N"], check=True, stdout=subprocess.DEVNULL)
    port = (place / "port").read_text()
    settings = [f"port={port}", "fsync=off", "shared_buffers=8MB", f"unix_socket_directories={place}", "max_connections=20"]
    options = [word for setting in settings for word in ("-c", setting)]
    return ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", "postgres", "-D", str(data), *options]


def ask_postgres(port: int) -> str:
    def client(number: int) -> str:
        lines = [f"create temp table t{number} (i int primary key, text text);"]
        for turn in range(ROUNDS):
            lines.append(f"insert into t{number} select i, md5(i::text) from generate_series({turn * 100}, {turn * 100 + 99}) i;")
            lines.append(f"select md5(string_agg(text, ',' order by i)), count(*) from t{number};")
            # By SIGALRM.
            lines.append("set statement_timeout = 20; select pg_sleep(1); set statement_timeout = 0;")
        words = ["psql", "-h", "127.0.0.1", "-p", str(port), "-U", "postgres", "-AtqX", "postgres"]
        return subprocess.run(words, input="\n".join(lines), text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT).stdout

    return hashlib.sha256(all_of([lambda number=number: client(number) for number in range(3)]).encode()).hexdigest()


def go(place: Path) -> list[str]:
    built = place.parent / "load-go"
    if not built.exists():
        subprocess.run(["go", "build", "-o", built, PROGRAMS / "load.go"], check=True)
    return [str(built), str(ROUNDS)]


def by(*words: str) -> Callable[[Path], list[str]]:
    return lambda _: [*words, str(ROUNDS)]


LOADS = [
    Server("redis", redis, ("redis-server",), ask_redis),
    Load("java", by("java", str(PROGRAMS / "Load.java")), ("java",)),
    Load("node", by("node", str(PROGRAMS / "load.js")), ("node",)),
    Load("python", by(PYTHON, str(PROGRAMS / "load.py")), (PYTHON,)),
    Load("go", go, ("go",), under_run=False),
    Server("postgresql", postgres, ("postgres", "initdb"), ask_postgres),
    Server("nginx", nginx, ("nginx",), ask_nginx, worker_of),
]


def run_once(load: Load, place: Path, prefix: list[str], seed: int | None) -> tuple[str, str, str]:
    """Its result, the holder's report, and the threads of a program that did not come to its end."""
    with load.started(place, prefix) as (pid, result):
        if seed is None:
            return result(), "", ""
        with running(HOLD, pid, 1_000_000, seed, stdout=subprocess.PIPE) as holds:
            try:
                said, stuck = result(), ""
            except subprocess.TimeoutExpired:
                said, stuck = "it did not come to its end", about_threads(pid)
            if isinstance(load, Server):
                # It would hold the server for ever.
                holds.terminate()
            return said, holds.communicate(timeout=LIMIT_S)[0], stuck


def run(table: Table, only: list[str], times: int, seed: int) -> None:
    """Holds each load `times` times in all, natively and under `cowslip run`."""
    for load in LOADS:
        for how in ("native", "cowslip run"):
            if only and load.name not in only or how != "native" and not load.under_run:
                continue
            missing = [need for need in load.needs if not first(need)]
            if missing:
                table.row("hold", load.name, how, f"SKIPPED: {missing[0]} is not there")
                continue
            hold_load(table, load, how, times, seed)


def refusal(report: list[str]) -> str:
    """The reason why nothing of it can be held; empty if it can."""
    return report[0].split(maxsplit=2)[2] if len(report) == 1 and report[0].startswith("failed") else ""


def hold_load(table: Table, load: Load, how: str, times: int, seed: int) -> None:
    prefix = [] if how == "native" else [COWSLIP, "run", "--threshold", "64K", "--"]
    began, held, longest, runs = time.monotonic(), 0, 0, 0
    with folder() as place:
        (place / "run").mkdir()
        expected, _, _ = run_once(load, place / "run", prefix, None)
        if not expected or "failed" in expected:
            table.failed(f"hold {load.name} {how}", "it fails without holds", expected)
        while held < times:
            runs += 1
            said, report, stuck = run_once(load, place / "run", prefix, seed + runs)
            lines = report.splitlines()
            refused = refusal(lines) if runs == 1 else ""
            for line in [line for line in lines if line.startswith("failed") and not refused]:
                table.failed(f"hold {load.name} {how}", f"seed {seed + runs}: {line}", report)
            if said != expected:
                what = f"seed {seed + runs}: another result"
                table.failed(f"hold {load.name} {how}", what, f"{stuck}\n\nexpected:\n{expected}\n\nit said:\n{said}\n\n{report}")
            if refused:
                table.row("hold", load.name, how, refused)
                return
            last = [line.split() for line in lines if line.startswith("held")][-1:]
            if not last:
                table.failed(f"hold {load.name} {how}", f"seed {seed + runs}: nothing was held", report)
                break
            held, longest = held + int(last[0][1]), max(longest, int(last[0][3]))
    took = f"{time.monotonic() - began:.0f} s"
    table.row("hold", load.name, how, f"{held} holds in {runs} runs", f"longest pause {longest / 1000:.1f} ms", took)
