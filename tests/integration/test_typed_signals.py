"""Signals whose values have an expected type."""

from __future__ import annotations

import contextlib
import dataclasses
import decimal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import typed_orders
from tests.support.typed_orders import Approval, Receipt
from tests.support.waiting import until
from wbengine import engines, exceptions, operations, states, task, testing
from wbengine.patterns import unordered_flow
from wbengine.persistence import backends
from wbengine.types import codec

ANN = Approval("ann", decimal.Decimal("1.50"))
RECEIPT = Receipt(1, decimal.Decimal(1))
JSON_ANN = {"by": "ann", "limit": "1.50"}


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[Any]:
    with contextlib.closing(backends.fetch(f"sqlite:///{tmp_path}/flows.db")) as opened:
        yield opened


def submit(backend: Any, factory: Any, **signals: Any) -> engines.FlowHandle[Any]:
    """Submit a flow, send it signals, and run it until it waits or ends."""
    handle = engines.submit(factory, backend=backend)
    for name, value in signals.items():
        handle.signal(name, value)
    testing.run_submitted(backend)
    return handle


def logged(backend: Any, handle: engines.FlowHandle[Any]) -> list[str]:
    """Return the stored log lines of a flow."""
    with contextlib.closing(backend.get_connection()) as connection:
        return [line.text for chunk in connection.get_logs(handle.id) for line in chunk.lines]


@pytest.mark.parametrize("workflow", [typed_orders.approved, typed_orders.approved_later])
@pytest.mark.parametrize("sent", [JSON_ANN, ANN])
def test_value_of_a_signal_is_converted_and_replayed(
    backend: Any, workflow: Any, sent: Any
) -> None:
    handle = submit(backend, workflow)
    handle.signal("approved", sent)
    testing.run_submitted(backend)  # The first wait ends.
    assert handle.state == states.WAITING
    handle.signal("approved", {"by": 3})  # Nothing checks the second one.
    testing.run_submitted(backend)
    assert handle.value(10) == [ANN, {"by": 3}]


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        ({"by": 3}, r"signals\['approved'\]\.by: 3 is not of type 'string'"),
        ({"by": "ann", "limt": 1}, r"signals\['approved'\]: .*'limt' was unexpected"),
        ("yes", r"signals\['approved'\]: 'yes' is not of type 'object'"),
        (RECEIPT, "expected .*Approval, got .*Receipt"),
    ],
)
def test_wrong_value_is_refused_while_the_flow_waits(backend: Any, value: Any, fault: str) -> None:
    handle = submit(backend, typed_orders.approved)
    assert handle.state == states.WAITING
    with pytest.raises(ValueError, match=fault):
        handle.signal("approved", value)
    assert handle.signal("approved", ANN) == 1


def test_early_wrong_values_are_discarded_also_in_replays(backend: Any) -> None:
    handle = engines.submit(typed_orders.approved, backend=backend)
    for value in ({"by": 3}, RECEIPT, JSON_ANN):
        handle.signal("approved", value)
    testing.run_submitted(backend)
    assert handle.state == states.WAITING
    lines = logged(backend, handle)
    second = f"signals['approved']: expected Approval, got {RECEIPT}"
    assert [line for line in lines if "approved" in line] == [
        "Signal 'approved' was discarded: signals['approved'].by: expected str, got 3",
        f"Signal 'approved #2' was discarded: {second}",
    ]
    testing.run_submitted(backend)
    handle.signal("approved", "second")
    testing.run_submitted(backend)
    assert handle.value(10) == [ANN, "second"]


@pytest.mark.parametrize(
    "factory",
    [typed_orders.approved_flow, typed_orders.approved, typed_orders.approved_by_many],
)
def test_wrong_value_is_logged_once_although_the_flow_wakes_again(
    backend: Any, factory: Any
) -> None:
    handle = engines.submit(factory, backend=backend)
    handle.signal("approved", {"by": 3})
    for _ in range(3):
        assert [each.id for each in testing.run_submitted(backend)] == [handle.id]
        assert handle.state == states.WAITING
        operations.request(backend, handle.id, "resume")
    lines = [line for line in logged(backend, handle) if "was discarded" in line]
    assert len(lines) == 1


