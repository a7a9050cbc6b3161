"""Which queues a message goes to, as a Redis told it last."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from wbengine.transports import _routing


class Routes:
    """The routing of one version; never changes."""

    __slots__ = ("_tables", "version")

    def __init__(
        self, version: str = ":", tables: Mapping[str, _routing.Table] | None = None
    ) -> None:
        self.version = version
        self._tables = tables or {}

    @classmethod
    def read(cls, told: Any) -> Routes:
        """What the script `ROUTES` returned."""
        version, kinds, _ = told
        bound: dict[str, list[tuple[str, str]]] = {}
        for queue, exchange, key in bindings(told):
            bound.setdefault(exchange, []).append((key, queue))
        names = [name.decode() for name in kinds[::2]]
        tables = {
            name: _routing.Table(kind.decode(), bound.get(name, ()))
            for name, kind in zip(names, kinds[1::2], strict=True)
        }
        return cls(version.decode(), tables)

    def of(self, exchange: str, key: str) -> Sequence[str]:
        """The queues of what is published to an exchange; to '', of what is put into one queue."""
        if not exchange:
            return (key,)
        table = self._tables.get(exchange)
        return () if table is None else table.route(key)


def bindings(told: Any) -> Iterator[tuple[str, str, str]]:
    """All (queue, exchange, routing key) of what the script `ROUTES` returned."""
    for binding in told[2]:
        exchange, queue, key = binding.decode("utf-8", "surrogateescape").split("\0", 2)
        yield queue, exchange, key
