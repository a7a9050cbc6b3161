"""A new Python interpreter for a test: it runs a script or calls one function.

Tests of imports need it. The interpreter has no threads, so its code may fork.
"""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import AbstractContextManager
from typing import Any

from tests.support import python

_PROGRAM = """
import importlib, json, sys
module, function, arguments = json.load(sys.stdin)
print(json.dumps(getattr(importlib.import_module(module), function)(*arguments)))
"""


def run(
    script: str, *arguments: str, code: int | None = 0, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run a script, check its exit code unless `code` is None, and return its output."""
    done = python.run(
        ["-c", script, *arguments],
        real=True,
        capture_output=True,
        text=True,
        **{"cwd": python.REPOSITORY, **options},
    )
    assert code in (None, done.returncode), done.stderr
    return done


def call(module: str, function: str, *arguments: Any, real: bool = True) -> Any:
    """Return the result of a function. Arguments and result are JSON values."""
    done = python.run(
        ["-W", "error", "-c", _PROGRAM],
        real=real,
        input=json.dumps([module, function, arguments]),
        capture_output=True,
        text=True,
        cwd=python.REPOSITORY,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def process(*arguments: str, **options: Any) -> AbstractContextManager[subprocess.Popen[Any]]:
    """Run Python with these arguments, and kill it at the end of the block if it still runs."""
    return python.running(arguments, real=True, **options)


def imported(emit: Any) -> set[str]:
    """Return the modules that are imported in the process that calls this."""
    return set(sys.modules)
