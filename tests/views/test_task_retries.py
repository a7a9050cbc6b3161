"""Views of tasks with retries: the implicit flow and retry controller are hidden."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from wbengine import engines, operations, retry, states, task
from wbengine.drawing import _terminal_tree
from wbengine.patterns import linear_flow
from wbengine.persistence.backends import _memory
from wbengine.views import _event_history, watcher
from wbengine.views import flow_status as flows


class Refused(task.Task):
    """A task that fails `failures` times."""

    failures = 0

    def __init__(self, failures: int, **options: Any) -> None:
        super().__init__("ship")
        self.left = failures
        self.retries, self.backoff = 3, options.get("backoff")

    def execute(self) -> str:
        if self.left:
            self.left -= 1
            raise ConnectionError("no answer")
        return "shipped"


class BadBackoff(retry.Backoff):
    def seconds(self, attempt: int) -> float:
        raise RuntimeError("no wait")


@pytest.fixture
def backend() -> Iterator[_memory.MemoryBackend]:
    made = _memory.MemoryBackend({})
    yield made
    made.close()


def ran(backend: _memory.MemoryBackend, ship: Refused, suspended: bool = False) -> str:
    """Run a flow of `ship` and return its uuid; `suspended` stops it before the second attempt."""
    engine = engines.load(linear_flow.Flow("order").add(ship), backend=backend)
    if suspended:
        engine.atom_notifier.register(states.REVERTED, lambda state, details: engine.suspend())
    try:
        engine.run()
    except (ConnectionError, RuntimeError):
        pass
    return str(engine.storage.flow_uuid)


def look(
    backend: _memory.MemoryBackend, uuid: str
) -> tuple[flows.FlowView, list[_event_history.Event]]:
    with backend.get_connection() as connection:
        detail = connection.get_flow_details(uuid)
        view = flows.read(connection, uuid)
    whole = json.dumps(view.to_dict())
    assert "ship_retry" not in whole and "with retries" not in whole
    events = watcher.events_of(detail)
    assert {event.name for event in events} == {"order", "ship"}
    return view, events


def test_task_that_waits_for_next_attempt_is_shown_as_retrying(
    backend: _memory.MemoryBackend,
) -> None:
    uuid = ran(backend, Refused(1, backoff=retry.Backoff(1000)), suspended=True)
    view, events = look(backend, uuid)
    (ship,) = view.atoms
    assert (ship.name, ship.state, ship.executions) == ("ship", "RETRYING", 1)
    assert dict(view.counts) == {"RETRYING": 1}
    assert ship.waiting is not None and ship.waiting.startswith("Next attempt at ")
    assert ship.failure is not None and ship.failure.line == "ConnectionError: no answer"
    text = _terminal_tree.text(view.outline, view)
    assert "0 of 1 task done, 1 retrying" in text
    assert re.search("ship  retrying  .* ConnectionError: no answer  Next attempt at ", text)
    assert events[-1].state == "RETRYING" and events[-1].name == "ship"
    assert operations.plan(backend, uuid, "resume") == (("ship",), ())


def test_task_that_succeeds_in_third_attempt_shows_its_attempts(
    backend: _memory.MemoryBackend,
) -> None:
    view, events = look(backend, ran(backend, Refused(2)))
    (ship,) = view.atoms
    assert (ship.state, ship.executions, view.state) == ("SUCCESS", 3, "SUCCESS")
    assert [event.state for event in events if event.state in ("FAILURE", "SUCCESS")] == [
        "FAILURE", "FAILURE", "SUCCESS", "SUCCESS",
    ]  # fmt: skip
    assert "attempt 3" in _terminal_tree.text(view.outline, view)


def test_task_that_fails_all_attempts_is_reverted(backend: _memory.MemoryBackend) -> None:
    view, _ = look(backend, ran(backend, Refused(9)))
    (ship,) = view.atoms
    assert (ship.state, ship.executions, view.state) == ("REVERTED", 4, "REVERTED")
    assert [failure.atom for failure in view.failures] == ["ship"]


def test_error_of_backoff_is_shown_as_error_of_its_task(backend: _memory.MemoryBackend) -> None:
    view, _ = look(backend, ran(backend, Refused(9, backoff=BadBackoff())))
    (ship,) = view.atoms
    assert (ship.state, view.state) == ("REVERTED", "REVERTED")
    assert [failure.line for failure in view.failures] == ["RuntimeError: no wait"]
    assert view.history[-1].why == "ship: RuntimeError: no wait"


def test_event_pages_name_only_the_task(backend: _memory.MemoryBackend) -> None:
    uuid = ran(backend, Refused(2))
    with backend.get_connection() as connection:
        detail = connection.get_flow_details(uuid)
    page = _event_history.page(detail, flows.Redactor())
    assert {event.name for event in page.events} == {"order", "ship"}
