"""Stored values that the classes of a process cannot decode: they block the flow."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel

from tests.support import conducted, released
from tests.support.waiting import until
from wbengine import engines, exceptions, operations, states, task
from wbengine.conductors.backends import impl_nonblocking
from wbengine.jobs.backends import impl_sql
from wbengine.patterns import linear_flow
from wbengine.persistence import base
from wbengine.steps import Steps
from wbengine.types import codec
from wbengine.types._encoding import classes
from wbengine.views import flow_status

pytestmark = pytest.mark.parametrize("uri", ["sqlite"], indirect=True)

CALLS: list[str] = []


@codec.allow
class Order(BaseModel):
    price: int


@codec.allow
@dataclasses.dataclass
class Approval:
    by: str


@task.task
def charge(order):  # type: ignore[no-untyped-def]
    CALLS.append("charge")
    return order


@charge.revert
def refund() -> None:
    CALLS.append("refund")


def make() -> linear_flow.Flow:
    flow = linear_flow.Flow("orders")
    return flow.add(
        charge("charge", provides="paid"),
        task.WaitFor("approved", provides="approval"),
        charge("again", provides="twice", rebind={"order": "paid"}),
    )


@task.workflow
def approve(steps: Steps) -> Any:
    steps.run(charge, order=Order(price=1))
    return steps.wait_for("approved")


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    released.park_at_once(monkeypatch)
    CALLS.clear()


@contextlib.contextmanager
def serving(board: impl_sql.SQLJobBoard) -> Iterator[None]:
    conductor = impl_nonblocking.NonBlockingConductor("c", board, persistence=board.persistence)
    with conducted.running(conductor):
        yield


def store_of(board: impl_sql.SQLJobBoard) -> base.Backend:
    assert board.persistence is not None
    return board.persistence


def view(board: impl_sql.SQLJobBoard, uuid: str) -> Any:
    with contextlib.closing(store_of(board).get_connection()) as connection:
        return flow_status.read(connection, uuid)


def is_shown(board: impl_sql.SQLJobBoard, uuid: str, state: str) -> bool:
    is_claimed = any(job.state == states.CLAIMED for job in board.iterjobs())
    return view(board, uuid).shown_state == state and not is_claimed


def forget(monkeypatch: pytest.MonkeyPatch, cls: type) -> None:
    monkeypatch.delitem(classes.ALLOWED, f"{__name__}.{cls.__name__}")


@contextlib.contextmanager
def blocked_without(
    cls: type, board: impl_sql.SQLJobBoard, uuid: str, patch: pytest.MonkeyPatch
) -> Iterator[Any]:
    """Run a conductor without the class until the flow is blocked; yield the view of the flow."""
    with patch.context() as temporary:
        forget(temporary, cls)
        with serving(board):
            until(lambda: is_shown(board, uuid, states.BLOCKED))
        yield view(board, uuid)


def submit(board: impl_sql.SQLJobBoard, code: Any, until_state: str, **inputs: Any) -> Any:
    handle = engines.submit(code, inputs=inputs, backend=store_of(board))
    if until_state != states.PENDING:
        with serving(board):
            until(lambda: is_shown(board, handle.id, until_state))
    return handle


@pytest.mark.parametrize("begun", [False, True], ids=["pending", "parked"])
def test_value_of_unknown_class_blocks_flow_until_class_is_known(
    board: impl_sql.SQLJobBoard, monkeypatch: pytest.MonkeyPatch, begun: bool
) -> None:
    state = states.WAITING if begun else states.PENDING
    handle = submit(board, make, state, order=Order(price=1))
    handle.signal("approved", 1)
    with blocked_without(Order, board, handle.id, monkeypatch) as shown:
        assert handle.state == states.BLOCKED
        assert f"class '{__name__}.Order' is not known" in shown.situation.difference
        assert handle.id in shown.situation.difference
    calls = ["charge"] if begun else []
    assert calls == CALLS
    with serving(board):
        assert handle.result(30)["twice"] == Order(price=1)
    assert CALLS == ["charge", "charge"]


def test_value_that_its_class_refuses_blocks_the_flow(
    board: impl_sql.SQLJobBoard, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = submit(board, make, states.WAITING, order=Order(price=1))
    handle.signal("approved", 1)

    class Stricter(BaseModel):
        price: str

    form = classes.ALLOWED[f"{__name__}.Order"]
    with monkeypatch.context() as patch:
        patch.setattr(form, "cls", Stricter)
        with serving(board):
            until(lambda: is_shown(board, handle.id, states.BLOCKED))
        assert (
            "price: Input should be a valid string" in view(board, handle.id).situation.difference
        )
    with serving(board):
        assert handle.result(30)["paid"] == Order(price=1)


@pytest.mark.parametrize("code", [make, approve], ids=["flow", "workflow"])
def test_signal_of_unknown_class_blocks_the_flow_and_stays(
    board: impl_sql.SQLJobBoard, monkeypatch: pytest.MonkeyPatch, code: Any
) -> None:
    inputs = {"order": Order(price=1)} if code is make else {}
    handle = submit(board, code, states.WAITING, **inputs)
    handle.signal("approved", Approval("ann"))
    with blocked_without(Approval, board, handle.id, monkeypatch) as shown:
        difference = shown.situation.difference
        assert "Signal 'approved', for which task" in difference
        assert f"class '{__name__}.Approval' is not known" in difference
    assert CALLS == ["charge"]
    with serving(board):
        values = handle.result(30)
    assert values["approval" if code is make else "result"] == Approval("ann")


def test_interrupted_flow_with_value_of_unknown_class_is_blocked(
    board: impl_sql.SQLJobBoard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process of its engine died while a task ran."""
    handle = submit(board, make, states.PENDING, order=Order(price=1))
    store = store_of(board)
    with contextlib.closing(store.get_connection()) as connection:
        detail = connection.get_flow_details(handle.id)
        detail.state = states.RUNNING
        for atom in detail:
            if atom.name == "charge":
                atom.state = states.RUNNING
        lease = connection.acquire_lease(handle.id, "nobody", 0.01)
        connection.save_changes(detail, list(detail), lease=lease)
        connection.release_lease(lease)
    handle.signal("approved", 1)
    with blocked_without(Order, board, handle.id, monkeypatch):
        pass
    with serving(board):
        assert handle.result(30)["twice"] == Order(price=1)


def test_resume_of_a_flow_with_unknown_class_changes_nothing(
    board: impl_sql.SQLJobBoard, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = submit(board, make, states.WAITING, order=Order(price=1))
    with monkeypatch.context() as patch:
        forget(patch, Order)
        with pytest.raises(
            exceptions.CorruptRecord, match=r"\('.*'\) cannot be read: .*Order"
        ) as caught:
            operations.resume(store_of(board), handle.id)
        assert isinstance(caught.value.__cause__, exceptions.UndecodableValue)
    assert is_shown(board, handle.id, states.WAITING)
