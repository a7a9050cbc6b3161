"""The order in which conductors take the jobs of a queue: fair queueing by keys.

Each job that may be taken has a `turn`, and the lowest one is next. The first job of a key gets the
turn that is due now (the lowest of all waiting jobs), and each further one a turn that is later by
1 / `fair_weight`. So keys get equal shares, however many jobs they have, and a key that had no jobs
has no advantage from that. This is start-time fair queueing (Goyal, Vin, Cheng 1996).

The turns of a key are its places; its job with the highest priority takes the first of them.
"""

from __future__ import annotations

from typing import Final

from wbengine._sql import dialects
from wbengine.persistence.backends._sql import tables

__all__ = ["FIRST", "READY", "new_turn"]

_JOBS: Final = tables.JOBS.name
_KEYS: Final = tables.FAIR_KEYS.name

#: Turn of jobs of flows that have begun: they go first.
FIRST: Final = -1.0
#: Condition for jobs that may be taken, as in the indexes.
READY: Final = "trashed = 0 AND owner IS NULL AND not_before = 0"


def new_turn(dialect: str) -> str:
    """Return an SQL expression for the turn of a job without a turn.

    Its parameters are `board`, `queue`, `fair_key` and `fair_weight`.
    """
    if dialect == dialects.POSTGRESQL:
        # The statement also stores these parameters; their types must be the same in both places.
        board, queue, key = (f"CAST(:{name} AS VARCHAR)" for name in ("board", "queue", "fair_key"))
        weight = "CAST(:fair_weight AS DOUBLE PRECISION)"
    else:
        board, queue, key, weight = ":board", ":queue", ":fair_key", ":fair_weight"
    in_queue = f"board = {board} AND queue = {queue}"
    of_key = f"{in_queue} AND fair_key = {key}"
    # The outer query lets MySQL read the table that it changes.
    return (
        "(SELECT MAX(turn) FROM ("
        f"SELECT MAX(turn) + 1.0 / {weight} AS turn FROM {_JOBS} WHERE {of_key}"
        " AND owner IS NULL AND turn >= 0"
        f" UNION ALL SELECT served FROM {_KEYS} WHERE {of_key}"
        f" UNION ALL SELECT COALESCE((SELECT MIN(turn) FROM {_JOBS} WHERE {in_queue} AND {READY}"
        f" AND turn >= 0), (SELECT MAX(served) FROM {_KEYS} WHERE {in_queue}), 0.0)"
        ") AS turns)"
    )
