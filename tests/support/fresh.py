"""A new Python interpreter for a test: it runs a script or calls one function.

The interpreter has no threads, so its code may fork.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]

_PROGRAM = """
import importlib, json, sys
module, function, arguments = json.load(sys.stdin)
print(json.dumps(getattr(importlib.import_module(module), function)(*arguments)))
"""


def run(
    script: str, *arguments: str, code: int | None = 0, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run a script, check its exit code unless `code` is None, and return its output."""
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        capture_output=True,
        text=True,
        timeout=100,
        **{"cwd": REPOSITORY, **options},
    )
    assert code in (None, done.returncode), done.stderr
    return done


def call(module: str, function: str, *arguments: Any) -> Any:
    """Return the result of a function. Arguments and result are JSON values."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", _PROGRAM],
        input=json.dumps([module, function, arguments]),
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@contextlib.contextmanager
def process(*arguments: str, **options: Any) -> Iterator[subprocess.Popen[Any]]:
    """Run Python with these arguments, and kill it at the end of the block if it still runs."""
    with subprocess.Popen([sys.executable, *arguments], **options) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def imported(emit: Any) -> set[str]:
    """Return the modules that are imported in the process that calls this."""
    return set(sys.modules)
