"""Values that a store cannot encode fail their atom or the call that passes them, not the run."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.owned_flows import stored_atoms
from tests.support import dying_flow, fresh
from wbengine import engines, exceptions, retry, states, task
from wbengine.patterns import linear_flow
from wbengine.persistence import backends, base, models

NO = object()


@pytest.fixture
def conf(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'flows.db'}"


@pytest.fixture
def store(conf: str) -> Iterator[base.Backend]:
    with backends.backend(conf) as made:
        yield made


class Gives(task.Task):
    """Task that returns `value`, and whose revert returns `undone`."""

    def __init__(self, name: str, value: Any, undone: Any = None) -> None:
        super().__init__(name, provides=name)
        self.value, self.undone = value, undone

    def execute(self) -> Any:
        return self.value

    def revert(self, result: Any, **more: Any) -> Any:
        return self.undone


class Fails(task.Task):
    def execute(self) -> None:
        raise RuntimeError(self.name)


class Picks(retry.Retry):
    """Retry controller that provides one value per attempt."""

    def __init__(self, *values: Any) -> None:
        super().__init__("picks", provides="picked")
        self.values = list(values)

    def execute(self, history: Any) -> Any:
        return self.values[len(history)]

    def on_failure(self, history: Any, **more: Any) -> str:
        return retry.RETRY if len(history) < len(self.values) else retry.REVERT

    def revert(self, history: Any, **more: Any) -> Any:
        return None


class Takes(task.Task):
    def execute(self, item: Any) -> Any:
        return NO if item == 2 else item * 10


def flow_of(*atoms: Any, **options: Any) -> Any:
    return linear_flow.Flow("f", **options).add(*atoms)


def run_unencodable(flow: Any, store: base.Backend, **options: Any) -> tuple[Any, str]:
    """Run a flow that fails; return its engine and the path of the unencodable value."""
    engine = engines.load(flow, backend=store, **options)
    with pytest.raises(exceptions.NotEncodable) as caught:
        engine.run()
    return engine, str(caught.value.path)


@pytest.mark.parametrize("kind", ["serial", "parallel", "parallel://?executor=processes"])
def test_unencodable_result_fails_its_task(store: base.Backend, kind: str) -> None:
    """The error contains the path of the value. The flow is reverted as after any failure."""
    flow = flow_of(Gives("good", {"x": (1, {2})}), Gives("bad", {"a": [1, print]}))
    engine, path = run_unencodable(flow, store, engine=kind)
    assert path == "result['a'][1]"
    found = stored_atoms(engine)
    assert {n: found[n].state for n in found} == {"good": "REVERTED", "bad": "REVERTED"}
    failure = found["bad"].failure
    assert failure is not None and failure.check(exceptions.NotEncodable)
    assert engine.storage.get_flow_state() == states.REVERTED


def test_memory_store_without_copies_accepts_any_result() -> None:
    """A memory store without copies, and no store, accept every value."""
    for kept in ("memory", None):
        engine = engines.load(flow_of(Gives("odd", NO)), backend=kept and f"{kept}://?deep_copy=0")
        engine.run()
        assert engine.storage.get("odd") is NO


def test_unencodable_revert_result_fails_the_revert(store: base.Backend) -> None:
    engine, _ = run_unencodable(flow_of(Gives("a", 1, undone=NO), Fails("b")), store)
    assert stored_atoms(engine)["a"].state == states.REVERT_FAILURE
    assert engine.storage.get_flow_state() == states.FAILURE


def test_unencodable_value_of_retry_controller_reverts_the_flow(store: base.Backend) -> None:
    """The controller fails as if `execute` had raised. The history keeps the encodable values."""
    good = engines.load(flow_of(Gives("a", 1), retry=Picks((1,))), backend=store)
    good.run()
    assert [value for value, _ in stored_atoms(good)["picks"].results] == [(1,)]
    engine, _ = run_unencodable(flow_of(Fails("b"), retry=Picks("fine", NO)), store)
    assert engine.storage.get_flow_state() == states.REVERTED


@pytest.mark.parametrize("on_failure", ["fail", "collect"])
def test_unencodable_item_result_fails_the_item(store: base.Backend, on_failure: Any) -> None:
    """The Map handles this as any failure of an item."""
    fan = task.Map(
        Takes("t"), over="items", item="item", provides="all", name="m", on_item_failure=on_failure
    )
    engine = engines.load(flow_of(fan), backend=store, store={"items": [1, 2, 3]})
    if on_failure == "fail":
        with pytest.raises(exceptions.NotEncodable):
            engine.run()
    else:
        engine.run()
        found = engine.storage.fetch("all")
        assert (found[0], found[2]) == (10, 30)
    items = stored_atoms(engine)["m"].items
    assert items is not None and items[1].failure is not None
    assert items[1].failure.check(exceptions.NotEncodable)


def test_unencodable_list_of_map_reverts_the_flow(store: base.Backend) -> None:
    """The list itself is stored, too."""
    fan = task.Map(Takes("t"), over="items", item="item", name="m")
    engine = engines.load(flow_of(fan), backend=store)
    engine.storage.inject({"items": [1, NO]}, transient=True)
    with pytest.raises(exceptions.NotEncodable) as caught:
        engine.run()
    assert caught.value.path == "arguments['items'][1]"
    assert engine.storage.get_flow_state() == states.REVERTED


def test_storage_rejects_unencodable_values_without_side_effects(store: base.Backend) -> None:
    """Injected values, metadata, progress and results raise NotEncodable."""
    engine = engines.load(flow_of(Gives("a", 1)), backend=store)
    engine.prepare()
    storage = engine.storage
    for call, path in (
        (lambda: storage.inject({"x": 1, "y": [NO]}), "injected values['y'][0]"),
        (
            lambda: storage.inject_atom_args("a", {"y": NO}, transient=False),
            "values injected for 'a'['y']",
        ),
        (lambda: storage.update_atom_metadata("a", {"y": NO}), "metadata['y']"),
        (lambda: storage.update_flow_metadata({"y": NO}), "metadata['y']"),
        (lambda: storage.set_task_progress("a", 0.5, {"y": NO}), "details['y']"),
        (lambda: storage.save("a", NO), "result"),
    ):
        with pytest.raises(exceptions.NotEncodable) as caught:
            call()
        assert caught.value.path == path
    with pytest.raises(ValueError, match="must be finite"):
        storage.set_task_progress("a", float("nan"))
    storage.inject({"x": NO}, transient=True)
    storage.inject_atom_args("a", {"x": NO})
    engine.run()
    found = stored_atoms(engine)["a"]
    assert "y" not in found.meta
    assert engine.storage.flow_meta.keys() <= {models.LOG_LEVEL}
    assert found.progress_details is None and storage.fetch_all() == {"x": NO, "a": 1}


def test_load_with_unencodable_values_creates_no_logbook(store: base.Backend) -> None:
    with pytest.raises(exceptions.NotEncodable, match=r"store\['x'\]"):
        engines.load(flow_of(Gives("a", 1)), backend=store, store={"x": NO})
    with pytest.raises(exceptions.NotEncodable, match=r"factory_args\[0\]"):
        engines.load_from_factory(dying_flow.make, factory_args=[NO], backend=store)
    book, flow_detail = base.temporary_flow_detail(store)
    with pytest.raises(exceptions.NotEncodable, match="factory_kwargs"):
        engines.save_factory_details(
            flow_detail, dying_flow.make, None, {"numbers": NO}, backend=store
        )
    assert not flow_detail.has_meta
    with store.get_connection() as connection:
        assert [kept.uuid for kept in connection.get_logbooks()] == [book.uuid]


class Tells(task.Task):
    TASK_EVENTS = (task.EVENT_UPDATE_PROGRESS,)

    def execute(self) -> None:
        self.notifier.notify(task.EVENT_UPDATE_PROGRESS, {"progress": 0.25, "at": "fine"})
        self.notifier.notify(task.EVENT_UPDATE_PROGRESS, {"progress": 0.5, "at": NO})
        self.notifier.notify(task.EVENT_UPDATE_PROGRESS, {"progress": float("inf")})


def test_unencodable_progress_details_are_skipped_and_logged(
    store: base.Backend, caplog: pytest.LogCaptureFixture
) -> None:
    """Workers do the same."""
    engine = engines.load(flow_of(Tells("t")), backend=store)
    with caplog.at_level(logging.WARNING):
        engine.run()
    assert stored_atoms(engine)["t"].progress_details == {
        "at_progress": 0.25,
        "details": {"at": "fine"},
    }
    assert any("could not be forwarded" in message for message in caplog.messages)


def test_error_names_result_that_became_unencodable_before_saving(store: base.Backend) -> None:
    """The result was encodable when the task ended, and was changed before it was written."""
    shared: list[Any] = [1]
    engine = engines.load(flow_of(Gives("a", shared)), backend=store)
    engine.prepare()
    with (
        pytest.raises(exceptions.NotEncodable, match=r"task 'a' cannot be saved: results\[1\]"),
        engine.storage.writer.mutex,
        engine.storage.batch(),
    ):
        engine.storage.save("a", shared)
        shared.append(NO)


# -- several processes ---------------------------------------------------------------------------


FIRST = """
import sys
from tests.support import dying_flow
from wbengine import engines
engine = engines.load_from_factory(
    dying_flow.make, factory_args=[[1, 2, 3]], factory_kwargs={"label": "\u00fc"},
    backend=sys.argv[1], store={"folder": sys.argv[2]},
)
engine.run()
"""
SECOND = """
import sys
from wbengine import engines
from wbengine.persistence import backends
from wbengine.persistence.base import unfinished_flows
with backends.backend(sys.argv[1]) as store:
    [flow_detail] = unfinished_flows(store)
    engine = engines.load_from_detail(flow_detail, backend=store, store={"more": (1,)})
    assert engine.difference is None
    engine.run()
    values = engine.storage.fetch_all()
    assert values.pop("folder") == sys.argv[2]
    print(sorted(values.items()), engine.storage.record("add").attempt)
    print(list(unfinished_flows(store)))
