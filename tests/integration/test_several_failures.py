"""Several failures at the same time: decisions of retry controllers."""

from __future__ import annotations

from typing import Any

import pytest

from wbengine import engines, exceptions, retry, states, task
from wbengine.patterns import linear_flow, unordered_flow


class Broken(Exception):
    """Failure that must not be retried."""


class Fails(task.Task):
    def __init__(self, name: str, error: Exception, log: list[str], priority: int = 0) -> None:
        super().__init__(name)
        self.error, self.log, self.priority = error, log, priority

    def execute(self) -> None:
        self.log.append(self.name)
        raise self.error


class RecordingRetry(retry.Retry):
    """Retry controller that tries three times, except after `Broken`, and records failed atoms."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.told: list[list[str]] = []
        self.reverted_with: list[str] = []

    def execute(self, history: retry.History) -> None: ...

    def on_failure(self, history: retry.History) -> retry.Decision:
        self.told.append(sorted(name for name, _ in history.outcomes_iter(-1)))
        if history.caused_by(Broken):
            return retry.REVERT_ALL
        return retry.RETRY if len(history) < 3 else retry.REVERT

    def revert(self, history: retry.History, flow_failures: Any) -> None:
        self.reverted_with = sorted(name for name, _ in history.outcomes_iter(-1))


def test_failure_in_reverting_flow_is_added_to_retry_history() -> None:
    log: list[str] = []
    judge = RecordingRetry("judge")
    flow = unordered_flow.Flow("f").add(
        linear_flow.Flow("inner", judge).add(
            task.FunctorTask(lambda: None, name="a"), Fails("inside", ValueError(), log)
        ),
        # Fails in the same iteration and is processed first.
        linear_flow.Flow("around", retry.AlwaysRevertAll()).add(
            task.FunctorTask(lambda: None, name="b"), Fails("beside", KeyError(), log, 1)
        ),
    )
    with pytest.raises(exceptions.WrappedFailure):
        engines.run(flow)
    assert log == ["beside", "inside"]
    assert judge.told == [["inside"]]
    assert judge.reverted_with == ["inside"]


def test_reverted_retry_returns_its_failure_as_result() -> None:
    """Tasks behave alike. After a failed reversion, a retry has no result."""

    class Breaks(RecordingRetry):
        def execute(self, history: retry.History) -> None:
            raise Broken("cannot begin")

        def revert(self, history: retry.History, flow_failures: Any) -> None: ...

    engine = engines.load(linear_flow.Flow("f", Breaks("judge")))
    with pytest.raises(Broken):
        engine.run()
    assert engine.storage.get_atom_state("judge") == states.REVERTED
    assert engine.storage.get("judge").check(Broken)

    class Stuck(RecordingRetry):
        def revert(self, history: retry.History, flow_failures: Any) -> None:
            raise KeyError("stuck")

    engine = engines.load(
        linear_flow.Flow("f", Stuck("judge")).add(Fails("bad", Broken("bad"), []))
    )
    with pytest.raises(KeyError, match="stuck"):
        engine.run()
    with pytest.raises(exceptions.NotFound):
        engine.storage.get("judge")
    assert engine.storage.get_retry_history("judge")


def test_failure_sets_revert_intention_of_all_affected_atoms_at_once() -> None:
    """Observers and engines that resume the flow see which atoms will be reverted."""
    seen: dict[str, str] = {}

    class Looks(task.Task):
        def execute(self) -> None: ...

        def revert(self, **_: Any) -> None:
            for name in ("first", "second"):
                seen[name] = engine.storage.get_atom_intention(name)

    first, second = (task.FunctorTask(lambda: None, name) for name in ("first", "second"))
    flow = linear_flow.Flow("f").add(first, second, Looks("last"), Fails("bad", Broken("bad"), []))
    engine = engines.load(flow)
    with pytest.raises(Broken):
        engine.run()
    assert seen == {"first": states.REVERT, "second": states.REVERT}
