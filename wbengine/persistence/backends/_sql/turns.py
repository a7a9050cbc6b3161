"""The order in which conductors take the jobs of a queue: fair queueing by keys.

Each job that may be taken has a `turn`, and the lowest one is next. The first job of a key gets the
turn that is due now (the lowest of all waiting jobs), and each further one a turn that is later by
1 / `fair_weight`. So keys get equal shares, however many jobs they have, and a key that had no jobs
has no advantage from that. This is start-time fair queueing (Goyal, Vin, Cheng 1996).

The turns of a key are its places; its job with the highest priority takes the first of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import sqlalchemy as sa

from wbengine.persistence.backends._sql import tables

__all__ = ["CLOCK", "FIRST", "READY", "assign", "delete_past", "queue_names"]

_JOBS: Final = tables.JOBS.name
_KEYS: Final = tables.FAIR_KEYS.name

#: Turn of jobs of flows that have begun: they go first.
FIRST: Final = -1.0
#: In the table of keys, the turn that is due if a job with a lower one is left out.
CLOCK: Final = "\x01"
#: Condition for jobs that may be taken, as in the indexes.
READY: Final = "trashed = 0 AND owner IS NULL AND not_before = 0"

_IN_QUEUE: Final = "board = :board AND queue = :queue"
_OF_KEY: Final = f"{_IN_QUEUE} AND fair_key = :fair_key"
#: The last turn of the waiting jobs of a key, the turn after its last taken one if it had no others
#: then, and the turn that is due.
# The order makes PostgreSQL use the indexes even without statistics.
_READ: Final = sa.text(
    f"SELECT (SELECT turn FROM {_JOBS} WHERE {_OF_KEY} AND owner IS NULL AND turn >= 0"
    f" ORDER BY turn DESC LIMIT 1) AS latest,"
    f" (SELECT served FROM {_KEYS} WHERE {_OF_KEY}) AS served,"
    f" (SELECT served FROM {_KEYS} WHERE {_IN_QUEUE} AND fair_key = :clock) AS clock,"
    f" COALESCE((SELECT turn FROM {_JOBS} WHERE {_IN_QUEUE} AND {READY} AND turn >= 0"
    f" ORDER BY turn LIMIT 1), (SELECT served FROM {_KEYS} WHERE {_IN_QUEUE}"
    " ORDER BY served DESC LIMIT 1), 0.0) AS due"
).bindparams(clock=CLOCK)
_LATEST: Final = sa.text(
    f"SELECT k.fair_key, COALESCE((SELECT turn FROM {_JOBS} WHERE {_IN_QUEUE} AND {READY}"
    f" AND turn >= 0 ORDER BY turn LIMIT 1), k.served) AS due FROM {_KEYS} k WHERE {_IN_QUEUE}"
    " ORDER BY k.served DESC LIMIT 1"
)
_DELETE: Final = sa.text(
    f"DELETE FROM {_KEYS} WHERE {_IN_QUEUE} AND served <= :due"
    " AND fair_key NOT IN (:fair_key, :clock)"
).bindparams(clock=CLOCK)


def queue_names(select: str) -> sa.TextClause:
    """Return a statement that reads each queue of some rows once.

    It looks up each queue in an index, because a queue may have many rows.

    :param select: a statement for the queues of the rows, with a condition and without an order.
    """
    next_one = "ORDER BY queue LIMIT 1"
    return sa.text(
        f"WITH RECURSIVE names (name) AS (SELECT ({select} {next_one}) UNION ALL SELECT"
        f" ({select} AND queue > names.name {next_one}) FROM names"
        " WHERE names.name IS NOT NULL) SELECT name FROM names WHERE name IS NOT NULL"
    )


def delete_past(connection: sa.Connection, place: Mapping[str, str]) -> None:
    """Delete turns of keys that do not come after the turn that is due.

    The latest one stays: while no job waits, it is the turn that is due.

    :param place: `board` and `queue`.
    """
    latest = connection.execute(_LATEST, place).first()
    if latest is not None:
        connection.execute(_DELETE, {**place, **latest._asdict()})


def assign(connection: sa.Connection, rows: Iterable[dict[str, Any]]) -> None:
    """Set the `turn` of jobs without a turn, in their order.

    :param rows: each with `board`, `queue`, `fair_key` and `fair_weight`.
    """
    latest = dict[tuple[str, str, str], float]()
    for row in rows:
        key = row["board"], row["queue"], row["fair_key"]
        if key in latest:
            turn = latest[key] + 1.0 / row["fair_weight"]
        else:
            read = connection.execute(
                _READ, dict(zip(("board", "queue", "fair_key"), key, strict=True))
            ).one()
            turn = max(read.due, read.served or 0.0, read.clock or 0.0)
            if read.latest is not None:
                turn = max(turn, read.latest + 1.0 / row["fair_weight"])
        latest[key] = row["turn"] = turn
