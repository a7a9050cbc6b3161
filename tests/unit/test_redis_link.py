"""Connections to Redis that fail."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from redis import exceptions as errors

from wbengine.transports._redis import redis_link


class Connection:
    """Connection to a server that is not Redis."""

    is_open = True

    def connect(self) -> None: ...

    def pack_commands(self, commands: Any) -> list[bytes]:
        return [b""]

    def send_packed_command(self, command: Any) -> None:
        raise errors.InvalidResponse("HTTP/1.1 400")

    def disconnect(self) -> None:
        self.is_open = False


def test_connection_to_another_server_is_closed_after_its_first_reply() -> None:
    connection = Connection()
    place: Any = SimpleNamespace(connect=lambda: connection, tls=True, shown="redis://x")
    link = redis_link.Link(place)
    with pytest.raises(errors.ConnectionError, match="the server is not a Redis"):
        link.call("PING")
    assert link.broken and not connection.is_open
