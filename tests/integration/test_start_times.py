"""`eta` and `expires` of tasks of workers, which hold tasks by their own clock."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.engine_kinds import engine_options
from wbengine import engines, exceptions, states, task
from wbengine.patterns import linear_flow, unordered_flow

KINDS = ["memory", "local_tasks"]


class Tells(task.Task):
    """Task that returns the time of its execution in Unix seconds."""

    def execute(self) -> float:
        return time.time()


class Later(Tells):
    eta = 0.3


class MuchLater(Tells):
    eta = 600


class TooLate(Tells):
    eta, expires = 600, 0.2


class Takes(task.Task):
    priority = 1

    def execute(self) -> float:
        time.sleep(0.4)
        return time.time()


class Impatient(Tells):
    expires = 0.2


class Item(task.Task):
    eta = 0.3

    def execute(self, item: int) -> float:
        return time.time()


class Spoils(task.Task):
    def execute(self) -> None:
        raise LookupError("spoilt")


class Quits(MuchLater):
    cancel_on_revert = True


@pytest.fixture(params=KINDS)
def options(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dict[str, Any]]:
    """Options of `engines.load` for each kind of engine."""
    kind = {"one thread": "threads", "local_tasks": "memory"}.get(request.param, request.param)
    slots = 3 if request.param == "threads" else 1
    with engine_options(kind, tmp_path, sys.modules[__name__], slots=slots) as found:
        yield {**found, "local_tasks": ["t"]} if request.param == "local_tasks" else found


def test_tasks_and_items_are_not_started_before_their_eta(options: dict[str, Any]) -> None:
    flow = unordered_flow.Flow("f").add(Later("t", provides="later"), Tells("o", provides="now"))
    flow.add(task.Map(Item("m"), over="items", provides="items_later"))
    began = time.time()
    found = engines.run(flow, store={"items": [1, 2]}, **options)
    assert min(found["later"], *found["items_later"]) >= began + 0.3
    assert found["now"] < found["later"]


def test_task_that_expires_before_its_eta_fails_at_once(options: dict[str, Any]) -> None:
    began = time.monotonic()
    with pytest.raises(exceptions.Expired, match="'t' expired before it started"):
        engines.run(linear_flow.Flow("f").add(TooLate("t")), **options)
    assert time.monotonic() < began + 60


@pytest.mark.parametrize("options", ["serial", "one thread", "processes", "memory"], indirect=True)
def test_task_expires_while_another_occupies_the_slot(options: dict[str, Any]) -> None:
    flow = unordered_flow.Flow("f").add(Takes("first"), Impatient("t"))
    with pytest.raises(exceptions.Expired, match="'t' "):
        engines.run(flow, **options)


@pytest.mark.parametrize("how", ["suspend", "cancel", "deadline"])
def test_task_waiting_for_eta_is_withdrawn_when_run_ends(options: dict[str, Any], how: str) -> None:
    engine = engines.load(linear_flow.Flow("f").add(MuchLater("t")), **options)
    steer = {"suspend": engine.suspend, "cancel": engine.cancel, "deadline": bool}[how]
    threading.Timer(0.3, steer).start()
    if how == "suspend":
        engine.run()
        assert engine.storage.get_flow_state() == states.SUSPENDED
        assert engine.storage.get_atom_state("t") == states.PENDING
        return
    error = exceptions.Cancelled if how == "cancel" else exceptions.DeadlineExceeded
    with pytest.raises(error):
        engine.run(deadline=0.3 if how == "deadline" else None)
    assert engine.storage.get_flow_state() == states.REVERTED
    assert engine.storage.get_execute_failures().keys() <= {"t"}


def test_task_waiting_for_eta_ends_early_with_cancel_on_revert(options: dict[str, Any]) -> None:
    began = time.monotonic()
    with pytest.raises(LookupError, match="spoilt"):
        engines.run(unordered_flow.Flow("f").add(Quits("t"), Spoils("s")), **options)
    assert time.monotonic() < began + 60
