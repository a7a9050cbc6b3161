"""SQL databases: engines made from URLs and options, transactions, and what their errors mean.

For whatever keeps tables: the persistence backends, and the ledger of workers.  sqlite, MariaDB and
MySQL, PostgreSQL; SQLAlchemy Core, no ORM.  What these do not agree on is in `dialects`.

    engine = make_engine("postgresql://me:secret@host/flows", {"max_pool_size": 4})
    row = transact(engine, "Reading a row", lambda connection: connection.execute(...).one(),
                   write=False)
"""

from __future__ import annotations

from wbengine._sql.engines import dispose, make_engine, turn_engine, writer_of
from wbengine._sql.notifications import can_listen, listen
from wbengine._sql.options import Options, parse
from wbengine._sql.transactions import at_once, transact, turn

__all__ = [
    "Options", "at_once", "can_listen", "dispose", "listen", "make_engine", "parse", "transact",
    "turn", "turn_engine", "writer_of",
]  # fmt: skip
