"""Ten thousand of these: `tools/chaos --kills 25 --firings 10000 --store postgresql`."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos import firings
from tests.contract import places
from tests.support import servers


@pytest.fixture(params=["sqlite", "postgresql"])
def uri(
    request: pytest.FixtureRequest, tmp_path: Path, database_servers: servers.Lazy
) -> Iterator[str]:
    with places.place(request.param, tmp_path, database_servers) as conf:
        yield conf["connection"]


def test_each_tick_is_fired_once_while_processes_are_killed(uri: str, tmp_path: Path) -> None:
    found = firings.run(uri, tmp_path, firings=200, kills=4, seed=random.randrange(1_000_000))
    assert found["firings"] >= 200 and not found["problems"], found
