"""Implementations have the signatures of the interfaces that callers use."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pytest

from wbengine.persistence import base as persistence
from wbengine.persistence.backends import _directory as directories
from wbengine.persistence.backends import _memory as memories
from wbengine.persistence.backends._sql import backend as databases
from wbengine.transports import _ledger as ledgers
from wbengine.transports._folder import folder_ledger
from wbengine.transports._memory import memory_broker
from wbengine.transports._redis import redis_ledger
from wbengine.transports._sql import sql_ledger

MODULES = (memory_broker, folder_ledger, redis_ledger, sql_ledger, memories, directories, databases)
INTERFACES = (ledgers.Ledger, persistence.Backend, persistence.Connection)


def implementations(interface: type[Any]) -> Iterator[type[Any]]:
    for each in interface.__subclasses__():
        if each.__module__.startswith("wbengine."):
            yield each
        yield from implementations(each)


def parameters(method: Any) -> list[tuple[str, Any, Any]]:
    return [
        (each.name, each.kind, each.default)
        for each in inspect.signature(method).parameters.values()
    ]


@pytest.mark.parametrize("interface", INTERFACES, ids=lambda each: each.__qualname__)
def test_methods_have_the_parameters_and_defaults_of_their_interface(interface: Any) -> None:
    classes = set(implementations(interface))
    assert len(classes) >= 2
    wrong = [
        f"{cls.__module__}.{cls.__qualname__}.{name}"
        for cls in classes
        for name in sorted(interface.__abstractmethods__ & vars(cls).keys())
        if inspect.isfunction(vars(cls)[name])
        if parameters(vars(cls)[name]) != parameters(getattr(interface, name))
    ]
    assert wrong == []
