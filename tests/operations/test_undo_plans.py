"""Plans for the undo of complete flows, and flows that cannot be undone."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from tests.operations import undo_flows
from wbengine import engines, exceptions, operations, states, task
from wbengine.operations import _bulk
from wbengine.persistence import backends, base
from wbengine.persistence._bulk_records import BulkFlow
from wbengine.telemetry import metrics
from wbengine.testing import run_submitted
from wbengine.views import flow_status as views


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[base.Backend]:
    undo_flows.UNDONE.clear()
    undo_flows.FAILING.clear()
    with backends.backend(f"sqlite:///{tmp_path}/flows.db") as opened:
        yield opened


def state_of(backend: base.Backend, uuid: str) -> str:
    return str(operations.find(backend, uuid).state)


def short(names: tuple[str, ...]) -> list[str]:
    return [name.rpartition("-")[2].rpartition(".")[2] for name in names]


@pytest.mark.parametrize("factory", [undo_flows.order, undo_flows.program])
def test_plan_lists_reverted_and_remaining_tasks(backend: base.Backend, factory: Any) -> None:
    uuid = undo_flows.complete(backend, factory)
    before = operations.find(backend, uuid)
    plan = operations.plan_undo(backend, uuid)
    assert [short(each) for each in plan[:4]] == [["charge"], ["note"], ["send"], []]
    assert operations.find(backend, uuid) == before


@pytest.mark.parametrize("factory", [undo_flows.order, undo_flows.program])
def test_flow_with_an_irreversible_task_is_only_reverted_in_part(
    backend: base.Backend, factory: Any
) -> None:
    uuid = undo_flows.complete(backend, factory)
    with pytest.raises(exceptions.InvalidState, match=r"send' cannot be undone.*partial=True"):
        operations.revert(backend, uuid)
    assert (state_of(backend, uuid), undo_flows.UNDONE) == (states.SUCCESS, [])
    operations.revert(backend, uuid, partial=True).run()
    assert (state_of(backend, uuid), undo_flows.UNDONE) == (states.REVERTED, ["charge"])


def undo_of(backend: base.Backend, uuid: str) -> dict[str, Any]:
    with contextlib.closing(backend.get_connection()) as connection:
        view: dict[str, Any] = views.read(connection, uuid).to_dict()["undo"]
    return view


def test_view_contains_the_outcome_of_the_undo(backend: base.Backend) -> None:
    uuid = undo_flows.complete(backend, undo_flows.plain)
    assert undo_of(backend, uuid) is None
    undo_flows.FAILING.append("charge")
    with pytest.raises(OSError, match="the bank"):
        operations.revert(backend, uuid, reason="recalled").run()
    failed = undo_of(backend, uuid)
    assert (failed["outcome"], failed["reason"]) == ("failed", "recalled")
    undo_flows.FAILING.clear()
    operations.revert(backend, uuid).run()
    assert undo_of(backend, uuid)["outcome"] == "complete"
    operations.retry(backend, uuid).run()
    assert undo_of(backend, uuid) is None


def test_view_names_the_effects_that_remain(backend: base.Backend) -> None:
    uuid = undo_flows.complete(backend, undo_flows.order)
    operations.revert(backend, uuid, partial=True).run()
    undo = undo_of(backend, uuid)
    assert (undo["outcome"], undo["remaining_count"]) == ("partial", 1)
    assert undo["remaining"] == ["tests.operations.undo_flows.send"]


def test_items_of_a_map_can_be_irreversible(backend: base.Backend) -> None:
    uuid = undo_flows.complete(backend, undo_flows.parcels, numbers=[1, 2])
    assert operations.plan_undo(backend, uuid).irreversible == ("all",)
    with pytest.raises(exceptions.InvalidState, match="'all' cannot be undone"):
        operations.revert(backend, uuid)


def test_failed_flow_with_an_irreversible_task_is_reverted(backend: base.Backend) -> None:
    flow = undo_flows.order()
    flow.add(undo_flows.fail())
    engine = engines.load(flow, backend=backend)
    with pytest.raises(ZeroDivisionError):
        engine.run()
    assert (engine.storage.get_flow_state(), undo_flows.UNDONE) == (states.REVERTED, ["charge"])


def test_step_whose_revert_was_removed_prevents_the_undo(
    backend: base.Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    uuid = undo_flows.complete(backend, undo_flows.plain)
    monkeypatch.setattr("tests.operations.undo_flows.charge", None)
    plan = operations.plan_undo(backend, uuid)
    assert (plan.revert, short(plan.missing)) == ((), ["charge"])
    with pytest.raises(exceptions.InvalidState, match=r"no revert of .*charge.*restore its code"):
        operations.revert(backend, uuid, partial=True)
    monkeypatch.undo()
    operations.revert(backend, uuid).run()
    assert undo_flows.UNDONE == ["charge"]


@pytest.mark.parametrize("book", [undo_flows.BookWithoutRevert, None])
def test_graph_task_whose_revert_was_removed_prevents_the_undo(
    backend: base.Backend, monkeypatch: pytest.MonkeyPatch, book: Any
) -> None:
    uuid = undo_flows.complete(backend, undo_flows.booking)
    plan = operations.plan_undo(backend, uuid)
    assert plan[:4] == (("book", "reserve"), ("tests.operations.undo_flows.note",), (), ())
    monkeypatch.setitem(undo_flows.CODE, "book", book)
    monkeypatch.setitem(undo_flows.CODE, "release", None)
    assert sorted(operations.plan_undo(backend, uuid).missing) == ["book", "reserve"]
    with pytest.raises(exceptions.InvalidState, match=r"no revert of 'reserve', 'book'|'book', 'r"):
        operations.revert(backend, uuid, partial=True)
    monkeypatch.undo()
    operations.revert(backend, uuid).run()
    assert undo_flows.UNDONE == ["reserve", "book"]


@pytest.mark.parametrize("wait", ["last", "first"])
def test_revert_removed_before_the_flow_continued_prevents_the_undo(
    backend: base.Backend, monkeypatch: pytest.MonkeyPatch, wait: str
) -> None:
    """Only tasks that were complete by then had a revert."""
    monkeypatch.setitem(undo_flows.CODE, "wait", wait)
    handle = engines.submit(undo_flows.booking, backend=backend)
    run_submitted(backend)
    assert handle.state == states.WAITING
    monkeypatch.setitem(undo_flows.CODE, "book", undo_flows.BookWithoutRevert)
    operations.signal(backend, handle.id, "go")
    run_submitted(backend)
    plan = operations.plan_undo(backend, handle.id)
    assert (plan.revert, plan.missing) == (("reserve",), ("book",) if wait == "last" else ())


def test_requested_undo_that_is_refused_leaves_the_reason_in_the_history(
    backend: base.Backend,
) -> None:
    handle = engines.submit(undo_flows.order, backend=backend)
    run_submitted(backend)
    operations.request(backend, handle.id, "revert", by="Ann")
    run_submitted(backend)
    assert (handle.state, undo_flows.UNDONE) == (states.SUCCESS, [])
    with contextlib.closing(backend.get_connection()) as connection:
        last = connection.get_flow_details(handle.id).history[-1]
        assert connection.commands([handle.id]) == {}
    assert last.state == states.SUCCESS
    assert last.why is not None and last.why.startswith("not reverted by Ann: ")
    assert "'tests.operations.undo_flows.send' cannot be undone" in last.why
    operations.request(backend, handle.id, "revert", partial=True)
    run_submitted(backend)
    assert (handle.state, undo_flows.UNDONE) == (states.REVERTED, ["charge"])


def test_operation_on_many_flows_lists_refused_undos(backend: base.Backend) -> None:
    handles = [
        engines.submit(factory, backend=backend)
        for factory in (undo_flows.order, undo_flows.plain, undo_flows.order)
    ]
    run_submitted(backend)
    flows = [BulkFlow(handle.id, states.SUCCESS) for handle in handles]
    reason = "recalled " * 50
    bulk = _bulk.start(backend, "flow revert", flows, {}, reason=reason, by="Ann")
    bulk = _bulk.carry_out(_bulk.BulkRun(backend, bulk, "here"), lambda _: None)
    with contextlib.closing(backend.get_connection()) as connection:
        assert _bulk.refused(connection, bulk) == []
        run_submitted(backend)
        refused = dict(_bulk.refused(connection, bulk))
        assert list(refused) == [handles[0].id, handles[2].id]
        for uuid, text in refused.items():
            assert text.startswith(f"Flow {uuid} is complete: 'tests.operations.undo_flows.send'")
        later = bulk._replace(created=connection.now() + 1.0)
        assert _bulk.refused(connection, later) == []


def test_partial_is_only_for_reversions(backend: base.Backend) -> None:
    uuid = undo_flows.complete(backend, undo_flows.order)
    with pytest.raises(ValueError, match="partial=True requires operation 'revert'"):
        operations.request(backend, uuid, "retry", partial=True)


def test_map_adopts_irreversible_and_decorator_accepts_it() -> None:
    assert undo_flows.send.irreversible and not undo_flows.note.irreversible
    assert task.Map(undo_flows.SendItem("one"), over="numbers", item="number").irreversible


def test_metric_counts_undone_flows_by_outcome(backend: base.Backend) -> None:
    registry = CollectorRegistry()

    def revert(uuid: str, **options: Any) -> None:
        engine = operations.revert(backend, uuid, **options)
        with metrics.observe(engine, registry), contextlib.suppress(OSError):
            engine.run()

    first, second = (
        undo_flows.complete(backend, undo_flows.plain),
        undo_flows.complete(backend, undo_flows.order),
    )
    undo_flows.FAILING.append("charge")
    revert(first)
    undo_flows.FAILING.clear()
    revert(first)
    revert(second, partial=True)
    engine = engines.load(undo_flows.order().add(undo_flows.fail()), backend=backend)
    with metrics.observe(engine, registry), pytest.raises(ZeroDivisionError):
        engine.run()
    counts = {
        sample.labels["outcome"]: sample.value
        for family in registry.collect()
        for sample in family.samples
        if sample.name == "wbengine_flows_undone_total"
    }
    assert counts == {"failed": 1, "complete": 1, "partial": 1}
