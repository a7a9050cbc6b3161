"""A fresh interpreter for tests: a function is called in it (it has no threads, so it may fork), or
a program runs in it for as long as a test looks on."""

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


def call(module: str, function: str, *arguments: Any) -> Any:
    """What a function returned; arguments and results are what JSON can say."""
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
    """What Python does with these arguments; whatever becomes of the test, it has ended then."""
    with subprocess.Popen([sys.executable, *arguments], **options) as made:
        try:
            yield made
        finally:
            if made.poll() is None:
                made.kill()


def imported(emit: Any) -> set[str]:
    """What is imported in the process of a pool that this is called in."""
    return set(sys.modules)
