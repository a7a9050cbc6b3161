"""Functions of tests that are called in a fresh interpreter: it has no threads, so it may fork."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent

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


def imported(emit: Any) -> set[str]:
    """What is imported in the process of a pool that this is called in."""
    return set(sys.modules)
