"""Operations of a process that does not know the classes of the values of a flow."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.support.waiting import until
from wbengine import engines, exceptions, operations, states, task
from wbengine.engines import _allowed
from wbengine.operations import _flow_results, _operation
from wbengine.patterns import linear_flow
from wbengine.persistence import base
from wbengine.types.codec import classes

#: Code of a module that a process imports late.
_MODULE = """
import dataclasses
from wbengine import task

@dataclasses.dataclass
class Price:
    amount: int

@task.task
def pay(price: Price) -> int:
    if price.amount < 0:
        raise ValueError("too cheap")
    return price.amount
"""


@dataclasses.dataclass
class Order:
    number: int


@task.workflow
def checkout(steps: Any, order: Order) -> None:
    steps.run(pay, order)
    steps.wait_for("approved")


@task.task
def pay(order: Order) -> Order:
    return order


@pytest.fixture(params=["workflow", "graph"])
def waiting(
    request: pytest.FixtureRequest, store: base.Backend, monkeypatch: pytest.MonkeyPatch
) -> str:
    """Store a suspended flow that waits for a signal, and forget the class of its input."""
    graph = linear_flow.Flow("order").add(pay("pay"), task.WaitFor("approved"))
    flow = checkout if request.param == "workflow" else graph
    engine = engines.load(flow, {"order": Order(7)}, backend=store)
    running = threading.Thread(target=engine.run)
    running.start()
    uuid: str = engine.storage.flow_uuid
    until(lambda: bool(operations.find(store, uuid).waits_for))
    engine.suspend()
    running.join(30)
    monkeypatch.delitem(classes.ALLOWED, f"{__name__}.Order")
    with (
        contextlib.closing(store.get_connection()) as connection,
        pytest.raises(exceptions.CorruptRecord, match="Order' is not known"),
    ):
        connection.get_flow_details(uuid)
    return uuid


def test_task_type_is_paused(store: base.Backend, waiting: str) -> None:
    scope = _operation.Scope(store, "ann")
    paused = _operation.load("tasks pause").perform(scope, {"pattern": "shop.pay"})
    assert f"did you mean '{__name__}.pay'" in str(paused["warning"])
    assert [each.pattern for each in operations.paused_tasks(store)] == ["shop.pay"]


def test_awaited_signal_is_sent(store: base.Backend, waiting: str) -> None:
    assert operations.signal(store, waiting, "approved", strict=True) == 1
    with contextlib.suppress(exceptions.Duplicate):  # A workflow accepts it.
        assert operations.signal(store, waiting, "approved") == 2
    with pytest.raises(exceptions.NotFound, match="approved"):
        operations.signal(store, waiting, "paid", strict=True)


@pytest.mark.parametrize("amount", [3, -3])
def test_result_is_read_before_the_code_was_imported(
    store: base.Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, amount: int
) -> None:
    name = "late_prices" if amount > 0 else "late_prices_of_failed_flow"
    (tmp_path / f"{name}.py").write_text(_MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    module: Any = __import__(name)
    handle = engines.submit(f"{name}:pay", inputs={"price": module.Price(amount)}, backend=store)
    with contextlib.suppress(ValueError):
        operations.resume(store, handle.id).run()
    monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(classes.ALLOWED, f"{name}.Price")
    _allowed.set_for_process([name])
    try:
        with contextlib.closing(store.get_connection()) as connection:
            result = _flow_results.read(connection, handle.id)
    finally:
        _allowed.set_for_process(None)
    if amount > 0:
        assert result.state == states.SUCCESS and result.values is not None
        assert result.values["price"].amount == 3
    else:
        assert result.error == ("ValueError", "too cheap")
