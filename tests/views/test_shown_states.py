"""Displayed states of flows for all engines and stores."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.engine_threads import Running
from tests.support.waiting import until
from tests.support.workers import worker_in_thread
from wbengine import engines, exceptions, operations, states, task
from wbengine.engines.base import Engine
from wbengine.patterns import linear_flow, unordered_flow
from wbengine.persistence import _commands, backends, base
from wbengine.persistence import _listing as listing_records
from wbengine.views import _event_history, _flow_list, _shown_states, watcher
from wbengine.views import flow_status as flows

RUNS = threading.Event()
GO = threading.Event()


class Holds(task.Task):
    """A task that runs until `GO` is set."""

    def execute(self) -> None:
        RUNS.set()
        assert GO.wait(60)

    def revert(self, **_: Any) -> None:
        RUNS.set()
        assert GO.wait(60)


@pytest.fixture(autouse=True)
def held() -> Iterator[None]:
    RUNS.clear()
    GO.clear()
    yield
    GO.set()


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[base.Backend]:
    url = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/flows.db"
    with backends.backend(url) as made:
        yield made


@pytest.fixture(params=["serial", "parallel", "workers"])
def options(request: pytest.FixtureRequest) -> Iterator[dict[str, Any]]:
    if request.param == "workers":
        with worker_in_thread("memory://shown", sys.modules[__name__], threads_count=1):
            yield {"engine": "worker-based", "url": "memory://shown"}
        return
    yield {"engine": request.param}


class Looks:
    """Views, rows and events of one flow in a store."""

    def __init__(self, store: base.Backend, engine: Engine) -> None:
        self.store = store
        self.uuid = str(engine.storage.flow_uuid)

    def view(self) -> flows.FlowView:
        with self.store.get_connection() as connection:
            return flows.read(connection, self.uuid)

    def row(self) -> _flow_list.RowView:
        with self.store.get_connection() as connection:
            (row,) = _flow_list.page(connection, uuid=self.uuid).flows
            return row

    @property
    def states(self) -> set[str]:
        """Return the states in the view, in the list and in the JSON of both."""
        view, row = self.view(), self.row()
        told = view.to_dict()["shown_state"], row.to_dict()["shown_state"]
        return {view.shown_state, row.shown_state, *told}

    def is_listed(self, state: str) -> bool:
        """Return whether a list of flows in this state contains the flow."""
        with self.store.get_connection() as connection:
            return bool(_flow_list.page(connection, uuid=self.uuid, states=[state]).flows)

    def events(self) -> list[_event_history.Event]:
        with self.store.get_connection() as connection:
            return watcher.events_of(connection.get_flow_details(self.uuid))


def test_cancelled_flow_is_shown_as_cancelling_and_then_as_cancelled(
    store: base.Backend, options: dict[str, Any]
) -> None:
    engine = engines.load(linear_flow.Flow("order").add(Holds("pay")), backend=store, **options)
    looks = Looks(store, engine)
    with Running(engine) as run:
        assert RUNS.wait(60)
        assert looks.states == {states.RUNNING} and not engine.is_cancelled
        operations.cancel(store, looks.uuid, reason="no need", by="ann")
        assert looks.states == {states.CANCELLING} and looks.is_listed(states.CANCELLING)
        until(lambda: engine.is_cancelled)
        assert looks.states == {states.CANCELLING}
        assert looks.view().waiting == "The flow is being cancelled: 1 task is still running."
        RUNS.clear()
        GO.set()
    assert isinstance(run.error, exceptions.Cancelled)
    assert RUNS.is_set()  # the task was reverted
    view = looks.view()
    assert looks.states == {states.CANCELLED} and view.state == states.REVERTED
    assert looks.is_listed(states.CANCELLED) and not looks.is_listed(states.CANCELLING)
    assert (view.cancelled, view.cancel_reason) == (True, "no need (by ann)")
    of_flow = [event for event in looks.events() if event.kind == _event_history.FLOW]
    assert [event.state for event in of_flow] == ["RUNNING", "CANCELLING", "REVERTED"]
    assert of_flow[1].error == "no need (by ann)"


def test_flow_with_suspend_command_is_shown_as_suspending(store: base.Backend) -> None:
    engine = engines.load(linear_flow.Flow("order").add(Holds("a"), Holds("b")), backend=store)
    looks = Looks(store, engine)
    with Running(engine):
        assert RUNS.wait(60)
        operations.suspend(store, looks.uuid)
        assert looks.states == {states.SUSPENDING} and looks.is_listed(states.SUSPENDING)
        until(lambda: engine.storage.get_flow_state() == states.SUSPENDING)
        GO.set()
    assert looks.states == {states.SUSPENDED}


def approval() -> task.WaitFor:
    return task.WaitFor("approved", timeout=600)


def test_flow_that_waits_for_a_signal_is_shown_as_waiting(
    store: base.Backend, options: dict[str, Any]
) -> None:
    flow = linear_flow.Flow("order").add(approval())
    engine = engines.load(flow, backend=store, **options)
    looks = Looks(store, engine)
    with Running(engine):
        until(lambda: looks.states == {states.WAITING})
        view, (wait,) = looks.view(), looks.view().waits_for
        assert (wait.task, wait.signal) == ("wait-for-approved", "approved")
        assert wait.until == pytest.approx(wait.since + 600)
        assert looks.row().waits_for == (wait,) and looks.is_listed(states.WAITING)
        assert dict(view.shown_counts) == {states.WAITING: 1}
        assert view.atoms[0].shown_state == states.WAITING and not view.queued
        assert str(view.waiting).startswith("wait-for-approved: Waiting for signal 'appro")
        engine.suspend()
    assert looks.states == {states.SUSPENDED}
    assert looks.view().waits_for == looks.row().waits_for == ()
    with store.get_connection() as connection:
        detail = connection.get_flow_details(looks.uuid)
    engine = engines.load(flow, flow_detail=detail, backend=store, **options)
    with Running(engine):
        until(lambda: looks.states == {states.WAITING})
        assert looks.view().waits_for == (wait,)
        engine.signal("approved")
    assert looks.states == {states.SUCCESS}
    (atom,) = looks.view().atoms
    assert (atom.attempt, atom.executions, atom.started) == (1, 1, pytest.approx(wait.since))
    assert {event.attempt for event in looks.events() if event.kind == _event_history.ATOM} == {1}


def test_flow_with_a_running_task_is_not_shown_as_waiting(store: base.Backend) -> None:
    flow = unordered_flow.Flow("order").add(approval(), Holds("pay"))
    engine = engines.load(flow, backend=store, engine="parallel")
    looks = Looks(store, engine)
    with Running(engine):
        assert RUNS.wait(60)
        until(lambda: looks.view().waits_for)
        assert looks.states == {states.RUNNING} and looks.row().waits_for == ()
        counts = {states.RUNNING: 1, states.WAITING: 1}
        until(lambda: dict(looks.view().shown_counts) == counts)
        GO.set()
        until(lambda: looks.states == {states.WAITING})
        engine.signal("approved")


def test_flow_is_shown_as_running_after_its_signal(store: base.Backend) -> None:
    """A serial engine writes nothing while a task runs."""
    flow = linear_flow.Flow("order").add(approval(), Holds("pay"))
    engine = engines.load(flow, backend=store)
    looks = Looks(store, engine)
    with Running(engine):
        until(lambda: looks.states == {states.WAITING})
        engine.signal("approved")
        assert RUNS.wait(60)
        assert looks.states == {states.RUNNING} and looks.view().waits_for == ()
        GO.set()


def test_malformed_records_of_waits_are_ignored() -> None:
    wait = listing_records.Wait("t", "s", 1.0, None)
    second = wait._replace(number=2)
    assert wait.to_meta() == {"task": "t", "signal": "s", "since": 1.0, "until": None}
    assert listing_records.waits_of([wait.to_meta(), second.to_meta()]) == (wait, second)
    assert listing_records.waits_of([{**wait.to_meta(), "number": "2"}]) == ()
    for odd in (None, 7, "x", {}, [7], [{}], [{**wait._asdict(), "since": "x"}]):
        assert listing_records.waits_of(odd) == ()


def test_cancelled_flow_with_failed_revert_is_shown_as_failure(store: base.Backend) -> None:
    class Stuck(Holds):
        def revert(self, **_: Any) -> None:
            raise RuntimeError("stuck")

    engine = engines.load(linear_flow.Flow("order").add(Stuck("pay")), backend=store)
    looks = Looks(store, engine)
    with Running(engine):
        assert RUNS.wait(60)
        engine.cancel(reason="no need")
        GO.set()
    assert looks.states == {states.FAILURE} and looks.view().cancelled


@pytest.mark.parametrize(
    ("state", "died", "cancelled", "command", "shown"),
    [
        (states.RUNNING, False, False, None, states.RUNNING),
        (states.RUNNING, False, False, _commands.CANCEL, states.CANCELLING),
        (states.RUNNING, False, True, None, states.CANCELLING),
        (states.RUNNING, False, True, _commands.SUSPEND, states.CANCELLING),
        (states.RUNNING, False, False, _commands.SUSPEND, states.SUSPENDING),
        (states.RUNNING, True, True, _commands.CANCEL, _shown_states.INTERRUPTED),
        (states.PENDING, False, False, None, states.PENDING),
        (states.SUCCESS, False, False, _commands.CANCEL, states.SUCCESS),
        (states.REVERTED, False, False, _commands.CANCEL, states.REVERTED),
        (states.REVERTED, False, True, None, states.CANCELLED),
        (states.FAILURE, False, True, None, states.FAILURE),
        (states.FAILURE, False, False, _commands.REVERT, _shown_states.REQUESTED),
        (states.REVERTED, False, True, _commands.RETRY, _shown_states.REQUESTED),
        (states.SUSPENDED, True, False, _commands.RESUME, _shown_states.REQUESTED),
        (states.SUSPENDED, False, True, _commands.RESUME, states.CANCELLING),
        (states.PENDING, False, False, _commands.RESUME, states.PENDING),
        (states.SUCCESS, False, False, _commands.RETRY, states.SUCCESS),
    ],
)
def test_shown_state_follows_from_state_owner_and_command(
    state: str, died: bool, cancelled: bool, command: str | None, shown: str
) -> None:
    found = _shown_states.shown_state(state, "somebody", died, cancelled=cancelled, command=command)
    assert found == shown


def test_pending_flow_that_was_cancelled_is_shown_as_cancelling() -> None:
    shown = _shown_states.shown_state(states.PENDING, None, False, cancelled=True)
    assert shown == states.CANCELLING
