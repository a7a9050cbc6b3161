"""A process with TaskFlow for all tests."""

from __future__ import annotations

import contextlib
import importlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.interop.peers import TaskFlow
from tests.support.brokers import Brokers, Place


@pytest.fixture(scope="session")
def taskflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TaskFlow]:
    with contextlib.closing(TaskFlow(tmp_path_factory.mktemp("taskflow"))) as side:
        yield side


@pytest.fixture(params=["taskflow", "wbengine"])
def load(request: pytest.FixtureRequest) -> Callable[[str], Any]:
    """Return a function that imports a module of TaskFlow or its counterpart."""
    if request.param == "taskflow":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # TaskFlow imports deprecated modules
            importlib.import_module("taskflow.engines.action_engine.engine")
    return lambda name: importlib.import_module(f"{request.param}.{name}")


@pytest.fixture(params=["redis", "rabbitmq"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def url(kind: str, broker_servers: Brokers) -> Iterator[Place]:
    """Yield a separate place of a broker of that kind."""
    with broker_servers[kind].place() as place:
        yield place
