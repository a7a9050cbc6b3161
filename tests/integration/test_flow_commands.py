"""Commands to flows that another process runs."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import python
from tests.support.engine_threads import running
from wbengine import engines, states, task
from wbengine.patterns import linear_flow
from wbengine.persistence import backends, base, models
from wbengine.persistence.backends import _memory

PROGRAM = """
import sys, time
from pathlib import Path
from wbengine import engines, task
from wbengine.patterns import linear_flow
from wbengine.persistence import backends

class Step(task.Task):
    def execute(self):
        print(self.name, flush=True)
        while self.name == "second" and not self.cancelled and not Path(sys.argv[2]).exists():
            time.sleep(0.01)

    def revert(self, **rest):
        print("undo " + self.name, flush=True)

flow = linear_flow.Flow("f").add(Step("first"), Step("second"), Step("third"))
with backends.backend(sys.argv[1]) as backend:
    engine = engines.load(flow, backend=backend)
    print(engine.storage.flow_uuid, flush=True)
    engine.notifier.register("SUSPENDING", lambda state, details: print(state, flush=True))
    try:
        engine.run()
    except Exception as error:
        print(type(error).__name__, flush=True)
    print(engine.storage.get_flow_state(), flush=True)
"""


class Child:
    """Process that runs the flow up to its second task."""

    def __init__(self, url: str, folder: Path) -> None:
        self.go = folder / "go"
        self.process = python.start(
            ["-c", PROGRAM, url, str(self.go)], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.told = self.process.stdout
        self.flow = self.told.readline().strip()
        assert [self.told.readline().strip() for _ in range(2)] == ["first", "second"]

    def rest(self) -> list[str]:
        return self.told.read().split("\n")[:-1]

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.told.close()


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/s.db"


@pytest.fixture
def child(url: str, tmp_path: Path) -> Iterator[Child]:
    made = Child(url, tmp_path)
    yield made
    made.close()


@pytest.fixture
def connection(url: str) -> Iterator[base.Connection]:
    with backends.backend(url) as backend, backend.get_connection() as made:
        yield made


def test_suspend_command_suspends_run_and_is_recorded_in_history(
    child: Child, connection: base.Connection
) -> None:
    """The running task completes, and no other task starts. The history names the sender."""
    connection.send_command(child.flow, base.FlowCommand("suspend", "lunch", "cook"))
    assert child.told.readline().strip() == "SUSPENDING"
    child.go.touch()
    assert child.rest() == ["SUSPENDED"]
    history = connection.get_flow_details(child.flow).history
    assert [(change.state, change.why) for change in history] == [
        ("RUNNING", None), ("SUSPENDING", "suspended by cook: lunch"), ("SUSPENDED", None),
    ]  # fmt: skip
    assert connection.commands([child.flow]) == {}


def test_cancel_command_reverts_the_flow(child: Child, connection: base.Connection) -> None:
    connection.send_command(child.flow, base.FlowCommand("cancel", "no more", "cook"))
    told = child.rest()
    assert told[-2:] == ["Cancelled", "REVERTED"] and "undo first" in told
    found = connection.get_flow_details(child.flow)
    assert found.error == "Cancelled: the flow was cancelled: no more (by cook)"
    assert connection.commands([child.flow]) == {}


class Waits(task.Task):
    """Task that waits for `go` and reports its start with `began`."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.began, self.go = threading.Event(), threading.Event()

    def execute(self) -> None:
        self.began.set()
        assert self.go.wait(60)


def test_command_that_a_run_did_not_read_is_refused_if_the_flow_ended(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The engine logs the refusal, and a later run does not execute the command."""
    backend = _memory.MemoryBackend()
    first, second = Waits("first"), Waits("second")
    engine = engines.load(linear_flow.Flow("f").add(first, second), backend=backend)
    with backend.get_connection() as connection, running(engine):
        assert first.began.wait(60)
        first.go.set()
        assert second.began.wait(60)
        engine.suspend()
        held = engine._ownership.held  # type: ignore[attr-defined]
        held.close()  # From now on the engine does not read commands.
        connection.send_command(engine.storage.flow_uuid, base.FlowCommand("cancel"))
        second.go.set()
    assert engine.storage.get_flow_state() == states.SUCCESS
    assert "Flow 'f' has ended in SUCCESS: it was not cancelled" in caplog.text
    with backend.get_connection() as connection:
        assert connection.commands([engine.storage.flow_uuid]) == {}
        engine.reset()
        engine.run()
    assert engine.storage.get_flow_state() == states.SUCCESS


def test_outline_is_stored_and_updated_when_the_flow_changes(url: str) -> None:
    """The outline is written once, and again if different code resumes the flow."""

    def flow(*names: str) -> Any:
        return linear_flow.Flow("f").add(*[Waits(name) for name in names])

    def run(made: Any, detail: models.FlowDetail | None = None) -> engines.base.Engine:
        for step in made:
            step.go.set()
        engine = engines.load(made, flow_detail=detail, backend=backend)
        engine.run()
        return engine

    with backends.backend(url) as backend, backend.get_connection() as connection:
        engine = run(flow("a", "b"))
        uuid = engine.storage.flow_uuid
        kept = connection.get_outline(uuid)
        assert kept == engine.compilation.outline
        assert connection.get_flow_details(uuid).outlined == kept.digest
        engine.reset()
        run(flow("a", "b", "c"), connection.get_flow_details(uuid))
        later = connection.get_outline(uuid)
        assert [node.name for node in later.nodes] == ["f", "a", "b", "c"]
