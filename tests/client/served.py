"""A dashboard with a database and a conductor, as clients see it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from tests.support import conducted
from wbengine.conductors import backends as conductors
from wbengine.jobs import backends as boards

FLOWS = "tests.client.flows"


class Server:
    """A dashboard and, if needed, a conductor."""

    def __init__(self, backend: Any, site: Any) -> None:
        self.backend = backend
        self.url = site.address

    @contextlib.contextmanager
    def conducting(self) -> Iterator[None]:
        with boards.backend("b", "sql", persistence=self.backend) as board:
            conductor = conductors.fetch("nonblocking", "c", board, persistence=self.backend)
            with conducted.running(conductor):
                yield

    def count(self) -> int:
        with contextlib.closing(self.backend.get_connection()) as connection:
            return int(connection.count_flows())
