"""A server for clients."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.client.served import FLOWS, Server
from tests.dashboard import site as sites
from wbengine.engines import _allowed
from wbengine.persistence import backends


@pytest.fixture
def stored(tmp_path: Path) -> Iterator[Any]:
    _allowed.set_for_process([FLOWS])
    with contextlib.closing(backends.fetch(f"sqlite:///{tmp_path}/flows.db")) as backend:
        with contextlib.closing(backend.get_connection()) as connection:
            connection.upgrade()
        yield backend
    _allowed.set_for_process(None)


@pytest.fixture
def server(stored: Any) -> Iterator[Server]:
    with sites.running(stored, allow_actions=True, show_values=True) as site:
        yield Server(stored, site)
