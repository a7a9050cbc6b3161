"""A worker process loads only what running tasks needs: it starts fast, and cannot use the rest."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

FORBIDDEN = (
    "networkx",
    "redis",  # until it is the broker, or a ledger there is named
    "sqlalchemy",  # until a ledger in a database is named
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
    """The modules in a fresh process that imported `module`."""
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
        # The children of a worker's pool, and the tasks it runs.
        "wbengine.pools",
        "wbengine.task",
    ],
)
def test_a_worker_does_not_load(module: str) -> None:
    names = loaded_by(module)
    assert module in names
    assert forbidden(names) == []


def test_the_check_sees_what_it_should() -> None:
    assert "networkx" in forbidden(loaded_by("networkx"))
    assert forbidden(["wbengine.storage_of_old", "wbengine.runtime.plan"]) == [
        "wbengine.runtime.plan"
    ]
