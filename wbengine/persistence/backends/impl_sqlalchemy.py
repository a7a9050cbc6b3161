"""TaskFlow's names for `backends.sql`."""

from __future__ import annotations

from wbengine.persistence.backends._sql import SQLBackend as SQLAlchemyBackend
from wbengine.persistence.backends._sql import SQLConnection as Connection

__all__ = ["Connection", "SQLAlchemyBackend"]
