"""The judge of the chaos tests finds faults in constructed histories."""

from __future__ import annotations

import math
from dataclasses import replace

from tests.chaos import audit, checking, flows
from tests.chaos.audit import Line
from tests.chaos.checking import FinalState, History

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


def test_second_run_under_one_epoch_is_reported() -> None:
    told = _problems(_history(*_run(FIRST, 3, 4, pid=2)))
    assert f"{FIRST} ran 2 times under epoch 1" in told
