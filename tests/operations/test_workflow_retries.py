"""Retries of workflows that failed, with steps whose effects remain."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from wbengine import exceptions, operations, states, steps, task
from wbengine.persistence import backends, base

EFFECTS: list[str] = []
FAILING: set[str] = set()


@task.task
def pay() -> None:
    EFFECTS.append("pay")


@pay.revert
def refund() -> None:
    EFFECTS.append("refund")


@task.task
def look_up() -> None:
    EFFECTS.append("look up")


@task.task
def book() -> None:
    if "book" in FAILING:
        raise ValueError("no")
    EFFECTS.append("book")


@task.workflow
def paid(steps: steps.Steps) -> None:
    steps.run(pay)
    steps.run(book)


@task.workflow
def free(steps: steps.Steps) -> None:
    steps.run(look_up)
    steps.run(book)


@task.workflow
def parent(steps: steps.Steps) -> None:
    steps.child(paid)


@task.workflow
def harmless_parent(steps: steps.Steps) -> None:
    steps.child(free)


@pytest.fixture
def store() -> Iterator[base.Backend]:
    EFFECTS.clear()
    with backends.backend("memory://") as made:
        yield made


def failed(store: base.Backend, workflow: str) -> str:
    FAILING.add("book")
    engine = operations.start(store, f"{__name__}:{workflow}", never_resolve=True)
    with pytest.raises(ValueError, match="no"):
        engine.run()
    FAILING.clear()
    return str(engine.storage.flow_uuid)


def test_workflow_is_not_retried_if_it_would_repeat_an_effect(store: base.Backend) -> None:
    uuid = failed(store, "paid")
    with pytest.raises(exceptions.InvalidState, match=r"it would repeat step .*pay"):
        operations.retry(store, uuid, never_resolve=True)
    with pytest.raises(ValueError, match="no"):
        operations.revert(store, uuid, never_resolve=True).run()
    operations.retry(store, uuid, never_resolve=True).run()
    assert EFFECTS == ["pay", "refund", "pay", "book"]
    assert operations.find(store, uuid).state == states.SUCCESS


def test_workflow_whose_steps_have_no_revert_is_retried(store: base.Backend) -> None:
    uuid = failed(store, "free")
    operations.retry(store, uuid, never_resolve=True).run()
    assert EFFECTS == ["look up", "look up", "book"]


def test_parent_is_retried_after_its_failed_child_is_reverted(store: base.Backend) -> None:
    uuid = failed(store, "parent")
    with store.get_connection() as connection:
        (child,) = connection.list_flows(parent=uuid).flows
    assert child.state == states.FAILURE
    with pytest.raises(exceptions.InvalidState, match=f"wbengine flow revert {child.uuid}"):
        operations.retry(store, uuid, never_resolve=True)
    with pytest.raises(ValueError, match="no"):
        operations.revert(store, child.uuid, never_resolve=True).run()
    operations.retry(store, uuid, never_resolve=True).run()
    assert EFFECTS == ["pay", "refund", "pay", "book"]


def test_parent_of_failed_child_without_effects_is_retried(store: base.Backend) -> None:
    uuid = failed(store, "harmless_parent")
    operations.retry(store, uuid, never_resolve=True).run()
    assert EFFECTS == ["look up", "look up", "book"]
