"""`crash_everywhere` with real processes, which end with SIGKILL."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from wbengine import task
from wbengine.patterns import linear_flow
from wbengine.steps import Steps
from wbengine.testing import FolderWorld, KeyValueWorld, World, crash_everywhere
from wbengine.testing._crashing import real, schedules
from wbengine.testing._crashing.outcome import Outcome, Subject
from wbengine.testing._crashing.schedules import Action, Moment, Schedule
from wbengine.testing._crashing.simulated_run import simulate

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")

BANK = World("bank")
FILES = FolderWorld("files")


@task.task(idempotent=True, provides="receipt")
def charge(order: str) -> str:
    BANK.effect(f"charge {order}", idempotency_key=order)
    return f"charged {order}"


@charge.revert(failed=True)
def refund(order: str) -> None:
    BANK.undo(f"charge {order}", missing_ok=True)


@task.task(idempotent=False)
def write(order: str, receipt: str) -> None:
    FILES.write(f"{order}.txt", receipt)


@write.revert(failed=True)
def delete(order: str) -> None:
    FILES.delete(f"{order}.txt", missing_ok=True)


def right_flow() -> linear_flow.Flow:
    return linear_flow.Flow("order").add(charge(), write())


@pytest.fixture(scope="module")
def outcomes() -> Iterator[dict[tuple[Moment, Action], Outcome]]:
    """Return a run for each kind of kill, each at its first moment."""
    subject = Subject(right_flow, {"order": "7"}, (BANK, FILES))
    first = simulate(subject, Schedule())
    subject = Subject(right_flow, {"order": "7"}, (BANK, FILES), tasks=frozenset(first.tasks))
    found: dict[tuple[Moment, Action], Outcome] = {}
    for schedule in schedules.singles(first.trace, []):
        ((number, fault),) = schedule.moments
        kind = first.trace[number].moment, fault.action
        if real.can_be_real(schedule, first.trace) and kind not in found:
            found[kind] = real.run_real(subject, schedule, first.trace)
    yield found


def texts(outcome: Outcome, kind: str) -> list[str]:
    return [event.text for event in outcome.events if event.kind == kind]


@pytest.mark.slow
def test_engine_is_killed_at_each_kind_of_moment(outcomes: Any) -> None:
    for moment in (Moment.WRITE, Moment.SEND, Moment.REPLY):
        outcome = outcomes[moment, Action.KILL]
        assert "engine killed (SIGKILL) at" in texts(outcome, "fault")[0]
        assert texts(outcome, "process") == ["process 2 continues the flow"]
        assert outcome.state == "SUCCESS" and outcome.values["receipt"] == "charged 7"


def test_step_of_killed_worker_is_repeated(outcomes: Any) -> None:
    outcome = outcomes[Moment.AFTER_EFFECT, Action.LOSE]
    assert texts(outcome, "fault") == ["worker killed (SIGKILL) at world.after-effect"]
    assert texts(outcome, "process") == [] and outcome.state == "SUCCESS"
    assert texts(outcome, "operation")[:2] == [
        "bank: did 'charge 7'",
        "bank: did 'charge 7' (already done: nothing happened)",
    ]


def test_engine_and_worker_are_killed_at_the_same_moment(outcomes: Any) -> None:
    outcome = outcomes[Moment.AFTER_EFFECT, Action.KILL_BOTH]
    assert "engine and worker killed" in texts(outcome, "fault")[0]
    assert texts(outcome, "process") == ["process 2 continues the flow"]
    assert len(texts(outcome, "operation")) == 3 and outcome.state == "SUCCESS"


class Cache:
    """Objects keep their values in simulated runs, but not in other processes."""

    token: object = None


CACHE = Cache()


@task.task(idempotent=True)
def remember(token: object) -> None:
    CACHE.token = token


@task.workflow
def remembers_in_object(steps: Steps, order: str) -> int:
    token = str(steps.uuid4())
    steps.run(remember, token)
    steps.run(charge, order)
    return int(CACHE.token == token)


@pytest.mark.slow
def test_value_in_the_memory_of_an_object_is_found_and_repeated() -> None:
    options: dict[str, Any] = {"world": [BANK, FILES], "budget": 600.0, "max_runs": 40}
    simulated = crash_everywhere(remembers_in_object, {"order": "7"}, **options)
    assert simulated.ok, simulated
    report = crash_everywhere(remembers_in_object, {"order": "7"}, real_runs=1, **options)
    assert report.real_runs == 1 and not report.ok
    only = str(report.findings[0].schedule)
    assert only.endswith(", real")
    repeated = crash_everywhere(remembers_in_object, {"order": "7"}, only=only, **options)
    assert [each.check for each in repeated.findings] == ["same_result"], repeated


@task.workflow
def sleeps(steps: Steps, order: str) -> None:
    steps.run(charge, order)
    steps.sleep(3600)


@pytest.mark.parametrize(
    ("flow", "options", "message"),
    [
        (right_flow, {"engine": "serial"}, "real_runs must be 0 .* if engine is 'serial'"),
        (sleeps, {}, "real_runs must be 0 for a flow that waits: it takes 3600 s"),
    ],
)
def test_impossible_real_run_is_refused(flow: Any, options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        crash_everywhere(flow, {"order": "7"}, world=[BANK, FILES], real_runs=1, **options)


class Ignored:
    """A recorder that records nothing."""

    def before(self, world: World, kind: str, key: str, line: str) -> None: ...

    def after(self, operation: Any) -> None: ...


def test_processes_share_the_contents_of_worlds(tmp_path: Any) -> None:
    stock = KeyValueWorld("stock", {"shoes": 5})
    recorder = Ignored()
    with (
        BANK.shared(tmp_path / "bank", recorder),
        stock.shared(tmp_path / "stock", recorder),
        FILES.shared(tmp_path / "files", recorder),
    ):
        BANK.effect("first")
        pid = os.fork()
        if not pid:
            try:
                BANK.effect("second", amount=2)
                stock.set("shoes", 4)
                FILES.write("a/b.txt", "text")
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
        assert BANK.keys == ["first", "second"] and BANK.data("second") == {"amount": 2}
        assert stock.get("shoes") == 4
        assert FILES.read("a/b.txt") == b"text" == (FILES.path / "a/b.txt").read_bytes()
    assert BANK.keys == FILES.names == [] and stock.get("shoes") == 5
