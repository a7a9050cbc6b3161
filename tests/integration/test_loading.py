"""Loading leaks no records of invalid flows, no open files and no classes."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.descriptors import opened
from wbengine import engines, exceptions, retry, task
from wbengine.patterns import linear_flow
from wbengine.persistence import backends, base, models

STORES = ["memory", "dir://{}/flows", "sqlite:///{}/flows.db"]


class Plain(task.Task):
    def execute(self) -> None:
        pass


def sound() -> linear_flow.Flow:
    return linear_flow.Flow("sound").add(Plain("a"))


def doubled() -> linear_flow.Flow:
    return linear_flow.Flow("doubled").add(Plain("a"), Plain("a"))


WRONG = {
    "option": (sound, {"durabilty": "end"}, ValueError),
    "value of an option": (sound, {"durability": "always"}, ValueError),
    "names": (doubled, {}, exceptions.Duplicate),
    "local tasks": (sound, {"local_tasks": ["b"]}, ValueError),
    "name in the store": (sound, {"store": {1: 2}}, TypeError),
    "inputs twice": (sound, {"store": {"a": 1}, "inputs": {"a": 1}}, ValueError),
    "key of a tag": (sound, {"tags": {"a b": "c"}}, ValueError),
    "kind of a tag": (sound, {"tags": {"a": None}}, TypeError),
}


def stored_flow_names(backend: base.Backend) -> list[str]:
    with contextlib.closing(backend.get_connection()) as connection:
        return [
            flow.name
            for book in connection.get_logbooks()
            for flow in connection.get_flows_for_book(book.uuid)
        ]


@pytest.mark.parametrize("by_factory", [False, True], ids=["load", "load_from_factory"])
@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("store", STORES)
def test_failed_load_stores_no_flow(
    store: str, wrong: str, by_factory: bool, tmp_path: Path
) -> None:
    """Otherwise a service that resumes unfinished flows would run the invalid flow."""
    factory, options, error = WRONG[wrong]
    book = models.LogBook("mine")
    with backends.backend(store.format(tmp_path)) as backend:
        with pytest.raises(error):
            _load(factory, by_factory, backend=backend, book=book, **options)
        assert stored_flow_names(backend) == []
        assert len(book) == 0
        assert list(base.unfinished_flows(backend)) == []
        _load(sound, by_factory, backend=backend, book=book)
        assert stored_flow_names(backend) == ["sound"]
        assert [flow.name for flow in book] == ["sound"]


@pytest.mark.parametrize("by_factory", [False, True], ids=["load", "load_from_factory"])
@pytest.mark.parametrize("store", STORES)
def test_load_stores_name_tags_and_inputs(store: str, by_factory: bool, tmp_path: Path) -> None:
    with backends.backend(store.format(tmp_path)) as backend:
        engine = _load(
            sound, by_factory, backend=backend, name="march", tags={"team": "b"}, inputs={"x": 1}
        )
        engine.run()
        with contextlib.closing(backend.get_connection()) as connection:
            (row,) = connection.list_flows(tags={"team": "b"}).flows
        assert (row.name, row.tags, row.state) == ("march", {"team": "b"}, "SUCCESS")
        assert engine.storage.fetch("x") == 1
        detail = engine.storage.flow_detail
    with pytest.raises(ValueError, match="omit them if you pass flow_detail"):
        engines.load(sound(), flow_detail=detail, name="april")


def _load(factory: Any, by_factory: bool, **options: Any) -> engines.Engine:
    if by_factory:
        return engines.load_from_factory(factory, **options)
    return engines.load(factory(), **options)


def _run(uri: str) -> None:
    engines.run(sound(), backend=uri)


def _arun(uri: str) -> None:
    asyncio.run(engines.arun(sound(), backend=uri))


def _loaded_and_run(uri: str) -> None:
    engines.load(sound(), backend=uri).run()


def _loaded_again(uri: str) -> None:
    engine = engines.load_from_factory(sound, backend=uri)
    engines.save_factory_details(engine.storage.flow_detail, sound, (), {}, backend=uri)
    engines.load_from_detail(engine.storage.flow_detail, backend=uri).run()


def _loaded_wrongly(uri: str) -> None:
    with pytest.raises(exceptions.Duplicate):
        engines.load(doubled(), backend=uri)


@pytest.mark.parametrize("use", [_run, _arun, _loaded_and_run, _loaded_again, _loaded_wrongly])
@pytest.mark.parametrize("store", STORES[1:], ids=["dir", "sqlite"])
def test_backends_opened_from_a_uri_are_closed_with_their_engine(
    store: str, use: Callable[[str], None], tmp_path: Path
) -> None:
    uri = store.format(tmp_path)
    with backends.backend(uri):
        pass
    gc.collect()
    gc.disable()
    try:
        for _ in range(10):
            use(uri)
        if use not in (_run, _arun):  # these close their backend when they return
            gc.collect()
        assert [path for _, path in opened() if str(tmp_path) in path] == []
    finally:
        gc.enable()


def test_backend_stays_open_as_long_as_the_storage_is_used(tmp_path: Path) -> None:
    """This also holds if only the storage is referenced. A passed backend is never closed."""
    with backends.backend(STORES[2].format(tmp_path)) as backend:
        storage = engines.load(sound(), backend=STORES[2].format(tmp_path)).storage
        gc.collect()
        storage.inject({"late": 1})
        kept_flow = backend.get_connection().get_flow_details(storage.flow_uuid)
        assert [atom.results for atom in kept_flow if atom.results] == [{"late": 1}]
        engines.run(sound(), backend=backend)
        assert len(stored_flow_names(backend)) == 2


@pytest.mark.parametrize("kind", ["serial", "parallel"])
def test_task_classes_created_at_run_time_are_garbage_collected(kind: str) -> None:
    """Otherwise a service that creates classes for each flow would grow."""
    made = _classes_of_a_flow(kind)
    gc.collect()
    assert [cls() for cls in made] == [None] * len(made)


def _classes_of_a_flow(kind: str) -> list[weakref.ref[type[Any]]]:
    class Plain(task.Task):
        default_provides = "plain"

        def __init__(self) -> None:
            super().__init__()

        def execute(self) -> int:
            self.pre_execute()
            return super().priority  # `super` adds a reference from the method to its class

        def revert(self, *args: Any, **kwargs: Any) -> None:
            super().revert()

    class Again(retry.Times):
        def execute(self, history: Any, *args: Any, **kwargs: Any) -> Any:
            return super().execute(history)

    @task.task
    def double(x: int) -> int:
        return 2 * x

    @double.revert
    def undo(result: int) -> None:
        pass

    class Fails(task.Task):
        def execute(self) -> None:
            raise LookupError("no")

    flow = linear_flow.Flow("f", Again(2, "r")).add(
        Plain(), double(inject={"x": 1}), task.Map(double("each"), over="xs", item="x"), Fails()
    )
    with pytest.raises(LookupError):
        engines.run(flow, store={"xs": [1, 2]}, engine=kind)
    return [weakref.ref(cls) for cls in (Plain, Again, double, Fails)]


# Options for all engines of the process. --------------------------------------------------------


def test_default_option_applies_unless_engine_options_override_it() -> None:
    engines.defaults["durability"] = "end"
    try:
        found = [
            engines.load(sound(), engine=kind, **options).options.get("durability")
            for kind in ("serial", "parallel", "serial://?durability=batch")
            for options in ({}, {"durability": "each"})
        ]
    finally:
        del engines.defaults["durability"]
    assert found == ["end", "each", "end", "each", "batch", "each"]
    assert "durability" not in engines.load(sound()).options


@pytest.mark.parametrize("name", ["defer_revert", "max_workers"])
def test_option_of_only_some_engines_is_rejected_as_default(name: str) -> None:
    with pytest.raises(ValueError, match=f"defaults: unknown option {name!r}.*defer_reverts"):
        engines.defaults.update({name: 1})
    assert not engines.defaults
