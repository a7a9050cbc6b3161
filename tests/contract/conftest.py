"""Fixtures for stores, ledgers and transports."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.seams import stores
from tests.support import servers
from wbengine.persistence import backends, base

from . import places


@pytest.fixture
def folder() -> Iterator[Path]:
    """Temporary folder, in memory if possible, because the tests create many files."""
    shared = "/dev/shm"
    parent = shared if os.access(shared, os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=parent, ignore_cleanup_errors=True) as path:
        yield Path(path)


@pytest.fixture(params=stores.KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """Kind of the store."""
    kind_name: str = request.param
    return kind_name


@pytest.fixture(scope="session")
def shared_places(
    tmp_path_factory: pytest.TempPathFactory, database_servers: servers.Databases
) -> Iterator[places.Places]:
    folder = tmp_path_factory.mktemp("stores")
    with contextlib.closing(places.Places(folder, database_servers)) as shared:
        yield shared


@pytest.fixture
def conf(kind: str, shared_places: places.Places) -> stores.Conf:
    """Configuration of a store of each kind with the current layout."""
    return shared_places.conf(kind)


@pytest.fixture
def backend(conf: stores.Conf) -> Iterator[base.Backend]:
    """Empty store."""
    with contextlib.closing(backends.fetch(conf)) as store:
        yield store
        with store.get_connection() as connection:
            connection.clear_all()


@pytest.fixture
def connection(backend: base.Backend) -> Iterator[base.Connection]:
    with backend.get_connection() as connection:
        yield connection
