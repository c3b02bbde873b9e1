"""Neighbours: as many busy processes as the command line says while a file is there. They end with its folder."""

import os
import sys
import time


def spin(flag: str) -> None:
    while os.path.isdir(os.path.dirname(flag)):
        if os.path.exists(flag):
            for _ in range(20_000):
                pass
        else:
            time.sleep(0.001)


for _ in range(int(sys.argv[2]) - 1):
    if os.fork() == 0:
        break
spin(sys.argv[1])
