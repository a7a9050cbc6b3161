"""Statements and transactions of forks."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from tests.support import fork_flows
from wbengine import operations
from wbengine.persistence import backends


@contextlib.contextmanager
def _calls() -> Iterator[Counter[str]]:
    """Count calls of the driver. One call may write many rows."""
    counts: Counter[str] = Counter()

    def executing(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        counts["statements"] += 1

    def committing(connection: Any) -> None:
        counts["commits"] += 1

    sa.event.listen(sa.Engine, "before_cursor_execute", executing)
    sa.event.listen(sa.Engine, "commit", committing)
    try:
        yield counts
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", executing)
        sa.event.remove(sa.Engine, "commit", committing)


@pytest.mark.parametrize("own", [False, True])
def test_fork_takes_the_same_statements_for_any_number_of_tasks(own: bool, tmp_path: Path) -> None:
    counts = []
    with backends.backend(f"sqlite:///{tmp_path}/flows.db") as store:
        for chains in (2, 50):
            with fork_flows.board_of(store) as board:
                uuid = fork_flows.submit(store, board, fork_flows.wide, {"chains": chains})
                fork_flows.run(store, board)
            with _calls() as calls:
                fork = operations.fork(store, uuid, "1.5", own=own)
            assert fork.inherited == 10 * chains - 5
            counts.append(calls)
    assert counts[0] == counts[1] and counts[0]["statements"] < 40
