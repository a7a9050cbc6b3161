"""A database as a backend."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from typing import Any, Final

import sqlalchemy as sa

from wbengine import _sql
from wbengine._sql import dialects
from wbengine.persistence import base
from wbengine.persistence.backends.sql import layout
from wbengine.persistence.backends.sql.connection import SQLConnection
from wbengine.persistence.backends.sql.statements import Statements

__all__ = ["SQLBackend"]


class SQLBackend(base.Backend):
    """Keeps records in tables of an SQL database; their names begin with `wbe_`.

    `connection` is its URL: 'sqlite:////path/of.db' ('sqlite://' is one in memory, for tests),
    'mysql://user:password@host/database' (MariaDB and MySQL, by PyMySQL), or 'postgresql://...'
    (by psycopg); one with a driver ('mysql+mysqldb://') is taken as it is.  The other options are
    those of `_sql.Options`; in a URL's query, what is none of them is the driver's.

    An empty database gets its tables when it is first written to; one with tables of an older
    layout is changed by `Connection.upgrade` only, and refused until then.

    :raises ValueError: the URL or an option is wrong.
    :raises ImportError: a driver is not installed; the text says how to.
    """

    #: The revision of the current layout.
    head: Final = layout.HEAD

    def __init__(self, conf: Mapping[str, Any] | None = None) -> None:
        super().__init__(conf)
        self.options = self._parsed()
        self.engine: sa.Engine = _sql.make_engine(self.options)
        self.statements = Statements(self.options.dialect)
        #: Whether turns are written on the driver's own connection, which logs no statements.
        self.writes_turns: Final = (
            _sql.writer_of(self.engine) is not None and not self.options.log_statements
        )
        self._ready = False
        self._preparing = threading.Lock()

    def _parsed(self) -> _sql.Options:
        """What the configuration says."""
        told = dict(self._conf)
        url = str(told.pop("connection", ""))
        return _sql.parse(url, told)

    def get_connection(self) -> SQLConnection:
        """Costs nothing: what it does is done with a connection of the pool."""
        return SQLConnection(self)

    def close(self) -> None:
        self._ready = False
        _sql.dispose(self.engine)

    def upgrade(self) -> None:
        """Bring the tables to the current layout."""
        layout.upgrade(self.engine)
        self._ready = True

    def revision(self) -> str | None:
        """The revision of the layout that is there, None: there is no table yet."""
        if self._is_no_file():
            return None
        what = "Looking up the layout of the database"
        return _sql.transact(self.engine, what, layout.found, write=False)

    def is_there(self) -> bool:
        """Whether there are tables to read.

        :raises StorageFailure: their layout is not the current one.
        """
        if not self._ready:
            revision = self.revision()
            if revision is None:
                return False
            layout.check(revision)
            self._ready = True
        return True

    def prepare(self) -> None:
        """Make the tables where there are none.

        :raises StorageFailure: there are tables of another layout.
        """
        if not self._ready:
            with self._preparing:
                if not self.is_there():
                    self.upgrade()

    def problems(self) -> list[str]:
        """What an sqlite file is found to have wrong, besides its rows; servers see to theirs.

        Cost: that of reading all of it.
        """
        if self.options.dialect != dialects.SQLITE or not self.is_there():
            return []

        def work(connection: sa.Connection) -> list[str]:
            found = connection.exec_driver_sql("PRAGMA quick_check").scalars().all()
            return [text.replace("\n", "; ") for text in found if text != "ok"]

        return _sql.transact(self.engine, "Checking the database", work, write=False)

    def _is_no_file(self) -> bool:
        """Whether opening the database would make it."""
        path = self.options.url.database
        if self.options.dialect != dialects.SQLITE or self.options.in_memory or path is None:
            return False
        return not path.startswith("file:") and not os.path.exists(path)

    def __repr__(self) -> str:
        return f"<SQLBackend {self.options.url.render_as_string()}>"
