"""Plans for the undo of complete flows, and flows that cannot be undone."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from tests.operations import undo_flows
from wbengine import engines, exceptions, operations, states, task
from wbengine.operations import _bulk
from wbengine.persistence import base
from wbengine.persistence._bulk_records import BulkFlow
from wbengine.telemetry import metrics
from wbengine.testing import run_submitted
from wbengine.views import flow_status as views


def state_of(store: base.Backend, uuid: str) -> str:
    return str(operations.find(store, uuid).state)


def short(names: tuple[str, ...]) -> list[str]:
    return [name.rpartition("-")[2].rpartition(".")[2] for name in names]


@pytest.mark.parametrize("factory", [undo_flows.order, undo_flows.program])
def test_plan_lists_reverted_and_remaining_tasks(store: base.Backend, factory: Any) -> None:
    uuid = undo_flows.complete(store, factory)
    before = operations.find(store, uuid)
    plan = operations.plan_undo(store, uuid)
    assert [short(each) for each in plan[:4]] == [["charge"], ["note"], ["send"], []]
    assert operations.find(store, uuid) == before


@pytest.mark.parametrize("factory", [undo_flows.order, undo_flows.program])
def test_flow_with_an_irreversible_task_is_only_reverted_in_part(
    store: base.Backend, factory: Any
) -> None:
    uuid = undo_flows.complete(store, factory)
    with pytest.raises(exceptions.InvalidState, match=r"send' cannot be undone.*partial=True"):
        operations.revert(store, uuid)
    assert (state_of(store, uuid), undo_flows.UNDONE) == (states.SUCCESS, [])
    operations.revert(store, uuid, partial=True).run()
    assert (state_of(store, uuid), undo_flows.UNDONE) == (states.REVERTED, ["charge"])


def undo_of(store: base.Backend, uuid: str) -> dict[str, Any]:
    with contextlib.closing(store.get_connection()) as connection:
        view: dict[str, Any] = views.read(connection, uuid).to_dict()["undo"]
    return view


def test_view_contains_the_outcome_of_the_undo(store: base.Backend) -> None:
    uuid = undo_flows.complete(store, undo_flows.plain)
    assert undo_of(store, uuid) is None
    undo_flows.FAILING.append("charge")
    with pytest.raises(OSError, match="the bank"):
        operations.revert(store, uuid, reason="recalled").run()
    failed = undo_of(store, uuid)
    assert (failed["outcome"], failed["reason"]) == ("failed", "recalled")
    undo_flows.FAILING.clear()
    operations.revert(store, uuid).run()
    assert undo_of(store, uuid)["outcome"] == "complete"
    operations.retry(store, uuid).run()
    assert undo_of(store, uuid) is None


def test_view_names_the_effects_that_remain(store: base.Backend) -> None:
    uuid = undo_flows.complete(store, undo_flows.order)
    operations.revert(store, uuid, partial=True).run()
    undo = undo_of(store, uuid)
    assert (undo["outcome"], undo["remaining_count"]) == ("partial", 1)
    assert undo["remaining"] == ["tests.operations.undo_flows.send"]


def test_items_of_a_map_can_be_irreversible(store: base.Backend) -> None:
    uuid = undo_flows.complete(store, undo_flows.parcels, numbers=[1, 2])
    assert operations.plan_undo(store, uuid).irreversible == ("all",)
    with pytest.raises(exceptions.InvalidState, match="'all' cannot be undone"):
        operations.revert(store, uuid)


def test_failed_flow_with_an_irreversible_task_is_reverted(store: base.Backend) -> None:
    flow = undo_flows.order()
    flow.add(undo_flows.fail())
    engine = engines.load(flow, backend=store)
    with pytest.raises(ZeroDivisionError):
        engine.run()
    assert (engine.storage.get_flow_state(), undo_flows.UNDONE) == (states.REVERTED, ["charge"])


def test_step_whose_revert_was_removed_prevents_the_undo(
    store: base.Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    uuid = undo_flows.complete(store, undo_flows.plain)
    monkeypatch.setattr("tests.operations.undo_flows.charge", None)
    plan = operations.plan_undo(store, uuid)
    assert (plan.revert, short(plan.missing)) == ((), ["charge"])
    with pytest.raises(exceptions.InvalidState, match=r"no revert of .*charge.*restore its code"):
        operations.revert(store, uuid, partial=True)
    monkeypatch.undo()
    operations.revert(store, uuid).run()
    assert undo_flows.UNDONE == ["charge"]


@pytest.mark.parametrize("book", [undo_flows.BookWithoutRevert, None])
def test_graph_task_whose_revert_was_removed_prevents_the_undo(
    store: base.Backend, monkeypatch: pytest.MonkeyPatch, book: Any
) -> None:
    uuid = undo_flows.complete(store, undo_flows.booking)
    plan = operations.plan_undo(store, uuid)
    assert plan[:4] == (("book", "reserve"), ("tests.operations.undo_flows.note",), (), ())
    monkeypatch.setitem(undo_flows.CODE, "book", book)
    monkeypatch.setitem(undo_flows.CODE, "release", None)
    assert sorted(operations.plan_undo(store, uuid).missing) == ["book", "reserve"]
    with pytest.raises(exceptions.InvalidState, match=r"no revert of 'reserve', 'book'|'book', 'r"):
        operations.revert(store, uuid, partial=True)
    monkeypatch.undo()
    operations.revert(store, uuid).run()
    assert undo_flows.UNDONE == ["reserve", "book"]


@pytest.mark.parametrize("wait", ["last", "first"])
def test_revert_removed_before_the_flow_continued_prevents_the_undo(
    store: base.Backend, monkeypatch: pytest.MonkeyPatch, wait: str
) -> None:
    """Only tasks that were complete by then had a revert."""
    monkeypatch.setitem(undo_flows.CODE, "wait", wait)
    handle = engines.submit(undo_flows.booking, backend=store)
    run_submitted(store)
    assert handle.state == states.WAITING
    monkeypatch.setitem(undo_flows.CODE, "book", undo_flows.BookWithoutRevert)
    operations.signal(store, handle.id, "go")
    run_submitted(store)
    plan = operations.plan_undo(store, handle.id)
    assert (plan.revert, plan.missing) == (("reserve",), ("book",) if wait == "last" else ())


def test_requested_undo_that_is_refused_leaves_the_reason_in_the_history(
    store: base.Backend,
) -> None:
    handle = engines.submit(undo_flows.order, backend=store)
    run_submitted(store)
    operations.request(store, handle.id, "revert", by="Ann")
    run_submitted(store)
    assert (handle.state, undo_flows.UNDONE) == (states.SUCCESS, [])
    with contextlib.closing(store.get_connection()) as connection:
        last = connection.get_flow_details(handle.id).history[-1]
        assert connection.commands([handle.id]) == {}
    assert last.state == states.SUCCESS
    assert last.why is not None and last.why.startswith("not reverted by Ann: ")
    assert "'tests.operations.undo_flows.send' cannot be undone" in last.why
    operations.request(store, handle.id, "revert", partial=True)
    run_submitted(store)
    assert (handle.state, undo_flows.UNDONE) == (states.REVERTED, ["charge"])


def test_operation_on_many_flows_lists_refused_undos(store: base.Backend) -> None:
    handles = [
        engines.submit(factory, backend=store)
        for factory in (undo_flows.order, undo_flows.plain, undo_flows.order)
    ]
    run_submitted(store)
    flows = [BulkFlow(handle.id, states.SUCCESS) for handle in handles]
    reason = "recalled " * 50
    bulk = _bulk.start(store, "flow revert", flows, {}, reason=reason, by="Ann")
    bulk = _bulk.carry_out(_bulk.BulkRun(store, bulk, "here"), lambda _: None)
    with contextlib.closing(store.get_connection()) as connection:
        assert _bulk.refused(connection, bulk) == []
        run_submitted(store)
        refused = dict(_bulk.refused(connection, bulk))
        assert list(refused) == [handles[0].id, handles[2].id]
        for uuid, text in refused.items():
            assert text.startswith(f"Flow {uuid} is complete: 'tests.operations.undo_flows.send'")
        later = bulk._replace(created=connection.now() + 1.0)
        assert _bulk.refused(connection, later) == []


def test_partial_is_only_for_reversions(store: base.Backend) -> None:
    uuid = undo_flows.complete(store, undo_flows.order)
    with pytest.raises(ValueError, match="partial=True requires operation 'revert'"):
        operations.request(store, uuid, "retry", partial=True)


def test_map_adopts_irreversible_and_decorator_accepts_it() -> None:
    assert undo_flows.send.irreversible and not undo_flows.note.irreversible
    assert task.Map(undo_flows.SendItem("one"), over="numbers", item="number").irreversible


def test_metric_counts_undone_flows_by_outcome(store: base.Backend) -> None:
    registry = CollectorRegistry()

    def revert(uuid: str, **options: Any) -> None:
        engine = operations.revert(store, uuid, **options)
        with metrics.observe(engine, registry), contextlib.suppress(OSError):
            engine.run()

    first, second = (
        undo_flows.complete(store, undo_flows.plain),
        undo_flows.complete(store, undo_flows.order),
    )
    undo_flows.FAILING.append("charge")
    revert(first)
    undo_flows.FAILING.clear()
    revert(first)
    revert(second, partial=True)
    engine = engines.load(undo_flows.order().add(undo_flows.fail()), backend=store)
    with metrics.observe(engine, registry), pytest.raises(ZeroDivisionError):
        engine.run()
    counts = {
        sample.labels["outcome"]: sample.value
        for family in registry.collect()
        for sample in family.samples
        if sample.name == "wbengine_flows_undone_total"
    }
    assert counts == {"failed": 1, "complete": 1, "partial": 1}
