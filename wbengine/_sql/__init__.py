"""SQL databases: engines from URLs and options, transactions, and the meaning of errors.

This package serves the stores of flows and the ledger of workers, with SQLAlchemy Core, without an
ORM. `dialects` contains the differences between SQLite, MariaDB and MySQL, and PostgreSQL.

    engine = make_engine(parse("postgresql://me:secret@host/flows", {"max_pool_size": 4}))
    row = transact(engine, "Reading a row", lambda connection: connection.execute(...).one(),
                   write=False)
"""

from __future__ import annotations

from wbengine._sql.connection_options import DEFAULT_PORTS, DatabaseOptions, parse
from wbengine._sql.database_errors import convert_errors
from wbengine._sql.notifications import can_listen, can_watch, listen, watch
from wbengine._sql.sqlalchemy_engines import dispose, make_engine, statement_engine, writer_of
from wbengine._sql.transactions import (
    check_file,
    transact,
    transact_batched,
    transact_statement,
)

__all__ = [
    "DEFAULT_PORTS", "DatabaseOptions", "can_listen", "can_watch", "check_file", "convert_errors",
    "dispose", "listen", "make_engine", "parse", "statement_engine", "transact",
    "transact_batched", "transact_statement", "watch", "writer_of",
]  # fmt: skip
