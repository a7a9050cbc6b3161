"""A dashboard with a database, and requests of programs to its API."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from typing import Any

from tests.dashboard.conftest import TOKENS, bearer, site
from tests.support import conducted
from wbengine.conductors import _bulks
from wbengine.persistence._bulk_records import COMPLETE


def carry_out(store: Any) -> None:
    """Carry out all stored operations, as a conductor does."""
    service = _bulks.BulkService(store, "serve")
    with contextlib.closing(store.get_connection()) as connection:
        while any(bulk.state != COMPLETE for bulk in connection.bulks.latest()):
            service.run_due()


class Server:
    """A dashboard with a database, as its users see it."""

    def __init__(self, backend: Any) -> None:
        self.backend = backend
        self.browser = site(self)

    def running(self) -> AbstractContextManager[None]:
        """Run a conductor during a `with` block."""
        return conducted.conducting(self.backend)

    def post(self, path: str, body: Any = None, user: str = "olga", **headers: str) -> Any:
        given = {**bearer(TOKENS[user]), **headers}
        return self.browser.post(f"/api/v1/{path}", json=body or {}, headers=given)

    def get(self, path: str) -> Any:
        return self.browser.get(f"/api/v1/{path}", headers=bearer(TOKENS["victor"])).json()
