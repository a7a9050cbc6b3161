"""Fixtures: kinds of engines."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator

import pytest

from tests.contract.flows import kinds, tasks
from tests.support import servers


@pytest.fixture(scope="module")
def started(
    tmp_path_factory: pytest.TempPathFactory, database_servers: servers.Databases
) -> Iterator[Callable[[str], kinds.Kind]]:
    """Function that starts each kind on first use, once per module."""
    with contextlib.ExitStack() as stack:

        @functools.cache
        def start(name: str) -> kinds.Kind:
            folder = tmp_path_factory.mktemp(name)
            if name in kinds.DATABASES:
                url = stack.enter_context(database_servers[name].database())
                serving = kinds.on_workers(name, url, folder, tasks.__name__)
                return stack.enter_context(serving)
            return stack.enter_context(kinds.kind(name, folder, tasks.__name__))

        yield start


@pytest.fixture
def kind(request: pytest.FixtureRequest, started: Callable[[str], kinds.Kind]) -> kinds.Kind:
    return started(request.param)
