"""Operations of killed processes on rows of requests are linearizable on each store."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.crashing.histories import defects
from tests.support import fresh

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the clients are forked")


def record(url: str, ledger: str | None, histories: int, folder: Path, defect: str = "") -> Any:
    """Record and check histories in a process without threads; return figures."""
    arguments = url, ledger, histories, 1, str(folder / "logs"), defect
    return fresh.call("tests.crashing.histories.recording", "run", *arguments, real=False)


@pytest.mark.slow
@pytest.mark.parametrize("kind, histories", [
    ("memory", 8), ("filesystem", 4), ("redis", 8), ("postgresql", 3), ("mysql", 3),
    ("separate", 3),
])  # fmt: skip
def test_histories_of_killed_processes_are_linearizable(
    kind: str, histories: int, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    servers = {
        "redis": "redis_url", "postgresql": "postgresql_url", "mysql": "mariadb_url",
        "separate": "mariadb_url",
    }  # fmt: skip
    server = str(request.getfixturevalue(servers[kind])) if kind in servers else None
    url, ledger = server or f"filesystem://{tmp_path}/store", None
    if kind == "memory":
        url = "memory://linearizable"
    elif kind == "separate":  # A folder with a ledger in MySQL.
        url, ledger = f"filesystem://{tmp_path}/store", server
    figures = record(url, ledger, histories, tmp_path)
    assert figures["violations"] == figures["errors"] == []
    assert figures["operations"] > 300 * histories
    assert figures["kills"] > 0


@pytest.mark.parametrize("defect", defects.DEFECTS)
def test_histories_of_defective_ledger_are_not_linearizable(defect: str, tmp_path: Path) -> None:
    figures = record("memory://defective", None, 12, tmp_path, defect)
    assert figures["violations"]
