"""Sources of arguments, and the methods of `Storage`."""

from __future__ import annotations

import inspect
import threading
from typing import Any

import pytest

from tests.support.reading import read_flow
from wbengine import engines, exceptions, retry, states, storage, task
from wbengine.patterns import graph_flow, linear_flow, unordered_flow
from wbengine.persistence import models
from wbengine.persistence.backends import _memory

#: TaskFlow 6.5: name -> parameters (without `self`) and their defaults; None: an attribute.
TASKFLOW: dict[str, dict[str, Any] | None] = {
    "backend": None,
    "change_flow_state": {"state": ...},
    "cleanup_retry_history": {"retry_name": ..., "state": ...},
    "ensure_atom": {"atom": ...},
    "ensure_atoms": {"atoms": ...},
    "fetch": {"name": ..., "many_handler": None},
    "fetch_all": {"many_handler": None},
    "fetch_mapped_args": {
        "args_mapping": ..., "atom_name": None, "scope_walker": None, "optional_args": None,
    },
    "fetch_unsatisfied_args": {
        "atom_name": ..., "args_mapping": ..., "scope_walker": None, "optional_args": None,
    },
    "flow_meta": None,
    "flow_name": None,
    "flow_uuid": None,
    "get": {"atom_name": ...},
    "get_atom_intention": {"atom_name": ...},
    "get_atom_state": {"atom_name": ...},
    "get_atom_uuid": {"atom_name": ...},
    "get_atoms_states": {"atom_names": ...},
    "get_execute_failures": {},
    "get_execute_result": {"atom_name": ...},
    "get_failures": {},
    "get_flow_state": {},
    "get_retry_histories": {},
    "get_retry_history": {"retry_name": ..., "now": None},  # `now` is an addition.
    "get_revert_failures": {},
    "get_revert_result": {"atom_name": ...},
    "get_task_progress": {"task_name": ...},
    "get_task_progress_details": {"task_name": ...},
    "has_failures": {},
    "inject": {"pairs": ..., "transient": False},
    "inject_atom_args": {"atom_name": ..., "pairs": ..., "transient": True},
    "injector_name": None,
    "lock": None,
    "reset": {"atom_name": ..., "state": "PENDING"},
    "save": {"atom_name": ..., "result": ..., "state": "SUCCESS"},
    "save_retry_failure": {"retry_name": ..., "failed_atom_name": ..., "failure": ...},
    "set_atom_intention": {"atom_name": ..., "intention": ...},
    "set_atom_state": {"atom_name": ..., "state": ...},
    "set_flow_state": {"state": ...},
    "set_task_progress": {"task_name": ..., "progress": ..., "details": None},
    "update_atom_metadata": {"atom_name": ..., "update_with": ...},
    "update_flow_metadata": {"update_with": ...},
}  # fmt: skip


def test_storage_has_methods_and_signatures_of_taskflow() -> None:
    for name, expected in TASKFLOW.items():
        found = inspect.getattr_static(storage.Storage, name)
        assert callable(found) is (expected is not None), name
        if expected is not None:
            parameters = list(inspect.signature(found).parameters.values())[1:]
            told = {p.name: ... if p.default is p.empty else p.default for p in parameters}
            assert told == expected, name


def test_storage_constructor_accepts_arguments_of_taskflow() -> None:
    store = storage.Storage(models.FlowDetail("f"), None, lambda atom_name: None)
    assert store.flow_name == "f" and store.backend is None


def give(name: str, value: Any, provides: Any = "x") -> task.Task:
    return task.FunctorTask(lambda: value, name=name, provides=provides)


class Takes(task.Task):
    """Task that records its argument."""

    def __init__(self, name: str = "takes", **options: Any) -> None:
        super().__init__(name, **options)
        self.got: Any = None

    def execute(self, x: Any) -> None:
        self.got = x


