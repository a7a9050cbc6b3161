"""Round trips and commits without wbengine: the limits that the machine sets for a hop.

`python -m tools.benching.bare MEDIUM URL` is the process at the other end of the round trips.
"""

from __future__ import annotations

import socket
import sqlite3
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import amqp

ROOT = Path(__file__).resolve().parents[2]
#: Measurement of each medium.
TITLES = {
    "redis": "push and blocking pop of another process, and back, without a client library",
    "amqp": "message to another process and back, with py-amqp, not persistent",
    "filesystem": "commit of SQLite, as the folder does it",
}
QUEUES = ("bare.there", "bare.back")
WARM_UP, RUNS = 100, 1000
#: Maximum duration of a round trip.
TIMEOUT_SECONDS = 10.0

_LAST_LINES = b"\r\n$1\r\nx\r\n"


def _command(*words: str) -> bytes:
    lines = "".join(f"${len(word)}\r\n{word}\r\n" for word in words)
    return f"*{len(words)}\r\n{lines}".encode()


class _Redis:
    """A connection that pushes to one list and waits for another one, in one write."""

    def __init__(self, url: str, out: str, into: str) -> None:
        parts = urlsplit(url)
        self._socket = socket.create_connection((parts.hostname, parts.port), TIMEOUT_SECONDS)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._pop = _command("BLPOP", into, "0")
        self._push = _command("LPUSH", out, "x") + self._pop
        self._socket.sendall(_command("AUTH", unquote(parts.password or "")))
        self._socket.sendall(_command("SELECT", parts.path.strip("/") or "0"))

    def echo(self) -> None:
        self._socket.sendall(self._pop)
        while True:
            self._receive()
            self._socket.sendall(self._push)

    def trip(self) -> None:
        self._socket.sendall(self._push)
        self._receive()

    def _receive(self) -> None:
        data = b""
        while not data.endswith(_LAST_LINES):
            received = self._socket.recv(4096)
            if not received:
                raise ConnectionError("Redis closed the connection")
            data += received

    def close(self) -> None:
        self._socket.close()


class _Amqp:
    def __init__(self, url: str, out: str, into: str) -> None:
        parts = urlsplit(url)
        self._connection = amqp.Connection(
            f"{parts.hostname}:{parts.port}", parts.username, unquote(parts.password or ""),
            virtual_host=unquote(parts.path[1:]), login_method="PLAIN",
        )  # fmt: skip
        self._connection.connect()
        self._channel, self._out = self._connection.channel(), out
        for queue in QUEUES:
            self._channel.queue_declare(queue, auto_delete=False)
        self._received = 0
        self._channel.basic_consume(into, no_ack=True, callback=self._on_message)

    def _on_message(self, message: Any) -> None:
        self._received += 1

    def _send(self) -> None:
        self._channel.basic_publish(amqp.Message("x"), routing_key=self._out)

    def echo(self) -> None:
        while True:
            self._receive()
            self._send()

    def trip(self) -> None:
        self._send()
        self._receive()

    def _receive(self) -> None:
        before = self._received
        while self._received == before:
            self._connection.drain_events(timeout=TIMEOUT_SECONDS)

    def close(self) -> None:
        self._connection.close()


class _Sqlite:
    def __init__(self, folder: str) -> None:
        self._file = sqlite3.connect(f"{folder}/bare.db", isolation_level=None)
        self._file.execute("PRAGMA journal_mode = WAL")
        self._file.execute("PRAGMA synchronous = NORMAL")
        self._file.execute("CREATE TABLE message(n INTEGER PRIMARY KEY, data BLOB)")

    def trip(self) -> None:
        self._file.execute("INSERT INTO message(data) VALUES (?)", (b"x" * 500,))

    def close(self) -> None:
        self._file.close()


_CONNECTIONS = {"redis": _Redis, "amqp": _Amqp}


def measure(medium: str, place: dict[str, Any]) -> float:
    """Return the mean of the fastest tenth of the round trips, or commits, in microseconds."""
    if medium == "filesystem":
        return _mean(_Sqlite(place["folder"]))
    command = [sys.executable, "-m", __spec__.name, medium, place["url"]]
    with subprocess.Popen(command, cwd=ROOT) as other:
        try:
            return _mean(_CONNECTIONS[medium](place["url"], *QUEUES))
        finally:
            other.kill()


def _mean(connection: _Redis | _Amqp | _Sqlite) -> float:
    try:
        took = [_took(connection.trip) for _ in range(WARM_UP + RUNS)][WARM_UP:]
        return round(statistics.fmean(sorted(took)[: RUNS // 10]), 1)
    finally:
        connection.close()


def _took(trip: Callable[[], None]) -> float:
    began = time.perf_counter_ns()
    trip()
    return (time.perf_counter_ns() - began) / 1000


if __name__ == "__main__":
    _CONNECTIONS[sys.argv[1]](sys.argv[2], *reversed(QUEUES)).echo()
