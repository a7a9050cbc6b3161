"""Fixtures for stores, ledgers and transports."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.seams import stores
from tests.support import nightly, servers
from wbengine.persistence import backends, base

from . import places

#: Modules of which all tests on MySQL are quick: they found defects that PostgreSQL did not have.
QUICK_ON_MYSQL = ("test_ledgers.py", "test_transports.py")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """Mark two of three tests on MySQL as slow.

    They take three times the CPU time of those on PostgreSQL, and most of their code is the same.
    """
    for item in items:
        is_here = item.path.parent == Path(__file__).parent and item.path.name not in QUICK_ON_MYSQL
        if is_here and "mysql" in item.name and nightly.share(item.nodeid) % 3:
            item.add_marker(pytest.mark.slow)


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
