"""Pauses of task types that no stored flow has."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.paused_tasks import Charge, Ship
from wbengine import engines, exceptions, operations, task
from wbengine.operations import _operation
from wbengine.patterns import linear_flow
from wbengine.persistence import backends, base
from wbengine.persistence._pauses import TaskPause
from wbengine.types import codec
from wbengine.types._encoding import classes

CHARGE = "tests.support.paused_tasks.Charge"


@pytest.fixture
def store() -> Iterator[base.Backend]:
    """A store with an ended flow: a task `charge` of type `Charge`, and a step of type `Ship`."""
    with backends.backend("memory://") as backend:
        flow = linear_flow.Flow("f").add(Charge("charge"), shipping())
        engines.run(flow, backend=backend)
        yield backend


@task.workflow
def shipping(steps: Any) -> str:
    name: str = steps.run(Ship)
    return name


def warning(store: base.Backend, pattern: str) -> str | None:
    result = _operation.load("tasks pause").perform(_operation.Scope(store), {"pattern": pattern})
    assert result["pattern"] == pattern
    text: str | None = result["warning"]
    return text


@pytest.mark.parametrize(
    ("pattern", "hint"),
    [
        ("charge", f" (did you mean {CHARGE!r}?)"),
        ("Charge", f" (did you mean {CHARGE!r}?)"),
        ("refund", ""),
        ("shop.Charge", f" (did you mean {CHARGE!r}?)"),
        (f"{CHARGE}d", f" (did you mean {CHARGE!r}?)"),
    ],
)
def test_pause_of_unknown_type_warns(store: base.Backend, pattern: str, hint: str) -> None:
    reason = f"no unfinished or recent flow has a task of type {pattern!r}"
    assert warning(store, pattern) == reason + hint


@pytest.mark.parametrize("pattern", [CHARGE, "*.Charge", "tests.*", "*.Ship"])
def test_pause_of_known_type_has_no_warning(store: base.Backend, pattern: str) -> None:
    assert warning(store, pattern) is None


def test_pause_that_another_user_renews_meanwhile_is_kept(
    store: base.Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    with contextlib.closing(store.get_connection()) as connection:
        connection.put_pause(TaskPause("shop.ship", "stock", "bob", 1.0, 2.0))
        read = type(connection).pauses

        def renew(self: base.Connection) -> Sequence[TaskPause]:
            pauses = read(self)
            monkeypatch.undo()
            operations.pause_tasks(store, "shop.ship", by="bob")
            return pauses

        monkeypatch.setattr(type(connection), "pauses", renew)
    operations.pause_tasks(store, "shop.charge", by="ann")
    assert [each.pattern for each in operations.paused_tasks(store)] == [
        "shop.charge", "shop.ship",
    ]  # fmt: skip


def test_pause_in_empty_store_has_no_warning() -> None:
    with backends.backend("memory://") as empty:
        assert warning(empty, "shop.charge") is None


@codec.allow
@dataclasses.dataclass
class Parcel:
    weight: int


@task.workflow
def send(steps: Any, parcel: Parcel) -> Any:
    steps.run(Ship)
    return steps.wait_for("sent")


def test_values_of_unknown_classes_are_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commands and the dashboard do not import the classes of flows."""
    with backends.backend(f"sqlite:///{tmp_path}/flows.db") as backend:
        engine = engines.load(send, {"parcel": Parcel(3)}, backend=backend)
        engine.signal("sent", Parcel(3))
        engine.run()
        waiting = linear_flow.Flow("f").add(task.WaitFor("paid"))
        uuid = engines.load(waiting, {"parcel": Parcel(4)}, backend=backend).storage.flow_uuid
        monkeypatch.delitem(classes.ALLOWED, f"{__name__}.Parcel")
        assert warning(backend, "*.Ship") is None
        operations.signal(backend, uuid, "paid", 1)
        with pytest.raises(exceptions.NotFound, match="nothing waits for signal 'sent'"):
            operations.signal(backend, uuid, "sent", strict=True)
