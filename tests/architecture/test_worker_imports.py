"""Modules that a worker process imports."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

FORBIDDEN = (
    "networkx",
    "redis",  # imported only for a Redis broker or ledger
    "sqlalchemy",  # imported only for a ledger in a database
    "wbengine.runtime",
    "wbengine._sql",
    "wbengine.arguments",
    "wbengine.engines.base",
    "wbengine.persistence",
    "wbengine.storage",
)

SCRIPT = """
import importlib, json, sys
importlib.import_module(sys.argv[1])
json.dump(sorted(sys.modules), sys.stdout)
"""


def loaded_by(module: str) -> list[str]:
    """Return the modules of a new process after it imported `module`."""
    process = subprocess.run(
        [sys.executable, "-c", SCRIPT, module], capture_output=True, text=True, timeout=60
    )
    assert process.returncode == 0, process.stderr
    names: list[str] = json.loads(process.stdout)
    return names


def forbidden(names: list[str]) -> list[str]:
    inside = tuple(f"{root}." for root in FORBIDDEN)
    return [name for name in names if name in FORBIDDEN or name.startswith(inside)]


@pytest.mark.parametrize(
    "module",
    [
        "wbengine.worker",
        "wbengine.engines.worker_based.worker",
        # Modules for child processes of a pool, and for tasks.
        "wbengine.pools",
        "wbengine.task",
    ],
)
def test_worker_does_not_import_forbidden_modules(module: str) -> None:
    names = loaded_by(module)
    assert module in names
    assert forbidden(names) == []


def test_forbidden_import_is_found() -> None:
    assert "networkx" in forbidden(loaded_by("networkx"))
    assert forbidden(["wbengine.storage_of_old", "wbengine.runtime.plan"]) == [
        "wbengine.runtime.plan"
    ]
