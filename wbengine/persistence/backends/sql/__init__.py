"""Records in SQL databases: sqlite, MariaDB and MySQL, PostgreSQL."""

from __future__ import annotations

# First: it says what to install where SQLAlchemy is missing.
from wbengine import _sql  # noqa: F401
from wbengine.persistence.backends.sql.backend import SQLBackend
from wbengine.persistence.backends.sql.connection import SQLConnection

__all__ = ["SQLBackend", "SQLConnection"]
