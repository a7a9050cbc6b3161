"""Count calls of the package's own functions, in all threads."""

from __future__ import annotations

import socket
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

import wbengine

ROOT: Final = f"{Path(wbengine.__file__).parent}/"

#: Parts of the package by the beginnings of their paths; the first that fits.
STAGES: Final = {
    "_core/": "core",
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


def stage_of(path: str) -> str | None:
    """The part of the package that a file belongs to; None: it is none of ours."""
    if not path.startswith(ROOT):
        return None
    name = path.removeprefix(ROOT)
    return next((stage for start, stage in STAGES.items() if name.startswith(start)), "rest")


class Calls:
    """While it is entered, calls are counted by stage, and how often a socket is written to.

    And, of any package, those that are `named`: by `(path, name of the function)`.
    """

    def __init__(self, named: Callable[[str, str], str | None] | None = None) -> None:
        self.counts: Counter[str] = Counter()
        self._named = named
        self._known: dict[CodeType, str | None] = {}
        self._before: Any = None

    def __enter__(self) -> Calls:
        self._before = sys.getprofile()
        threading.setprofile(self._on)
        sys.setprofile(self._on)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(self._before)
        threading.setprofile(None)

    def _on(self, frame: FrameType, event: str, argument: object) -> None:
        if event == "c_call" and getattr(argument, "__name__", "") in _WRITES:
            self.counts[WRITES] += isinstance(getattr(argument, "__self__", None), socket.socket)
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
        if self._named is not None:
            found = self._named(code.co_filename, code.co_name)
            if found is not None:
                return found
        return None if code.co_name in _INLINED else stage_of(code.co_filename)
