"""Texts that identify databases, to compare the URLs of several processes and hosts."""

from __future__ import annotations

import os

from wbengine._configuration import host_names
from wbengine._sql import dialects
from wbengine._sql.connection_options import DEFAULT_PORTS, DatabaseOptions

__all__ = ["place_of"]


def place_of(options: DatabaseOptions) -> str:
    """Return the database and schema, however processes and hosts write its URL.

    Two names of a server differ. The identity of the server itself would be that of its copies,
    too, and could change when its standby takes over.
    """
    url, dialect = options.url, options.dialect
    database = url.database or ""
    if dialect == dialects.SQLITE:
        return f"sqlite {os.path.realpath(database.removeprefix('file:'))}"
    # psycopg also reads the host, the port and the schema in the query.
    host = host_names.host_name(url.host or str(url.query.get("host", "localhost")))
    port = url.port or url.query.get("port") or DEFAULT_PORTS[dialect]
    return f"{dialect} {host}:{port} {database} {url.query.get('options', '')}".rstrip()
