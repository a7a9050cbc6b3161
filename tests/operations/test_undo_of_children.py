"""Undo of complete flows that started child flows."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from tests.operations import undo_flows
from tests.operations.undo_flows import record
from wbengine import engines, exceptions, operations, states, task
from wbengine._runtime import undo_plan
from wbengine.engines import _undoing
from wbengine.persistence import _commands, base, models
from wbengine.testing import run_submitted
from wbengine.views import flow_status as views

#: Passes before the clock is read again.
AT_ONCE = 1e-9


def submit(store: base.Backend, workflow: type[task.Workflow], **options: Any) -> str:
    handle = engines.submit(workflow, backend=store, **options)
    run_submitted(store)
    return handle.id


def request(store: base.Backend, uuid: str, **options: Any) -> None:
    operations.request(store, uuid, "revert", **options)
    run_submitted(store)


def revert_here(store: base.Backend, uuid: str) -> None:
    with contextlib.suppress(exceptions.InvalidState):
        operations.revert(store, uuid).run()


def child_of(store: base.Backend, uuid: str) -> str:
    with contextlib.closing(store.get_connection()) as connection:
        return connection.list_flows(parent=uuid).flows[0].uuid


def outcome(store: base.Backend, uuid: str) -> views.UndoView | None:
    with contextlib.closing(store.get_connection()) as connection:
        return views.read(connection, uuid).undo


def test_irreversible_task_of_a_child_prevents_the_undo_of_its_parent(store: base.Backend) -> None:
    uuid = submit(store, undo_flows.parent_of_irreversible)
    plan = operations.plan_undo(store, uuid)
    (name,) = plan.irreversible
    assert name.endswith(
        "parent_of_irreversible/1.0-program > tests.operations.undo_flows.program/1.2-send"
    )
    with pytest.raises(exceptions.InvalidState, match=r"send' cannot be undone"):
        operations.revert(store, uuid)
    request(store, uuid)
    assert (record(store, uuid).state, undo_flows.UNDONE) == (states.SUCCESS, [])
    request(store, uuid, partial=True)
    assert record(store, uuid).state == record(store, child_of(store, uuid)).state == "REVERTED"
    undo = outcome(store, uuid)
    assert undo_flows.UNDONE == ["charge"]
    assert undo is not None and (undo.outcome, undo.remaining) == ("partial", (name,))


def test_effects_that_remain_of_an_undone_child_remain_of_its_parent(store: base.Backend) -> None:
    uuid = submit(store, undo_flows.parent_of_irreversible)
    (name,) = operations.plan_undo(store, uuid).irreversible
    request(store, child_of(store, uuid), partial=True)
    assert operations.plan_undo(store, uuid).irreversible == (name,)
    with pytest.raises(exceptions.InvalidState, match=r"send' cannot be undone"):
        operations.revert(store, uuid)
    request(store, uuid, partial=True)
    undo = outcome(store, uuid)
    assert (record(store, uuid).state, undo_flows.UNDONE) == (states.REVERTED, ["charge"])
    assert undo is not None and (undo.outcome, undo.remaining) == ("partial", (name,))


def test_failed_parent_reverts_a_child_with_an_irreversible_task(store: base.Backend) -> None:
    uuid = submit(store, undo_flows.failing_parent)
    assert record(store, uuid).state == record(store, child_of(store, uuid)).state == "REVERTED"
    assert undo_flows.UNDONE == ["charge"]


@pytest.mark.parametrize("is_submitted", [True, False])
def test_refused_revert_of_a_child_ends_the_revert_of_its_parent(
    store: base.Backend, monkeypatch: pytest.MonkeyPatch, is_submitted: bool
) -> None:
    if is_submitted:
        uuid, revert = submit(store, undo_flows.parent), request
    else:
        uuid, revert = undo_flows.complete(store, undo_flows.parent), revert_here
    child = child_of(store, uuid)

    def refusing(code: Any, flow: models.FlowDetail, *arguments: Any) -> undo_plan.UndoPlan:
        plan = plan_of(code, flow, *arguments)
        return plan._replace(missing=("charge",) if flow.uuid == child else ())

    plan_of = _undoing.plan_of
    monkeypatch.setattr(_undoing, "plan_of", refusing)
    revert(store, uuid)
    parent = record(store, uuid)
    assert (parent.state, record(store, child).state) == (states.FAILURE, states.SUCCESS)
    assert f"Flow {child} is complete: the code of this process has no" in str(parent.error)
    refusals = [each for each in record(store, child).history if "not reverted" in str(each.why)]
    assert len(refusals) == 1
    monkeypatch.undo()
    revert(store, uuid)
    assert (record(store, uuid).state, undo_flows.UNDONE) == ("REVERTED", ["charge", "charge"])


def test_deleted_child_is_listed_and_accepted_by_a_partial_undo(store: base.Backend) -> None:
    uuid = submit(store, undo_flows.parent)
    operations.delete(store, child_of(store, uuid))
    plan = operations.plan_undo(store, uuid)
    assert plan.deleted == ("tests.operations.undo_flows.parent/1.1-plain",)
    with pytest.raises(exceptions.InvalidState, match=r"cannot be undone \(child flow deleted: "):
        operations.revert(store, uuid)
    request(store, uuid, partial=True)
    undo = outcome(store, uuid)
    assert (record(store, uuid).state, undo_flows.UNDONE) == (states.REVERTED, ["charge"])
    assert undo is not None and (undo.outcome, undo.remaining) == ("partial", plan.deleted)


def test_child_deleted_after_a_failed_undo_is_accepted_by_a_partial_one(
    store: base.Backend,
) -> None:
    uuid = submit(store, undo_flows.parent)
    undo_flows.FAILING.append("charge")
    request(store, uuid)
    assert record(store, uuid).state == states.FAILURE
    undo_flows.FAILING.clear()
    operations.delete(store, child_of(store, uuid))
    request(store, uuid)
    assert record(store, uuid).state == states.FAILURE
    request(store, uuid, partial=True)
    undo = outcome(store, uuid)
    assert (record(store, uuid).state, undo_flows.UNDONE) == (states.REVERTED, ["charge"])
    assert undo is not None and (undo.outcome, undo.remaining_count) == ("partial", 1)


def test_child_has_the_time_of_its_parent_which_alone_counts_for_both(
    store: base.Backend,
) -> None:
    uuid = submit(store, undo_flows.grandparent, undo_until=AT_ONCE)
    flows = [uuid, child_of(store, uuid), child_of(store, child_of(store, uuid))]
    assert [record(store, each).meta[models.UNDO_UNTIL] for each in flows] == [AT_ONCE] * 3
    with pytest.raises(exceptions.InvalidState, match="could be undone until"):
        operations.request(store, flows[1], "revert")
    with contextlib.closing(store.get_connection()) as connection:
        end = record(store, uuid).history[-1].at
        connection.send_command(uuid, _commands.FlowCommand(_commands.REVERT, at=end - 1.0))
    run_submitted(store)
    assert [record(store, each).state for each in flows] == [states.REVERTED] * 3


def test_deleted_child_of_a_child_is_listed(store: base.Backend) -> None:
    uuid = submit(store, undo_flows.grandparent)
    operations.delete(store, child_of(store, child_of(store, uuid)))
    plan = operations.plan_undo(store, uuid)
    assert len(plan.deleted) == 1 and " > " in plan.deleted[0]


def test_plan_lists_a_detached_child_and_a_parent_that_have_not_ended(store: base.Backend) -> None:
    uuid = submit(store, undo_flows.parent_of_detached)
    waiting = child_of(store, uuid)
    (user,) = operations.plan_undo(store, uuid).used_by
    assert user[:2] == (waiting, "child") and user.name.endswith("waiting")
    parent = submit(store, undo_flows.waiting_parent)
    child = child_of(store, parent)
    plan = operations.plan_undo(store, child)
    assert [(each.flow, each.kind) for each in plan.used_by] == [(parent, "parent")]
    assert plan.refusal(is_partial=False) is None
    for each in (parent, waiting):
        operations.signal(store, each, "go")
    run_submitted(store)
    assert operations.plan_undo(store, uuid).used_by == ()
    assert operations.plan_undo(store, child).used_by == ()


def test_plan_lists_forks_that_have_not_ended(store: base.Backend) -> None:
    uuid = submit(store, undo_flows.parent)
    fork = operations.fork(store, uuid, start="1").uuid
    nested = None
    plan = operations.plan_undo(store, uuid)
    assert [(each.flow, each.kind) for each in plan.used_by] == [(fork, "fork")]
    assert f"its fork {fork}, which has not ended" in str(plan.refusal(is_partial=True))
    with pytest.raises(exceptions.InvalidState, match=f"its fork {fork}, which has not ended"):
        operations.revert(store, uuid)
    run_submitted(store)
    nested = operations.fork(store, fork, start="1").uuid
    assert [each.flow for each in operations.plan_undo(store, uuid).used_by] == [nested]
    run_submitted(store)
    assert operations.plan_undo(store, uuid).used_by == ()


def test_fork_that_owns_inherited_results_is_not_listed(store: base.Backend) -> None:
    uuid = submit(store, undo_flows.parent)
    operations.fork(store, uuid, start="1", own=True)
    assert operations.plan_undo(store, uuid).used_by == ()
