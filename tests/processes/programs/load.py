"""Work of many kinds that checks its own results, and says the same in each run: load.py ROUNDS."""

import hashlib
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time

ROUNDS, THREADS = int(sys.argv[1]), 4
counts = {"children": 0, "alarms": 0, "own": 0}
failures = []


def count(name):
    def handler(*_):
        counts[name] += 1

    return handler


signal.signal(signal.SIGCHLD, count("children"))
signal.signal(signal.SIGALRM, count("alarms"))
signal.signal(signal.SIGUSR1, count("own"))
server = socket.create_server(("127.0.0.1", 0))


def serve():
    while True:
        client, _ = server.accept()
        threading.Thread(target=answer, args=(client,), daemon=True).start()


def answer(client):
    with client, client.makefile("rb") as lines:
        for line in lines:
            client.sendall(hashlib.sha256(line).hexdigest().encode() + b"\n")


def work(number, digests):
    numbers, digest, path = random.Random(number), hashlib.sha256(), f"load.{os.getpid()}.{number}"
    with socket.create_connection(server.getsockname()) as ask, ask.makefile("rb") as answers, open(path, "w+b", 0) as file:
        for turn in range(ROUNDS * 20):
            line = numbers.randbytes(200).hex().encode() + b"\n"
            ask.sendall(line)
            if answers.readline() != hashlib.sha256(line).hexdigest().encode() + b"\n":
                failures.append(f"thread {number}, turn {turn}: another answer")
            if file.write(line) != len(line) or file.tell() != (turn + 1) * len(line):
                failures.append(f"thread {number}, turn {turn}: another offset")
            before = time.monotonic()
            time.sleep(0.0002)
            if time.monotonic() - before < 0.0002:
                failures.append(f"thread {number}, turn {turn}: a short sleep")
            digest.update(line + str(sum(i * i for i in range(300))).encode())
        file.seek(0)
        digest.update(file.read())
    os.unlink(path)
    digests[number] = digest.hexdigest()


threading.Thread(target=serve, daemon=True).start()
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
digests = {}
threads = [threading.Thread(target=work, args=(number, digests)) for number in range(THREADS)]
[thread.start() for thread in threads]
for turn in range(ROUNDS):
    if subprocess.call(["/bin/sh", "-c", f"kill -USR1 {os.getpid()}; exit 7"]) != 7:
        failures.append(f"turn {turn}: another exit code")
    deadline = time.monotonic() + 30
    while counts["own"] <= turn and time.monotonic() < deadline:
        time.sleep(0.0005)
    if counts["own"] != turn + 1:
        failures.append(f"turn {turn}: {counts['own']} signals")
[thread.join() for thread in threads]
signal.setitimer(signal.ITIMER_REAL, 0)
print(sorted(digests.items()), counts["own"], counts["children"] >= ROUNDS // 2, counts["alarms"] > ROUNDS)
print("\n".join(failures) or "right")
