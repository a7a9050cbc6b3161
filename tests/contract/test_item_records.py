"""Items of Maps in all stores."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from tests.seams import stores
from wbengine import states
from wbengine.persistence import base, models
from wbengine.types import failure as ft

from . import places

#: Writes with a lease (of an engine) and without one.
owners = pytest.mark.parametrize("owner", [None, "engine"])


class Kept:
    """Flow with one Map in a store."""

    def __init__(
        self, backend: base.Backend, count: int, attempt: int = 1, *, owner: str | None = None
    ) -> None:
        self.backend = backend
        self.lease: stores.Lease | None = None
        book = models.LogBook("b")
        self.flow = models.FlowDetail("f")
        book.add(self.flow)
        self.map = models.TaskDetail("m")
        self.other = models.TaskDetail("other")
        self.flow.add_all([self.map, self.other])
        connection = backend.get_connection()
        self.book = connection.save_logbook(book)
        if owner is not None:
            self.lease = connection.acquire_lease(self.flow.uuid, owner, 60)
        self.expand(count, attempt)

    def expand(self, count: int, attempt: int) -> None:
        self.map.attempt = attempt
        self.map.items = models.Items(attempt, [f"value {n}" for n in range(count)])
        self.write([self.map], self.map.items)

    def write(
        self, atoms: Iterable[models.AtomDetail] = (), items: Iterable[models.ItemDetail] = ()
    ) -> None:
        changed = list(items)
        self.backend.get_connection().save_changes(
            self.flow, atoms, flow_row=False, items={self.map.uuid: changed} if changed else {},
            lease=self.lease,
        )  # fmt: skip

    def read(self) -> models.Items:
        items = self.backend.get_connection().get_atom_details(self.map.uuid).items
        assert items is not None
        return items

    def picture(self) -> list[dict[str, Any]]:
        assert self.map.items is not None
        return [item.to_dict() for item in self.map.items]


def finish(item: models.ItemDetail, order: int, value: Any) -> models.ItemDetail:
    item.order, item.worker, item.started, item.ended = order, "w", 1.0, 2.0
    item.put(states.FAILURE if isinstance(value, ft.Failure) else states.SUCCESS, value)
    return item


def test_changing_read_items_does_not_change_store(backend: base.Backend) -> None:
    stored = Kept(backend, 1)
    assert stored.map.items is not None
    stored.write(items=[finish(stored.map.items[0], 1, [1])])
    item = stored.read()[0]
    item.results.append(2)
    item.state = states.PENDING
    assert stored.read()[0].results == [1]
    assert stored.read()[0].state == states.SUCCESS


@places.everywhere
@owners
def test_latest_write_of_each_item_is_read_back(backend: base.Backend, owner: str | None) -> None:
    stored = Kept(backend, 4, owner=owner)
    items = stored.map.items
    assert items is not None
    assert [item.to_dict() for item in stored.read()] == stored.picture()
    stored.write(items=[finish(items[2], 1, {"a": [1]}), finish(items[0], 2, (1, 2))])
    stored.write(items=[finish(items[3], 3, ft.Failure.from_exception(ValueError("no")))])
    items[2].put(states.REVERTED, "undone")
    stored.write(items=[items[2]])
    connection = backend.get_connection()
    (book,) = connection.get_logbooks()
    (flow,) = connection.get_flows_for_book(book.uuid)
    for read in (
        stored.read(),
        connection.get_flow_details(flow.uuid).find(stored.map.uuid).items,  # type: ignore[union-attr]
        flow.find(stored.map.uuid).items,  # type: ignore[union-attr]
        next(a for a in connection.get_atoms_for_flow(flow.uuid) if a.name == "m").items,
    ):
        assert read is not None
        assert [item.to_dict() for item in read] == stored.picture()
        assert (read.attempt, read.resumed) == (1, 0)


def test_items_change_only_when_written(backend: base.Backend) -> None:
    stored = Kept(backend, 2)
    assert stored.map.items is not None
    finish(stored.map.items[0], 1, "later")
    stored.write([stored.map])
    assert [item.state for item in stored.read()] == [states.PENDING] * 2


@owners
def test_write_of_atom_row_does_not_change_items(backend: base.Backend, owner: str | None) -> None:
    """Other fields, including the number of resumptions, are written."""
    stored = Kept(backend, 3, owner=owner)
    assert stored.map.items is not None
    stored.write(items=[finish(stored.map.items[1], 1, 5)])
    stored.map.items.resumed = 2
    stored.map.progress = 0.3
    stored.write([stored.map])
    read = stored.read()
    assert [item.to_dict() for item in read] == stored.picture() and read.resumed == 2


@places.dialects
@owners
def test_new_attempt_replaces_items_of_earlier_attempts(
    backend: base.Backend, owner: str | None
) -> None:
    """Late writes of earlier attempts have no effect."""
    stored = Kept(backend, 3, owner=owner)
    assert stored.map.items is not None
    old = finish(stored.map.items[1], 1, 5)
    stored.expand(2, attempt=4)
    stored.write(items=[old])
    assert [(item.attempt, item.value) for item in stored.read()] == [
        (4, "value 0"),
        (4, "value 1"),
    ]
    stored.map.reset(states.PENDING)
    stored.write([stored.map])
    assert backend.get_connection().get_atom_details(stored.map.uuid).items is None


def test_items_are_written_with_flow_atom_and_logbook(backend: base.Backend) -> None:
    stored = Kept(backend, 3)
    connection = backend.get_connection()
    items = stored.map.items
    assert items is not None
    finish(items[0], 1, 1)
    written = connection.update_flow_details(stored.flow).find(stored.map.uuid)
    assert written is not None and written.items is not None and written.items[0].results == 1
    finish(items[1], 2, 2)
    found = connection.update_atom_details(stored.map).items
    assert found is not None and found[1].results == 2
    finish(items[2], 3, 3)
    book = connection.get_logbook(stored.book.uuid, lazy=True)
    book.add(stored.flow)
    connection.save_logbook(book)
    assert [item.to_dict() for item in stored.read()] == stored.picture()
    connection.destroy_logbook(book.uuid)
    assert list(connection.get_logbooks()) == []
