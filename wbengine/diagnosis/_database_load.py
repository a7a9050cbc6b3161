"""Problems of the load of a database that carries messages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from wbengine.diagnosis.findings import Finding, bad

__all__ = ["load_problems"]

#: Fraction of its connections from which a server is reported as full.
_MAX_CONNECTIONS_FRACTION: Final = 0.8
#: Age in seconds from which an open transaction is reported: it keeps all deleted messages.
_MAX_TRANSACTION_SECONDS: Final = 300


def load_problems(
    check: str,
    connections: tuple[int, int],
    transaction_seconds: int | None,
    *,
    pooler: str,
    listing: str,
) -> Iterator[Finding]:
    """Yield the problems of open connections and transactions.

    :param connections: their number, and the maximum.
    :param transaction_seconds: age of the oldest open transaction; None: unknown.
    :param pooler: what helps beside a higher maximum; '' or with a comma.
    :param listing: where an administrator finds the transaction.
    """
    number, maximum = connections
    if number > _MAX_CONNECTIONS_FRACTION * maximum:
        yield bad(
            check,
            f"{number} of {maximum} connections are in use; an engine or worker needs about four",
            f"increase max_connections{pooler}",
        )
    if transaction_seconds is not None and transaction_seconds > _MAX_TRANSACTION_SECONDS:
        yield bad(
            check,
            f"a transaction has been open for {transaction_seconds:,} s: deleted messages remain"
            " in the tables until it ends, and queues become slow",
            f"find it in {listing}, and end it",
        )