def prepared(*atoms: Any, store: Any = None, **options: Any) -> Any:
    engine = engines.load(linear_flow.Flow("f").add(*atoms), store=store, **options)
    engine.prepare()
    return engine


# -- providers


def test_values_of_nested_flow_are_visible_to_later_atoms() -> None:
    """Providers are searched backwards in the own flow first, then outwards level by level."""
    first, second, third = Takes("first"), Takes("second"), Takes("third")
    inner = linear_flow.Flow("inner").add(first, give("b", 2), second)
    engines.run(linear_flow.Flow("f").add(give("a", 1), inner, third))
    assert (first.got, second.got, third.got) == (1, 2, 2)


def test_unordered_siblings_do_not_see_values_of_each_other() -> None:
    flow = unordered_flow.Flow("f").add(give("a", 1), Takes())
    engine = engines.load(flow)
    engine.prepare()
    assert engine.storage.fetch_unsatisfied_args("takes", {"x": "x"}) == {"x"}
    with pytest.raises(exceptions.MissingDependencies, match="nothing before it provides"):
        engine.run()


def test_too_short_result_falls_back_to_next_provider() -> None:
    taker = Takes()
    engine = prepared(give("a", (1, 2), ("w", "x")), give("b", (3,), ("v", "x")), taker)
    engine.run()
    assert taker.got == 2


def test_ignored_providers_are_skipped() -> None:
    taker = Takes()
    a, b, gate = give("a", 1), give("b", 2), give("gate", False, ())
    flow = graph_flow.Flow("f").add(a, gate, taker, resolve_requires=False)
    flow.add(b, resolve_existing=False)
    flow.link(a, b).link(gate, b, decider=lambda history: False, decider_depth="atom")
    flow.link(b, taker)
    engines.run(flow)
    assert taker.got == 1


# -- injecting -----------------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["load", "before", "after", "between"])
@pytest.mark.parametrize("transient", [True, False])
def test_injected_flow_value_shadows_results(when: str, transient: bool) -> None:
    taker = Takes()
    hooks: list[Any] = []
    first = task.FunctorTask(
        lambda: ([hook() for hook in hooks] and 1) or 1, name="a", provides="x"
    )
    flow = linear_flow.Flow("f").add(first, taker)
    store = {"x": "injected"} if when == "load" else None
    engine = engines.load(flow, store=store)

    def inject() -> None:
        engine.storage.inject({"x": "injected"}, transient=transient)

    if when == "before":
        inject()
    engine.prepare()
    if when == "after":
        inject()
    if when == "between":
        hooks.append(inject)
    engine.run()
    assert taker.got == "injected"


def test_argument_sources_have_fixed_precedence() -> None:
    """Order: atom transient, atom persistent, flow transient, flow persistent, providers."""
    engine = prepared(give("a", "provided"), Takes())
    store = engine.storage
    seen = []

    def look() -> None:
        seen.append(store.fetch_mapped_args({"x": "x"}, atom_name="takes")["x"])

    engine.run()
    look()
    for inject in (
        lambda: store.inject({"x": "flow"}),
        lambda: store.inject({"x": "flow transient"}, transient=True),
        lambda: store.inject_atom_args("takes", {"x": "atom"}, transient=False),
        lambda: store.inject_atom_args("takes", {"x": "atom transient"}),
    ):
        inject()
        look()
    assert seen == ["provided", "flow", "flow transient", "atom", "atom transient"]
    assert store.fetch_mapped_args({"x": "x"}) == {"x": "flow transient"}


