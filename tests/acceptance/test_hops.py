"""Number of files of the package that one task enters, from `engines.load` to the end."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import fresh
from tests.support.brokers import broker_url

#: Maximum number of files by engine and broker.  A change may lower a number, but not raise one.
CEILINGS = {
    "serial": 57,
    "parallel": 62,
    "worker-based memory": 112,
    "worker-based filesystem": 121,
    "worker-based redis": 122,
    "worker-based rabbitmq": 117,
}
#: A lower count means that the trace is incomplete.
LEAST = 15


@pytest.mark.parametrize("kind", CEILINGS)
def test_task_enters_few_files(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    engine, _, broker = kind.partition(" ")
    url = broker_url(broker, request, tmp_path) if broker else None
    options = {"executor": "threads"} if engine == "parallel" else {}
    files = fresh.call("tests.support.hops", "entered", engine, url, options)
    print(f"{kind}: {len(files)} files", *files, sep="\n  ")
    assert LEAST <= len(files) <= CEILINGS[kind]
