"""Records in SQL databases: SQLite, MariaDB and MySQL, PostgreSQL."""

from __future__ import annotations

from wbengine.persistence.backends._sql.backend import SQLBackend, SQLConnection

__all__ = ["SQLBackend", "SQLConnection"]
