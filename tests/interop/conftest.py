"""A process with TaskFlow for all tests."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from tests.interop.peers import TaskFlow
from tests.support.brokers import Brokers, Place


@pytest.fixture(scope="session")
def taskflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TaskFlow]:
    with contextlib.closing(TaskFlow(tmp_path_factory.mktemp("taskflow"))) as side:
        yield side


@pytest.fixture(params=["redis", "rabbitmq"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def url(kind: str, broker_servers: Brokers) -> Iterator[Place]:
    """Yield a separate place of a broker of that kind."""
    with broker_servers[kind].place() as place:
        yield place
