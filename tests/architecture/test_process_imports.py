"""Modules that processes of workers and engines import."""

from __future__ import annotations

import json

import pytest

from tests.support import fresh

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


RUN = """
import json, sys
from wbengine import engines
from wbengine.patterns import linear_flow
engines.run(linear_flow.Flow("empty"))
json.dump(sorted(sys.modules), sys.stdout)
"""


def loaded_by(*arguments: str, script: str = SCRIPT) -> list[str]:
    """Return the modules that a new process has imported at the end of a script."""
    names: list[str] = json.loads(fresh.run(script, *arguments).stdout)
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


def test_engine_without_store_does_not_import_databases_and_brokers() -> None:
    names = loaded_by(script=RUN)
    assert "wbengine.engines.base" in names
    assert {"sqlalchemy", "redis", "kombu", "networkx"} & set(names) == set()


def test_forbidden_import_is_found() -> None:
    assert "networkx" in forbidden(loaded_by("networkx"))
    assert forbidden(["wbengine.storage_of_old", "wbengine.runtime.plan"]) == [
        "wbengine.runtime.plan"
    ]