def test_only_persistent_injections_survive_in_next_process() -> None:
    backend = _memory.MemoryBackend()
    flow = linear_flow.Flow("f").add(Takes())
    engine = engines.load(flow, backend=backend)
    engine.storage.inject({"kept": 1})
    engine.storage.inject({"gone": 1}, transient=True)
    engine.prepare()
    engine.storage.inject_atom_args("takes", {"x": "kept"}, transient=False)
    engine.storage.inject_atom_args("takes", {"y": "gone"})
    detail = read_flow(backend, engine.storage.flow_uuid)
    again = engines.load(flow, flow_detail=detail, backend=backend)
    again.prepare()
    assert again.storage.fetch_all() == {"kept": 1}
    assert again.storage.fetch_mapped_args({"x": "x"}, "takes") == {"x": "kept"}
    with pytest.raises(exceptions.NotFound):
        again.storage.fetch_mapped_args({"y": "y"}, "takes")


@pytest.mark.parametrize("transient", [True, False])
def test_injected_values_are_copied(transient: bool) -> None:
    """Pairs are accepted like a dict, and later changes of either have no effect."""
    engine = prepared(Takes(), store={"x": 0})
    pairs = {"x": 1}
    engine.storage.inject(pairs, transient=transient)
    engine.storage.inject_atom_args("takes", pairs, transient=transient)
    pairs["x"] = 2
    assert engine.storage.fetch("x") == 1
    assert engine.storage.fetch_mapped_args({"x": "x"}, "takes") == {"x": 1}
    engine.storage.inject([("y", 3)], transient=transient)
    assert engine.storage.fetch("y") == 3


def test_atom_injection_after_run_applies_to_next_run() -> None:
    taker = Takes(inject={"x": 1})
    engine = prepared(taker)
    engine.run()
    assert taker.got == 1
    engine.storage.inject_atom_args("takes", {"x": 2})
    engine.reset()
    engine.run()
    assert taker.got == 2
    engine.storage.reset(engine.storage.injector_name)  # keeps injected values


# -- optional arguments --------------------------------------------------------------------------


def test_optional_arguments_are_matched_by_argument_name() -> None:
    """Another optional argument that is filled from the same name does not matter."""

    class Both(task.Task):
        def execute(self, x: Any, y: Any = 1) -> None: ...

    with pytest.raises(exceptions.MissingDependencies, match="requires 'y'"):
        engines.run(Both(rebind={"x": "y"}))
    engine = prepared(Takes(), store={"x": 0})
    mapping = {"x": "nowhere", "known": "x"}
    fetch = engine.storage.fetch_mapped_args
    for atom_name in ("takes", None):
        assert fetch(mapping, atom_name, optional_args=["x"]) == {"known": 0}
        with pytest.raises(exceptions.NotFound, match="nowhere"):
            fetch(mapping, atom_name, optional_args=["nowhere"])
    missing = engine.storage.fetch_unsatisfied_args("takes", mapping)
    assert missing == {"x"}
    assert engine.storage.fetch_unsatisfied_args("takes", mapping, optional_args=["x"]) == set()


# -- reading -------------------------------------------------------------------------------------


def test_fetch_all_and_fetch_many_return_all_values() -> None:
    """`fetch_all` returns lists only for several values; `fetch_many` always does."""
    engine = prepared(give("a", 1), give("b", [2]), give("c", 3, "y"), store={"z": 0})
    engine.run()
    assert engine.storage.fetch_all() == {"x": [1, [2]], "y": 3, "z": 0}
    assert engine.storage.fetch_many() == {"x": [1, [2]], "y": [3], "z": [0]}
    assert engine.storage.fetch_all(many_handler=len) == {"x": 2, "y": 1, "z": 1}


def test_results_after_success_failure_and_revert() -> None:
    def fail() -> None:
        raise ValueError("no")

    flow = linear_flow.Flow("f", retry.Times(1, "r", provides="try"))
    flow.add(task.FunctorTask(lambda: 1, name="a", revert=lambda **kwargs: "undone"))
    engine = engines.load(flow.add(task.FunctorTask(fail, name="b")))
    with pytest.raises(ValueError):
        engine.run()
    store = engine.storage
    assert store.get_revert_result("a") == "undone"
    for name in ("a", "r"):
        with pytest.raises(exceptions.NotFound, match=f"'{name}' has no result .*REVERTED"):
            store.get(name)
    assert store.get("b") is store.get_failures()["b"] is store.get_execute_failure("b")
    assert store.has_failures()
    assert [name for name, _ in store.get_retry_histories()] == ["r"]
    engine.reset()
    assert not store.has_failures()


