"""The judge of the chaos finds what is wrong in histories that were made up to be so."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from tests.chaos import audit, checking, flows
from tests.chaos.audit import Line
from tests.chaos.checking import Fault, History, Kept

FLOW = "plain-2-0_0"
FIRST, SECOND, SUM = f"{FLOW}.0", f"{FLOW}.1", f"{FLOW}.sum"


def _run(
    name: str, began: float, ended: float | None, pid: int = 1, epoch: int = 1, attempt: int = 1
) -> list[Line]:
    line = Line(audit.STARTED, name, f"id-{name}-{attempt}", epoch, attempt, pid, began)
    return [line] if ended is None else [line, replace(line, what=audit.ENDED, at=ended)]


def _history(*more: Line, **changes: object) -> History:
    lines = [*_run(FIRST, 1, 2), *_run(SECOND, 1, 2, pid=2), *more, *_run(SUM, 50, 51)]
    history = History(lines, [Kept(FLOW, "SUCCESS", flows.results(FLOW))], ledger=True, expiry=5)
    for name, value in changes.items():
        setattr(history, name, value)
    return history


def _problems(history: History) -> str:
    return "\n".join(checking.judge(history).problems)


def test_all_is_well() -> None:
    verdict = checking.judge(_history())
    assert not verdict.problems
    assert verdict.counts["runs"] == verdict.counts["tasks"] == 3
    assert verdict.counts["most runs of one epoch"] == 1
    assert math.isnan(verdict.percentile(0.5))


def test_a_second_run_of_one_epoch() -> None:
    told = _problems(_history(*_run(FIRST, 3, 4, pid=2)))
    assert f"{FIRST} ran 2 times under epoch 1" in told


def test_a_second_run_whose_first_was_not_lost() -> None:
    """With a ledger; a kill of the process later, or of another, is no excuse, nor a short stop."""
    again = _run(FIRST, 10, 11, pid=2, epoch=2)
    excuses = [
        [],
        [Fault("kill worker", 12, 1)],
        [Fault("kill worker", 3, 3)],
        [Fault("stop worker", 3, 1, 4)],
    ]
    for faults in excuses:
        assert "was not lost" in _problems(_history(*again, faults=faults))
    assert not _problems(_history(*again, ledger=False))


@pytest.mark.parametrize("fault", [Fault("kill worker", 3, 1), Fault("stop worker", 1.5, 1, 9)])
def test_a_second_run_after_a_loss(fault: Fault) -> None:
    verdict = checking.judge(_history(*_run(FIRST, 10, 11, pid=2, epoch=2), faults=[fault]))
    assert not verdict.problems
    assert verdict.counts["again"] == 1


def test_lost_tasks_and_stuck_flows() -> None:
    history = _history()
    history.lines = [line for line in history.lines if line.name != SECOND]
    assert f"{SECOND} never ran" in _problems(history)
    for state, told in (
        ("RUNNING", "is stuck in"),
        (None, "is stuck in"),
        ("REVERTED", "ended as"),
    ):
        kept = [Kept(FLOW, state, {})]
        assert f"{FLOW} {told} {state}" in _problems(_history(kept=kept))


def test_wrong_results() -> None:
    right = flows.results(FLOW)
    for wrong in ({**right, SECOND: 0}, {FIRST: right[FIRST]}):
        assert f"{SECOND} is " in _problems(_history(kept=[Kept(FLOW, "SUCCESS", wrong)]))


def test_an_end_without_a_begin() -> None:
    assert "never began" in _problems(_history(*_run(FIRST, 5, 6, pid=9)[1:]))


def test_what_is_left() -> None:
    assert "left behind: queue x" in _problems(_history(left=["queue x"]))


def test_how_long_it_took() -> None:
    """From a kill in the middle of a run to the next run of the same task."""
    history = _history(faults=[Fault("kill worker", 20, 7)])
    history.lines = [
        *_run(FIRST, 19, None, pid=7),
        *_run(SECOND, 15, 16, pid=7),
        *_run(FIRST, 26.5, 27, epoch=2),
        *_run(SUM, 50, 51),
    ]
    verdict = checking.judge(history)
    assert not verdict.problems
    assert verdict.detected == [6.5]
    assert verdict.percentile(0.5) == verdict.percentile(1.0) == 6.5


def test_lines_are_read_as_they_were_written(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("audit") / "audit"
    audit.begin(path)
    try:
        reader = audit.Reader(path)
        audit.note(audit.STARTED, FIRST, "id", 3, 2)
        (line,) = reader.more()
        assert (line.what, line.name, line.request) == (audit.STARTED, FIRST, "id")
        assert (line.epoch, line.attempt) == (3, 2)
        with path.open("a") as file:
            file.write("F flow SUCC")
        assert reader.more() == []
        with path.open("a") as file:
            file.write("ESS 0 0 5 1.5\n")
        (line,) = reader.more()
        assert (line.what, line.name, line.state, line.pid) == (audit.FLOW, "flow", "SUCCESS", 5)
        reader.close()
    finally:
        audit.end()
