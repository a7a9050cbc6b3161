"""The module `__main__` in child processes.

`multiprocessing` runs a script again when a child starts. It does not run the `__main__.py` of a
package, a folder or a zip file, which often has no main guard: a child runs this file only when a
call refers to a name in it.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import runpy
import sys
import types
from collections.abc import Callable, Iterator
from importlib import machinery
from typing import Any, Final, NamedTuple

__all__ = ["GUARD_HINT", "Source", "hidden_unless_file", "install", "is_running", "source"]

#: Name under which children run `__main__`, so that its main guard is false.
_NAME_IN_CHILDREN: Final = "__mp_main__"

GUARD_HINT: Final = (
    "each child process imports the program that was started: put its actions below `if"
    ' __name__ == "__main__":`'
)

_running = False


class Source(NamedTuple):
    """Name and file of the spec of `__main__`. Without a name, children cannot import it."""

    name: str = ""
    file: str = ""


def source() -> Source | None:
    """Return where children find the module `__main__`. None: `multiprocessing` runs it itself."""
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is None:
        return None if _has_file(main) else Source()
    if spec.name.rpartition(".")[2] != "__main__":
        return None
    return Source(spec.name, os.path.abspath(spec.origin or ""))


def is_running() -> bool:
    """Return whether this is a child that is running the module `__main__` of its parent."""
    return _running or getattr(multiprocessing.current_process(), "_inheriting", False)


@contextlib.contextmanager
def hidden_unless_file() -> Iterator[None]:
    """Hide a file that does not exist, such as "<stdin>", from `multiprocessing`."""
    main = sys.modules["__main__"]
    if _has_file(main) or not hasattr(main, "__file__"):
        yield
        return
    file = main.__file__
    del main.__file__
    try:
        yield
    finally:
        main.__file__ = file


def _has_file(main: types.ModuleType) -> bool:
    return os.path.isfile(getattr(main, "__file__", None) or "")


def install(where: Source, after: Callable[[], object]) -> None:
    """In a child: set a module `__main__` that runs that of the parent when an attribute is read.

    It runs once, and then `after` is called.
    """
    main = types.ModuleType("__main__")
    problem: str | None = "move it into a module"
    if where.name:
        main.__spec__ = machinery.ModuleSpec(where.name, None, origin=where.file)
        problem = None  # unknown: the module has not run

    def read(name: str) -> Any:
        nonlocal problem
        if not name.startswith("__"):
            if problem is None:
                problem = ""
                try:
                    vars(main).update(_run(where))
                except BaseException as error:
                    problem = f"{type(error).__name__}: {error}"
                after()
                if name in vars(main):
                    return vars(main)[name]
            if problem:
                raise ImportError(
                    f"child processes cannot import {name!r} from the main program: {problem}"
                )
        raise AttributeError(f"module '__main__' has no attribute {name!r}")

    vars(main)["__getattr__"] = read
    sys.modules["__main__"] = sys.modules[_NAME_IN_CHILDREN] = main


def _run(where: Source) -> dict[str, Any]:
    global _running
    _running = True
    try:
        if where.name == "__main__":  # In a folder or a zip file.
            return runpy.run_path(os.path.dirname(where.file), run_name=_NAME_IN_CHILDREN)
        return runpy.run_module(where.name, run_name=_NAME_IN_CHILDREN, alter_sys=True)
    finally:
        _running = False
