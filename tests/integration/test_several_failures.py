"""Several failures at once: every retry concerned hears of each, and the widest answer wins."""

from __future__ import annotations

from typing import Any

import pytest

from wbengine import engines, exceptions, retry, states, task
from wbengine.patterns import linear_flow, unordered_flow


class Broken(Exception):
    """Not worth another try."""


class Fails(task.Task):
    def __init__(self, name: str, error: Exception, log: list[str], priority: int = 0) -> None:
        super().__init__(name)
        self.error, self.log, self.priority = error, log, priority

    def execute(self) -> None:
        self.log.append(self.name)
        raise self.error


class Judge(retry.Retry):
    """Tries three times, but nothing again that is broken; notes whom it was told of."""

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


def test_a_failure_in_a_flow_that_is_undone_already_is_in_its_history() -> None:
    log: list[str] = []
    judge = Judge("judge")
    flow = unordered_flow.Flow("f").add(
        linear_flow.Flow("inner", judge).add(
            task.FunctorTask(lambda: None, name="a"), Fails("inside", ValueError(), log)
        ),
        # Fails in the same turn, and is heard of first.
        linear_flow.Flow("around", retry.AlwaysRevertAll()).add(
            task.FunctorTask(lambda: None, name="b"), Fails("beside", KeyError(), log, 1)
        ),
    )
    with pytest.raises(exceptions.WrappedFailure):
        engines.run(flow)
    assert log == ["beside", "inside"]
    assert judge.told == [["inside"]]
    assert judge.reverted_with == ["inside"]


def test_the_failure_of_a_retry_is_its_result_though_it_was_reverted() -> None:
    """As with tasks.  Once its reversion has failed, it has no result."""

    class Breaks(Judge):
        def execute(self, history: retry.History) -> None:
            raise Broken("cannot begin")

        def revert(self, history: retry.History, flow_failures: Any) -> None: ...

    engine = engines.load(linear_flow.Flow("f", Breaks("judge")))
    with pytest.raises(Broken):
        engine.run()
    assert engine.storage.get_atom_state("judge") == states.REVERTED
    assert engine.storage.get("judge").check(Broken)

    class Stuck(Judge):
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


def test_failure_gives_all_that_is_to_be_reverted_the_intention_at_once() -> None:
    """Who looks on, or goes on after a crash, sees what becomes of tasks whose turn is not yet."""
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
