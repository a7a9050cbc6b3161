"""A flow that cannot be loaded leaves nothing behind."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest

from wbengine import engines, exceptions, task
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


def _load(factory: Any, by_factory: bool, **options: Any) -> engines.Engine:
    if by_factory:
        return engines.load_from_factory(factory, **options)
    return engines.load(factory(), **options)
