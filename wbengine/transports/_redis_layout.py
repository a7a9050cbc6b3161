"""What one connection declared in its part of a Redis."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import Any

from wbengine import exceptions
from wbengine.transports import _redis_routes, _redis_scripts
from wbengine.transports._redis_link import Client, Place, Script
from wbengine.transports._store import Store

__all__ = ["Declaring"]


class Declaring(Store):
    """A store that declares again what it declared, should the server have lost it."""

    def __init__(self, where: Place) -> None:
        self.place = where
        self._client = Client(where, exceptions.TransportFailure)
        self._run = self._client.run
        # What is declared again after a loss, and where the first of it was declared.
        self._where = ""
        self._exchanges: dict[str, str] = {}
        self._queues: dict[str, bool] = {}
        self._bindings: dict[str, None] = {}

    def declare_exchange(self, name: str, kind: str) -> None:
        self._exchanges[name] = kind
        self._declare(_redis_scripts.EXCHANGE, name, kind)

    def exchange_kind(self, name: str) -> str | None:
        kind = self._run(_redis_scripts.KIND, name)
        return None if kind is None else str(kind.decode())

    def delete_exchange(self, name: str) -> None:
        self._exchanges.pop(name, None)
        self._forget(lambda exchange, _: exchange == name)
        self._run(_redis_scripts.DROP_EXCHANGE, name)

    def declare_queue(self, queue: str) -> None:
        self._queues.setdefault(queue, False)
        self._declare(_redis_scripts.QUEUE, queue, 0)

    def own(self, queue: str) -> None:
        self._queues[queue] = True
        self._declare(_redis_scripts.QUEUE, queue, 1)

    def has_queue(self, queue: str) -> bool:
        return bool(self._run(_redis_scripts.HAS, queue))

    def delete_queue(self, queue: str) -> int:
        self._queues.pop(queue, None)
        self._forget(lambda _, bound: bound == queue)
        return int(self._run(_redis_scripts.DROP_QUEUE, queue))

    def _declare(self, script: Script, *args: Any) -> None:
        where = self._run(script, uuid.uuid4().hex, *args).decode()
        self._where = self._where or where

    def _forget(self, gone: Any) -> None:
        for binding in [b for b in tuple(self._bindings) if gone(*b.split("\0")[:2])]:
            self._bindings.pop(binding, None)

    def purge(self, queue: str) -> int:
        return int(self._run(_redis_scripts.PURGE, queue))

    def size(self, queue: str) -> int:
        return int(self._run(_redis_scripts.SIZE, queue))

    def bind(self, exchange: str, key: str, queue: str) -> None:
        binding = f"{exchange}\0{queue}\0{key}"
        self._bindings[binding] = None
        self._run(_redis_scripts.BIND, binding)

    def unbind(self, exchange: str, key: str, queue: str) -> None:
        binding = f"{exchange}\0{queue}\0{key}"
        self._bindings.pop(binding, None)
        self._run(_redis_scripts.UNBIND, binding)

    def bindings(self) -> Iterable[tuple[str, str, str]]:
        return _redis_routes.bindings(self._run(_redis_scripts.ROUTES))

    def _redeclare(self) -> None:
        for name, kind in tuple(self._exchanges.items()):
            self._declare(_redis_scripts.EXCHANGE, name, kind)
        for queue, owned in tuple(self._queues.items()):
            self._declare(_redis_scripts.QUEUE, queue, int(owned))
        for binding in tuple(self._bindings):
            self._run(_redis_scripts.BIND, binding)
