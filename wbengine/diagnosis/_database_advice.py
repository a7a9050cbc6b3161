"""How to solve the problems that a database server reports, for broker, ledger and store."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["advice", "is_denied"]

_DENIED: Final = "permission denied"

#: Advice by patterns of reasons.
_ADVICE: Final = {
    r'authentication failed|no password supplied|role "[^"]*" does not exist|\(using password': (
        "correct user and password in the URL; write @ : / ? # in a password as %40 %3A %2F %3F %23"
    ),
    r"no pg_hba\.conf entry": "allow this host, user and database in pg_hba.conf of the server",
    "resolve host|cannot be resolved": (
        "correct the host name in the URL, or the DNS settings of this host"
    ),
    r'database "[^"]*" does not exist|Unknown database': (
        "correct the name of the database in the URL, or create it; in PostgreSQL: createdb"
        " --owner USER --encoding UTF8 --template template0 NAME"
    ),
    "encoding of the database must be": (
        "create a database with this encoding, and correct the name in the URL"
    ),
    "read-only": (
        "use the primary server, and set default_transaction_read_only = off: a replica cannot"
        " store requests"
    ),
    _DENIED: (
        "use the owner of the tables; for a worker, run as the owner: wbengine db create"
        " --worker-role ROLE"
    ),
    "too many (clients|connections)|remaining connection slots": (
        "increase max_connections of the server or the connection limit of the role, or use"
        " PgBouncer"
    ),
}


def advice(reason: str) -> str | None:
    """Return how to solve a problem that a server reports, or None if it is unknown."""
    return next((text for pattern, text in _ADVICE.items() if re.search(pattern, reason)), None)


def is_denied(reason: str) -> bool:
    """Return whether the role lacks rights in the database."""
    return _DENIED in reason