"""


@pytest.mark.slow
def test_second_process_resumes_the_unfinished_flow(conf: str, tmp_path: Path) -> None:
    """It loads the flow with its factory and keeps the saved results."""
    fresh.run(FIRST, conf, str(tmp_path), code=9)
    (tmp_path / "go").touch()
    done = fresh.run(SECOND, conf, str(tmp_path))
    assert done.stdout.splitlines() == ["[('end', 'done'), ('more', (1,)), ('sum', 6)] 1", "[]"]
    assert (tmp_path / "log").read_text() == "6\n6\n"


def test_unfinished_flows_excludes_ended_and_owned_flows(store: base.Backend) -> None:
    assert list(base.unfinished_flows(store)) == []
    ended = engines.load(flow_of(Gives("a", 1)), backend=store)
    ended.run()
    fresh = engines.load(flow_of(Gives("a", 1)), backend=store)
    held = engines.load(flow_of(Gives("a", 1)), backend=store)
    with store.get_connection() as connection:
        lease = connection.acquire_lease(held.storage.flow_uuid, "somebody", 60)
        [found] = base.unfinished_flows(store)
        assert found.uuid == fresh.storage.flow_uuid
        connection.release_lease(lease)
    assert len(list(base.unfinished_flows(store))) == 2
    engine = engines.load(flow_of(Gives("a", 1)), flow_detail=found, backend=store)
    engine.run()
    assert [flow.uuid for flow in base.unfinished_flows(store)] == [held.storage.flow_uuid]


def test_unfinished_flows_excludes_flow_that_ended_after_it_was_listed(store: base.Backend) -> None:
    """A repair program would run a reverted flow again."""
    book = models.LogBook("b")
    kept, ended = (engines.load(flow_of(Gives("a", 1)), backend=store, book=book) for _ in range(2))
    unfinished = base.unfinished_flows(store)
    assert next(unfinished).uuid == kept.storage.flow_uuid
    ended.run()
    assert list(unfinished) == []


def test_flow_detail_that_is_not_in_the_store_is_rejected(store: base.Backend, conf: str) -> None:
    """The error suggests how to save the record. `backend` accepts all its forms."""
    book = models.LogBook("b")
    flow_detail = models.FlowDetail("mine")
    book.add(flow_detail)
    with pytest.raises(exceptions.NotFound, match=r"'mine' .* save its book first"):
        engines.load(flow_of(Gives("a", 1)), flow_detail=flow_detail, book=book, backend=store)
    with store.get_connection() as connection:
        connection.save_logbook(book)
    engines.load(flow_of(Gives("a", 1)), flow_detail=flow_detail, book=book, backend=store).run()
    store.close()
    with backends.backend({"connection": conf}) as again, again.get_connection() as connection:
        kept = connection.get_flow_details(flow_detail.uuid)
        assert kept.state == states.SUCCESS
    for form in (conf, {"connection": conf}):
        engine = engines.load(flow_of(Gives("a", 1)), flow_detail=kept, backend=form)
        engine.run()
        assert engine.storage.get("a") == 1
        assert engine.storage.backend is not None
        engine.storage.backend.close()


class Spoils(task.Task):
    """Task that puts an unencodable value into the result of another task, and fails."""

    def execute(self, shared: dict[str, Any]) -> None:
        shared["socket"] = NO
        raise RuntimeError("spoilt")


class SpoilsItem(task.Task):
    def execute(self, item: dict[str, Any]) -> int:
        item["socket"] = NO
        return int(item["n"])


def test_stored_value_is_kept_when_value_in_memory_becomes_unencodable(
    store: base.Backend, caplog: pytest.LogCaptureFixture
) -> None:
    """The run continues with the stored value after another task changed the value in memory."""
    seen: list[Any] = []

    class Shares(Gives):
        def revert(self, result: Any, **more: Any) -> None:
            seen.append(dict(result))

    engine = engines.load(flow_of(Shares("shared", {"a": 1}), Spoils("s")), backend=store)
    with pytest.raises(RuntimeError, match="spoilt"):
        engine.run()
    assert engine.storage.get_flow_state() == states.REVERTED
    assert stored_atoms(engine)["shared"].state == states.REVERTED and len(seen) == 1
    assert any("the stored value remains" in message for message in caplog.messages)

    fan = task.Map(SpoilsItem("t"), over="items", item="item", provides="all", name="m")
    items = [{"n": 1}, {"n": 2}]
    engine = engines.load(flow_of(fan), backend=store, store={"items": items})
    engine.run()
    assert engine.storage.fetch("all") == [1, 2]
    kept = stored_atoms(engine)["m"].items
    assert kept is not None and [item.value for item in kept] == [{"n": 1}, {"n": 2}]
