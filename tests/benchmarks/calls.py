"""Count calls of the package's functions in all threads."""

from __future__ import annotations

import socket
import struct
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

import wbengine

ROOT: Final = f"{Path(wbengine.__file__).parent}/"

#: Path prefix -> part of the package; the first match applies.
STAGES: Final[Mapping[str, str | None]] = {
    # Replacements of `threading` classes, whose calls are not counted either.
    "_concurrency/conditions.py": None,
    "_runtime/": "core",
    "_tasks/arguments.py": "records",
    "_tasks/": "tasks",
    "persistence/": "records",
    "storage.py": "records",
    "engines/worker_based/ledger.py": "ledger",
    "transports/_ledger.py": "ledger",
    "transports/_table_ledger.py": "ledger",
    "transports/_folder/folder_ledger.py": "ledger",
    "transports/_redis/redis_ledger.py": "ledger",
    "transports/_sql/sql_ledger.py": "ledger",
    "engines/worker_based/": "wire",
    "transports/": "transports",
}

#: Functions that some versions of Python inline: they belong to the enclosing function.
_INLINED: Final = ("<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>")

#: Methods of sockets that are counted as writes.
_WRITES: Final = ("send", "sendall")
WRITES: Final = "writes to sockets"
#: Writes to sockets of this process, which wake a thread.
WAKES: Final = "threads woken by sockets"

#: Fields of Linux's `struct tcp_info`: acknowledged and received bytes.
_BYTES: Final = struct.Struct("=120xQQ")


def stage_of(path: str) -> str | None:
    """Return the part of the package that contains a file, or None if it is outside."""
    if not path.startswith(ROOT):
        return None
    name = path.removeprefix(ROOT)
    return next((stage for start, stage in STAGES.items() if name.startswith(start)), "rest")


class Calls:
    """Context that counts calls by stage, and writes to sockets."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._known: dict[CodeType, str | None] = {}
        self._before: Any = None
        # Connections, and duplicates that can be queried after a connection was closed.
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
        """Return the bytes of all connections so far, as counted by the system."""
        sent = received = 0
        for one in [*self._kept]:
            info = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES.size)
            acked, got = _BYTES.unpack(info)
            # establishing a connection counts as one byte
            sent, received = sent + acked - 1, received + got
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
