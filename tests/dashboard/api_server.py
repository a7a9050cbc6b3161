"""A dashboard with a database, and requests of programs to its API."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from tests.dashboard.conftest import TOKENS, site
from tests.support import conducted


class Server:
    """A dashboard with a database, as its users see it."""

    def __init__(self, backend: Any) -> None:
        self.backend = backend
        self.browser = site(self)

    def running(self) -> AbstractContextManager[None]:
        """Run a conductor during a `with` block."""
        return conducted.conducting(self.backend)

    def post(self, path: str, body: Any = None, user: str = "olga", **headers: str) -> Any:
        bearer = {"authorization": f"Bearer {TOKENS[user]}", **headers}
        return self.browser.post(f"/api/v1/{path}", json=body or {}, headers=bearer)

    def get(self, path: str) -> Any:
        bearer = {"authorization": f"Bearer {TOKENS['victor']}"}
        return self.browser.get(f"/api/v1/{path}", headers=bearer).json()
