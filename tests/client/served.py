"""A dashboard with a database and a conductor, as clients see it."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from typing import Any

from tests.support import conducted

FLOWS = "tests.client.flows"


class Server:
    """A dashboard and, if needed, a conductor."""

    def __init__(self, backend: Any, site: Any) -> None:
        self.backend = backend
        self.url = site.address

    def conducting(self) -> AbstractContextManager[None]:
        """Run a conductor during a `with` block."""
        return conducted.conducting(self.backend)

    def count(self) -> int:
        with contextlib.closing(self.backend.get_connection()) as connection:
            return int(connection.count_flows())
