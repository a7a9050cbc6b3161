"""Uses of clocks, random numbers and the environment by workflows, which no replay repeats."""

from __future__ import annotations

import contextlib
import os
import random
import sys
import sysconfig
import threading
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from wbengine import task
from wbengine.running import CURRENT

__all__ = ["Use", "observed"]

_CLOCKS: Final = frozenset({"time", "time_ns", "now", "utcnow", "today", "localtime", "gmtime"})
_RANDOM: Final = frozenset({"random", "getrandbits", "urandom", "uuid4", "uuid1"})
_NAMES: Final = _CLOCKS | _RANDOM

#: The generator of the functions of the module `random`.
_SHARED: Final = getattr(random.random, "__self__", None)

#: Modules whose functions pass on what the clock or the generator returned.
_PASSING: Final = (
    *(
        os.path.join(sysconfig.get_paths()["stdlib"], name)
        for name in ("uuid", "random", "secrets", "os.py", "_collections_abc")
    ),
    "<frozen os>",
    "<frozen _collections_abc>",
)
_READS_ENVIRONMENT: Final = type(os.environ).__getitem__.__code__
_FOREIGN: Final = (
    *{
        sysconfig.get_paths()[name] + os.sep
        for name in ("stdlib", "platstdlib", "purelib", "platlib")
    },
    f"{Path(__file__).resolve().parents[2]}{os.sep}",
    "<",
)
_RUNS_WORKFLOWS: Final = f"{os.sep}_runtime{os.sep}workflows{os.sep}"


class Use(NamedTuple):
    """Something that no replay repeats.

    :ivar line: file and line.
    """

    what: str
    replacement: str
    line: str


@contextlib.contextmanager
def observed() -> Iterator[list[Use]]:
    """Yield a list of what workflow functions use until the end of the block.

    It stays empty under another profiler, because a thread has only one.
    """
    found: list[Use] = []
    if sys.getprofile() is not None:
        yield found
        return

    def profile(frame: types.FrameType, event: str, argument: Any) -> None:
        if event == "c_call" and argument.__name__ in _NAMES and not _has_seed(argument):
            replacement = "steps.now()"
            if argument.__name__ in _RANDOM:
                replacement = "steps.random() or steps.uuid4()"
            note(frame, f"calls {_name(argument)}", replacement)
        elif event == "call" and frame.f_code is _READS_ENVIRONMENT:
            note(frame, "reads the environment of its process", "an input")

    def note(frame: types.FrameType, what: str, replacement: str) -> None:
        caller = _caller(frame)
        if caller is not None and _is_in_workflow(caller):
            use = Use(what, replacement, f"{caller.f_code.co_filename}:{caller.f_lineno}")
            if all(use.line != other.line for other in found):
                found.append(use)

    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        yield found
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def _has_seed(function: Any) -> bool:
    """Return whether it is a method of a generator that the program created."""
    owner = getattr(function, "__self__", None)
    return isinstance(owner, random.Random) and owner is not _SHARED


def _name(function: Any) -> str:
    owner = getattr(function, "__self__", None)
    prefix = getattr(owner, "__name__", None) or type(owner).__name__.lower()
    return f"{prefix}.{function.__name__}()"


def _caller(frame: types.FrameType) -> types.FrameType | None:
    """Return the frame in the code of the user, or None if another module made the call."""
    current: types.FrameType | None = frame
    while current is not None and current.f_code.co_filename.startswith(_PASSING):
        current = current.f_back
    if current is None or current.f_code.co_filename.startswith(_FOREIGN):
        return None
    return current


def _is_in_workflow(frame: types.FrameType) -> bool:
    call = CURRENT.get()
    if call is not None and not isinstance(call.task, task.Workflow):
        return False
    current: types.FrameType | None = frame
    while current is not None:
        if _RUNS_WORKFLOWS in current.f_code.co_filename:
            return True
        current = current.f_back
    return False