def test_task_that_waits_accepts_a_second_signal_after_a_wrong_one(backend: Any) -> None:
    handle = submit(backend, typed_orders.approved_flow, approved={"by": 3})
    assert handle.state == states.WAITING
    assert handle.signal("approved", JSON_ANN) == 2
    testing.run_submitted(backend)
    assert handle.result(10)["approval"] == ANN


def test_second_signal_is_refused_if_the_first_one_was_not_discarded(backend: Any) -> None:
    handle = submit(backend, typed_orders.approved_flow)
    assert handle.signal("approved", ANN) == 1
    with pytest.raises(exceptions.Duplicate, match="already has signal 'approved'"):
        handle.signal("approved", {"by": "bob", "limit": "2"})
    testing.run_submitted(backend)
    assert handle.result(10)["approval"] == ANN


@pytest.mark.parametrize("stored", [False, True])
def test_running_task_accepts_one_signal_after_a_discarded_one(backend: Any, stored: bool) -> None:
    Waits.end.clear()
    other_task = Waits("other")
    flow = unordered_flow.Flow("f").add(*typed_orders.approved_flow(), other_task)
    engine = engines.load(
        flow, backend=backend if stored else None, engine="parallel", executor="threaded"
    )
    engine.compile()
    engine.prepare()
    running = threading.Thread(target=engine.run)
    running.start()
    try:
        until(lambda: engine.storage.get_atom_state("wait-for-approved") == states.RUNNING, 10)
        engine.signal("approved", {"by": "ann", "limit": "much"})  # It satisfies the schema.
        until(lambda: sends_second(engine), 10)
        with pytest.raises(exceptions.Duplicate):
            engine.signal("approved", JSON_ANN)
    finally:
        other_task.end.set()
        running.join(10)
    assert engine.storage.fetch("approval") == ANN


def sends_second(engine: Any) -> bool:
    with contextlib.suppress(exceptions.Duplicate):
        return bool(engine.signal("approved", JSON_ANN) == 2)
    return False


class Waits(task.Task):
    end = threading.Event()

    def execute(self) -> None:
        self.end.wait(20)


@pytest.mark.parametrize("factory", [typed_orders.approved_flow, typed_orders.approved])
def test_engine_without_a_store_discards_and_refuses(factory: Any) -> None:
    engine = engines.load(factory() if factory is typed_orders.approved_flow else factory)
    if factory is typed_orders.approved_flow:
        engine.signal("approved", {"by": 3})
    running = threading.Thread(target=engine.run)
    running.start()
    until(lambda: bool(engine.storage.flow_detail.waits_for), 10)
    with pytest.raises(ValueError, match="by: 4 is not of type 'string'"):
        engine.signal("approved", {"by": 4})
    engine.signal("approved", JSON_ANN)
    if factory is typed_orders.approved:
        engine.signal("approved", None)
    running.join(10)
    assert not running.is_alive()
    if factory is typed_orders.approved_flow:
        assert engine.storage.fetch("approval") == ANN


def test_timeout_ends_a_wait_that_discarded_a_signal(backend: Any) -> None:
    handle = submit(backend, typed_orders.impatient, approved="no")
    assert handle.value(10) is None


def test_waits_for_several_signals_convert_values(backend: Any) -> None:
    handle = engines.submit(typed_orders.approved_by_many, backend=backend)
    handle.signal("approved", {"by": 3})
    handle.signal("approved", [JSON_ANN, JSON_ANN])
    handle.signal("confirmed", JSON_ANN)
    handle.signal("approved", [JSON_ANN])
    testing.run_submitted(backend)
    assert handle.value(10) == ["confirmed", ANN, [ANN]]


def test_class_must_be_allowed() -> None:
    @dataclasses.dataclass
    class Secret:
        word: str

    with pytest.raises(TypeError, match=r"Class .*Secret of a signal must be allowed"):
        task.WaitFor("approved", type=list[Secret])
    task.WaitFor("approved", type=list[codec.allow(Secret)])  # type: ignore[misc]