def test_metadata_updates_are_merged_and_saved() -> None:
    backend = _memory.MemoryBackend()
    engine = prepared(Takes(), store={"x": 1}, backend=backend)
    engine.storage.update_atom_metadata("takes", {"a": 1})
    engine.storage.update_atom_metadata("takes", [("a", 2), ("b", 3)])
    engine.storage.update_flow_metadata({"c": 4})
    engine.storage.update_flow_metadata([])
    assert engine.storage.flow_meta == {"c": 4}
    detail = read_flow(backend, engine.storage.flow_uuid)
    assert detail.meta == {"c": 4}
    assert detail.find(engine.storage.get_atom_uuid("takes")).meta == {"a": 2, "b": 3}


def test_progress_details_are_kept_until_replaced() -> None:
    engine = prepared(Takes(), store={"x": 1})
    store = engine.storage
    store.set_task_progress("takes", 0.5, {"bytes": 7})
    store.set_task_progress("takes", 0.6)
    assert store.get_task_progress("takes") == 0.6
    assert store.get_task_progress_details("takes") == {"at_progress": 0.5, "details": {"bytes": 7}}
    store.set_task_progress("takes", 0.7, {})
    assert store.get_task_progress_details("takes") is None


# -- threads -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("frequent_thread_switches")
def test_many_threads_read_and_write_while_a_flow_runs() -> None:
    backend = _memory.MemoryBackend()
    names = [f"t{n}" for n in range(400)]
    flow = unordered_flow.Flow("f").add(*(give(name, name, name) for name in names))
    engine = engines.load(flow, backend=backend, engine="parallel", max_workers=2)
    engine.prepare()
    store = engine.storage
    problems: list[BaseException] = []
    done = threading.Event()

    def write(who: int) -> None:
        for step in range(150):
            store.update_atom_metadata(names[step], {f"{who}": step})
            store.update_flow_metadata({f"{who}-{step}": step})
            store.inject({f"p{who}-{step}": step})
            store.inject({f"q{who}-{step}": step}, transient=True)
            store.inject_atom_args(names[step], {f"r{who}": step}, transient=bool(step % 2))

    def read() -> None:
        while not done.is_set():
            store.fetch_all()
            store.fetch_many()
            store.get_failures()
            store.get_revert_failures()
            store.get_atoms_states(names)
            store.known_names()
            with store.lock.read_lock(), store.lock.write_lock():
                assert store.get_flow_state()

    def guarded(body: Any, *args: Any) -> None:
        try:
            body(*args)
        except BaseException as error:
            problems.append(error)

    writers = [threading.Thread(target=guarded, args=(write, who)) for who in range(3)]
    readers = [threading.Thread(target=guarded, args=(read,)) for _ in range(2)]
    for thread in (*writers, *readers):
        thread.start()
    guarded(engine.run)
    for thread in writers:
        thread.join()
    done.set()
    for thread in readers:
        thread.join()
    assert not problems, problems
    found = store.fetch_all()
    for who in range(3):
        for step in range(150):
            assert found[f"p{who}-{step}"] == found[f"q{who}-{step}"] == step
    kept = read_flow(backend, store.flow_uuid)
    assert len(kept.meta.keys() - {models.ENGINE, models.LOG_LEVEL}) == 450
    for step, name in enumerate(names[:150]):
        record = kept.find(store.get_atom_uuid(name))
        assert record.state == states.SUCCESS and record.results == name
        assert {key for key in record.meta if key.isdigit()} == {"0", "1", "2"}
        if not step % 2:
            assert record.meta["injected"] == {f"r{who}": step for who in range(3)}
