"""The judge of the chaos tests finds faults in constructed histories."""

from __future__ import annotations

import math
import types
from dataclasses import replace
from pathlib import Path

import pytest

from tests.chaos import audit, checking, engines, flows
from tests.chaos.audit import Line
from tests.chaos.checking import FinalState, History
from wbengine import exceptions, task
from wbengine._calls import invocation
from wbengine.types import failure

FLOW = "plain-2-0_0"
FIRST, SECOND, SUM = f"{FLOW}.0", f"{FLOW}.1", f"{FLOW}.sum"


def _run(
    name: str, began: float, ended: float | None, pid: int = 1, epoch: int = 1, attempt: int = 1
) -> list[Line]:
    line = Line(audit.STARTED, name, f"id-{name}-{attempt}", epoch, attempt, pid, began)
    return [line] if ended is None else [line, replace(line, what=audit.ENDED, at=ended)]


def _history(*more: Line, **changes: object) -> History:
    lines = [*_run(FIRST, 1, 2), *_run(SECOND, 1, 2, pid=2), *more, *_run(SUM, 50, 51)]
    history = History(
        lines, [FinalState(FLOW, "SUCCESS", flows.results(FLOW))], ledger=True, expiry=5
    )
    for name, value in changes.items():
        setattr(history, name, value)
    return history


def _problems(history: History) -> str:
    return "\n".join(checking.judge(history).problems)


def test_correct_history_has_no_problems() -> None:
    verdict = checking.judge(_history())
    assert not verdict.problems
    assert verdict.counts["runs"] == verdict.counts["tasks"] == 3
    assert verdict.counts["most runs of one epoch"] == 1
    assert math.isnan(verdict.percentile(0.5))


def test_lost_requests_are_counted_and_those_that_never_began() -> None:
    lost = [
        Line(audit.LOST, name, f"id-{name}-{attempt}", epoch, 0, 9, at)
        for name, attempt, epoch, at in [(FIRST, 1, 2, 3), (FIRST, 2, 1, 4), (FIRST, 2, 1, 8)]
    ]
    verdict = checking.judge(_history(*lost))
    assert not verdict.problems
    assert verdict.counts["WorkerLost"] == 2
    assert verdict.counts["WorkerLost never begun"] == 1


@pytest.mark.parametrize(
    ("error", "lines"),
    [(exceptions.WorkerLost("w"), [(audit.LOST, "t", "id-1", 2)]), (ValueError(), [])],
)
def test_engine_notes_requests_that_end_as_worker_lost(
    error: Exception, lines: list[tuple[str, str, str, int]], tmp_path: Path
) -> None:
    call = invocation.Invocation(task.FunctorTask(print, name="t"), invocation.EXECUTE, "")
    tracked = types.SimpleNamespace(id="id-1", epoch=2, invocation=call)
    audit.begin(tmp_path / "audit")
    try:
        for value in (failure.Failure.from_exception(error), 7):
            engines.Requests().settled(tracked, invocation.Outcome(value), 0.0)
    finally:
        audit.end()
    noted = audit.parse((tmp_path / "audit").read_text(encoding="utf-8"))
    assert [(line.what, line.name, line.request, line.epoch) for line in noted] == lines


def test_second_run_under_one_epoch_is_reported() -> None:
    told = _problems(_history(*_run(FIRST, 3, 4, pid=2)))
    assert f"{FIRST} ran 2 times under epoch 1" in told
