"""A dashboard with a database, and requests of programs to its API."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from tests.dashboard.conftest import TOKENS, site
from tests.support import conducted
from wbengine.conductors import backends as conductors
from wbengine.jobs import backends as boards


class Server:
    """A dashboard with a database, as its users see it."""

    def __init__(self, backend: Any) -> None:
        self.backend = backend
        self.browser = site(self)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Run a conductor during a `with` block."""
        with boards.backend("b", "sql", persistence=self.backend) as board:
            conductor = conductors.fetch("nonblocking", "c", board, persistence=self.backend)
            with conducted.running(conductor):
                yield

    def post(self, path: str, body: Any = None, user: str = "olga", **headers: str) -> Any:
        bearer = {"authorization": f"Bearer {TOKENS[user]}", **headers}
        return self.browser.post(f"/api/v1/{path}", json=body or {}, headers=bearer)

    def get(self, path: str) -> Any:
        bearer = {"authorization": f"Bearer {TOKENS['victor']}"}
        return self.browser.get(f"/api/v1/{path}", headers=bearer).json()
