"""Count calls of the package's own functions, in all threads."""

from __future__ import annotations

import socket
import struct
import sys
import threading
import weakref
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

import wbengine

ROOT: Final = f"{Path(wbengine.__file__).parent}/"

#: Parts of the package by the beginnings of their paths; the first that fits.
STAGES: Final = {
    "runtime/": "core",
    "_tasks/": "tasks",
    "persistence/": "records",
    "storage.py": "records",
    "arguments.py": "records",
    "engines/worker_based/ledger/": "ledger",
    "engines/worker_based/": "wire",
    "transports/": "transports",
}

#: Functions in one version of Python, and in another none: they are part of what they stand in.
_INLINED: Final = ("<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>")

#: Methods of sockets, and what they are counted as.
_WRITES: Final = ("send", "sendall")
WRITES: Final = "writes to sockets"
#: Of those, to a socket of this process: what wakes up a thread that waits for a connection.
WAKES: Final = "threads woken by sockets"

#: Of Linux's `struct tcp_info`: bytes that the other side has got, and bytes from there.
_BYTES: Final = struct.Struct("=120xQQ")


def stage_of(path: str) -> str | None:
    """The part of the package that a file belongs to; None: it is none of ours."""
    if not path.startswith(ROOT):
        return None
    name = path.removeprefix(ROOT)
    return next((stage for start, stage in STAGES.items() if name.startswith(start)), "rest")


class Calls:
    """While it is entered, calls are counted by stage, and how often sockets are written to."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._known: dict[CodeType, str | None] = {}
        self._before: Any = None
        # Connections, and what they can be asked by when whoever has them has closed them.
        self._seen: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        self._kept: list[socket.socket] = []

    def __enter__(self) -> Calls:
        self._before = sys.getprofile()
        threading.setprofile(self._on)
        sys.setprofile(self._on)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(self._before)
        threading.setprofile(None)
        while self._kept:
            self._kept.pop().close()

    def traffic(self) -> dict[str, int]:
        """Bytes that all connections have carried so far, as the system counts them."""
        sent = received = 0
        for one in [*self._kept]:
            told = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES.size)
            acked, got = _BYTES.unpack(told)
            sent, received = sent + acked - 1, received + got  # that a connection is made is one
        return {"bytes to the broker": sent, "bytes from the broker": received}

    def _keep(self, connection: socket.socket) -> None:
        if connection not in self._seen and connection.family != socket.AF_UNIX:
            self._seen.add(connection)
            self._kept.append(connection.dup())

    def _on(self, frame: FrameType, event: str, argument: object) -> None:
        if event == "c_call" and getattr(argument, "__name__", "") in _WRITES:
            to = getattr(argument, "__self__", None)
            if isinstance(to, socket.socket):
                self.counts[WAKES if to.family == socket.AF_UNIX else WRITES] += 1
                self._keep(to)
        if event != "call":
            return
        code = frame.f_code
        try:
            found = self._known[code]
        except KeyError:
            found = self._known[code] = self._find(code)
        if found is not None:
            self.counts[found] += 1

    def _find(self, code: CodeType) -> str | None:
        return None if code.co_name in _INLINED else stage_of(code.co_filename)
