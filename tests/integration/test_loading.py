"""Loading leaves nothing behind: of a wrong flow no records, of many flows no files, no classes."""

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
    "kind of a tag": (sound, {"tags": {"a": 1}}, TypeError),
}


def kept(backend: base.Backend) -> list[str]:
    with contextlib.closing(backend.get_connection()) as connection:
        return [
            flow.name
            for book in connection.get_logbooks()
            for flow in connection.get_flows_for_book(book.uuid)
        ]


@pytest.mark.parametrize("by_factory", [False, True], ids=["load", "load_from_factory"])
@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("store", STORES)
def test_failed_load_keeps_no_flow(
    store: str, wrong: str, by_factory: bool, tmp_path: Path
) -> None:
    """Or else those who run what was left unfinished would run it, besides a load that is right."""
    factory, options, error = WRONG[wrong]
    book = models.LogBook("mine")
    with backends.backend(store.format(tmp_path)) as backend:
        with pytest.raises(error):
            _load(factory, by_factory, backend=backend, book=book, **options)
        assert kept(backend) == []
        assert len(book) == 0
        assert list(base.unfinished_flows(backend)) == []
        _load(sound, by_factory, backend=backend, book=book)
        assert kept(backend) == ["sound"]
        assert [flow.name for flow in book] == ["sound"]


@pytest.mark.parametrize("by_factory", [False, True], ids=["load", "load_from_factory"])
@pytest.mark.parametrize("store", STORES)
def test_flow_has_its_name_tags_and_inputs(store: str, by_factory: bool, tmp_path: Path) -> None:
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
    with pytest.raises(ValueError, match="leave them out beside flow_detail"):
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
        if use not in (_run, _arun):  # their backend is closed when they return
            gc.collect()
        assert [path for _, path in opened() if str(tmp_path) in path] == []
    finally:
        gc.enable()


def test_backend_stays_open_as_long_as_the_storage_is_used(tmp_path: Path) -> None:
    """Also where only that was kept of the engine; a backend that was given is never closed."""
    with backends.backend(STORES[2].format(tmp_path)) as backend:
        storage = engines.load(sound(), backend=STORES[2].format(tmp_path)).storage
        gc.collect()
        storage.inject({"late": 1})
        kept_flow = backend.get_connection().get_flow_details(storage.flow_uuid)
        assert [atom.results for atom in kept_flow if atom.results] == [{"late": 1}]
        engines.run(sound(), backend=backend)
        assert len(kept(backend)) == 2


@pytest.mark.parametrize("kind", ["serial", "parallel"])
def test_task_classes_made_at_run_time_are_collected(kind: str) -> None:
    """A service that makes classes for each flow does not grow."""
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
            return super().priority  # so that the method refers to its class

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


def test_option_among_the_defaults_is_that_of_every_engine_that_is_not_told_otherwise() -> None:
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
def test_option_that_not_every_engine_has_cannot_be_a_default(name: str) -> None:
    with pytest.raises(ValueError, match=f"defaults has no option {name!r}.*defer_reverts"):
        engines.defaults.update({name: 1})
    assert not engines.defaults
