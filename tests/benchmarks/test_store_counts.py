"""Calls, statements and writes for the records of a task, and for a fork."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from tests.benchmarks import records, steps
from tests.benchmarks.calls import Calls
from tests.support import fork_flows
from wbengine import engines, operations
from wbengine.persistence import backends

TASKS: Mapping[Callable[[int], Any], int] = {
    steps.chain: 100,
    steps.wide: 500,
    steps.workflow: 100,
    steps.async_workflow: 100,
}


@contextlib.contextmanager
def _statements() -> Iterator[Counter[str]]:
    """Count the statements that SQLite executes, each for one row."""
    counts: Counter[str] = Counter()

    def told(statement: str) -> None:
        counts["statements"] += not statement.startswith("--")  # statements of a trigger

    def connected(connection: Any, record: Any) -> None:
        connection.set_trace_callback(told)

    sa.event.listen(sa.Engine, "connect", connected)
    try:
        yield counts
    finally:
        sa.event.remove(sa.Engine, "connect", connected)


def _written() -> dict[str, int]:
    """Return the bytes and calls that this process has written, or nothing if the system has no
    count.
    """
    try:
        counters = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    except FileNotFoundError:
        return {}
    return {"bytes written": int(counters["wchar"]), "writes": int(counters["syscw"])}


@pytest.mark.parametrize("make", TASKS)
@pytest.mark.parametrize("kind", ["memory", "dir"])
def test_counts_of_stored_serial_flow_match_record(
    kind: str, make: Callable[[int], Any], tmp_path: Path
) -> None:
    """The lowest of several runs counts, because a run has additional work each second."""
    tasks = TASKS[make]
    conf = {"connection": kind, "path": str(tmp_path / "store")}

    with _statements() as statements, backends.backend(conf) as backend:
        engines.run(make(3), store={"x0": 0}, backend=backend)

        def run() -> dict[str, float]:
            engine = engines.load(make(tasks), store={"x0": 0}, backend=backend)
            engine.compile()
            engine.prepare()
            before = _written()
            calls = Calls()
            statements.clear()
            with calls:
                engine.run()
            counts = {f"calls in {stage}": count for stage, count in calls.counts.items()}
            if kind == "dir":
                counts |= {what: count - before[what] for what, count in _written().items()}
            return {what: count / tasks for what, count in {**counts, **statements}.items()}

        # A slow machine saves a workflow that waits for its steps more often.
        loose = ("statements",) if make is steps.async_workflow else ()
        records.least(f"serial {make.__name__} kept in {kind}, a task", run, loose=loose)


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
