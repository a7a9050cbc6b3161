"""Record the calls of named functions of a process, with a clock that all processes share.

`python recording.py MODULE ARGUMENT...` runs a module like `python -m`, and records the functions
that the configuration of the driver names.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import json
import runpy
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

#: Factories of locks. Only acquisitions that block are recorded.
LOCKS = ("threading:Lock", "threading:RLock")

#: (number of the function, thread, start, end), in nanoseconds.
_calls: list[tuple[int, int, int, int]] = []


def find(name: str) -> tuple[Any, str, Any]:
    """Return the owner, the attribute and the definition of `module:[class.]function`.

    :raises LookupError: if it does not exist. Inherited functions do not count.
    """
    module, _, path = name.partition(":")
    *classes, attribute = path.split(".")
    try:
        owner: Any = importlib.import_module(module)
        for each in classes:
            owner = vars(owner)[each]
        return owner, attribute, vars(owner)[attribute]
    except (ImportError, KeyError) as error:
        raise LookupError(f"the recorded function {name} does not exist") from error


def install(names: Sequence[str], path: Path) -> None:
    """Record these functions from now on. The process writes the calls to a file at its end.

    :raises LookupError: if a function does not exist.
    """
    definitions = [find(name) for name in names]
    for number, (name, (owner, attribute, definition)) in enumerate(
        zip(names, definitions, strict=True)
    ):
        wrap = _recorded_factory if name in LOCKS else _recorded
        setattr(owner, attribute, wrap(number, definition))
    atexit.register(lambda: path.write_text(json.dumps(_calls), encoding="utf-8"))


def _recorded(number: int, definition: Any) -> Any:
    """Return a replacement of a function, class method, static method or property."""
    if isinstance(definition, property):
        return property(_recorded(number, definition.fget), definition.fset)
    if isinstance(definition, classmethod | staticmethod):
        return type(definition)(_recorded(number, definition.__func__))
    append, clock, thread = _calls.append, time.perf_counter_ns, threading.get_ident

    @functools.wraps(definition)
    def call(*args: Any, **kwargs: Any) -> Any:
        start = clock()
        try:
            return definition(*args, **kwargs)
        finally:
            append((number, thread(), start, clock()))

    return call


class _RecordedLock:
    """A lock whose blocking acquisitions are recorded."""

    def __init__(self, number: int, lock: Any) -> None:
        self._lock = lock
        self._acquire = lock.acquire
        self._block = _recorded(number, lock.acquire)
        self.release = lock.release

    def acquire(self, blocking: bool = True, timeout: float = -1) -> Any:
        return self._acquire(False) or (blocking and self._block(True, timeout))

    def __enter__(self) -> Any:
        return self._acquire(False) or self._block()

    def __exit__(self, *problem: object) -> None:
        self.release()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lock, name)


def _recorded_factory(number: int, make: Callable[[], Any]) -> Callable[[], Any]:
    return lambda: _RecordedLock(number, make())


def main() -> None:
    import place

    del sys.argv[0]
    install(place.RECORD, place.FOLDER / "worker.calls")
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
