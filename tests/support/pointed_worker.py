"""A worker that reports to a test when it reaches a crash point, and waits there.

    python -m tests.support.pointed_worker FD [arguments of wbengine.worker]

FD is a socket; both sides send lines. After `stop POINT`, the worker stops the next time that it
reaches this point: it sends `at POINT`, and continues after `go`. The answer to `list` contains the
names of the points that were reached since the last `list`. Each line of the test except `go` has
an answer of one line.
"""

from __future__ import annotations

import socket
import sys
import threading

from tests.support.points import Points
from wbengine import worker


def main() -> int:
    control = socket.socket(fileno=int(sys.argv[1]))
    points = Points(lambda point: _stopped(control, go, point))
    go = threading.Semaphore(0)
    points.install()
    threading.Thread(target=_obey, args=(control, points, go), daemon=True).start()
    return worker.main(sys.argv[2:])


def _stopped(control: socket.socket, go: threading.Semaphore, point: str) -> None:
    control.sendall(f"at {point}\n".encode())
    go.acquire()


def _obey(control: socket.socket, points: Points, go: threading.Semaphore) -> None:
    for line in control.makefile("r"):
        word, _, point = line.strip().partition(" ")
        if word == "go":
            go.release()
        elif word == "stop":
            points.stop_at(point)
            control.sendall(b"yes\n")
        elif word == "list":
            control.sendall(f"{' '.join(points.passed())}\n".encode())


if __name__ == "__main__":
    sys.exit(main())
