"""Contract of all stores, except leases and items.

The memory backend is the reference.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.contract.stored_flows import Connection, Turns, few, make
from tests.seams import stores
from tests.support import servers
from tests.support.threads import call_in_threads
from wbengine import exceptions, states
from wbengine.persistence import backends, base, models

from . import places, records


def reopened(conf: stores.Conf, picture: Callable[[Connection], Any]) -> Any:
    """Return the view of a newly opened backend."""
    with contextlib.closing(backends.fetch(conf)) as other, other.get_connection() as connection:
        return picture(connection)


# Written records are read back.


@places.dialects
def test_names_of_maximum_length_are_stored(connection: Connection) -> None:
    name = "𝄞" * 255
    flow = models.FlowDetail(name)
    flow.add(models.TaskDetail(name))
    book = models.LogBook(name)
    book.add(flow)
    connection.save_logbook(book)
    logbook = connection.get_logbook(book.uuid)
    [flow_detail] = logbook
    assert [logbook.name, flow_detail.name, *(atom.name for atom in flow_detail)] == [name] * 3
    [row] = connection.list_flows(name=name).flows
    assert (row.name, row.book_name) == (name, name)


@places.dialects
@few
@given(book=records.books())
def test_every_field_is_read_back(
    kind: str, conf: stores.Conf, connection: Connection, book: models.LogBook
) -> None:
    expected = records.of_book(book)
    assert not records.differences(records.of_book(connection.save_logbook(book)), expected)
    assert records.of_book(connection.get_logbook(book.uuid)) == expected
    (logbook,) = (b for b in connection.get_logbooks() if b.uuid == book.uuid)
    assert records.of_book(logbook) == expected
    flows = connection.get_flows_for_book(book.uuid)
    assert {flow.uuid: records.of_flow(flow) for flow in flows} == expected["flows"]
    for flow in book:
        assert records.of_flow(connection.get_flow_details(flow.uuid)) == records.of_flow(flow)
        atoms = connection.get_atoms_for_flow(flow.uuid)
        assert records.of_atoms(atoms) == records.of_atoms(flow)
        for atom in flow:
            read = connection.get_atom_details(atom.uuid)
            assert type(read) is type(atom)
            assert records.of_atom(read) == records.of_atom(atom)
    if "memory" not in kind:
        assert reopened(conf, lambda later: records.of_book(later.get_logbook(book.uuid))) == (
            expected
        )


@places.dialects
def test_special_values_are_read_back(connection: Connection) -> None:
    """Each value is tested as a result, and all of them in every other field."""
    atoms = [models.TaskDetail(f"t{n}") for n in range(len(records.EXAMPLES))]
    for atom, value in zip(atoms, records.EXAMPLES, strict=True):
        atom.results = value
    full = models.RetryDetail("r")
    every = list(records.EXAMPLES)
    full.results = [(every, {"t": records.failure("Füße", 1, ("a",))}), (None, {})]
    full.meta, full.revert_results, full.failure = {"m": every}, every, records.failure("\0")
    book, flow = make(full, *atoms)
    flow.meta, book.meta = {"f": every}, {"b": every}
    connection.save_logbook(book)
    assert records.of_book(connection.get_logbook(book.uuid)) == records.of_book(book)
    connection.save_changes(flow, flow)
    assert records.of_book(connection.get_logbook(book.uuid)) == records.of_book(book)
    for atom, value in zip(atoms, records.EXAMPLES, strict=True):
        atom.revert_results = value
    flow.meta["as a run writes it"] = every
    lease = connection.acquire_lease(flow.uuid, "engine", 60)
    connection.save_changes(flow, flow, lease=lease)
    assert records.of_book(connection.get_logbook(book.uuid)) == records.of_book(book)


@places.dialects
def test_unusual_names_are_stored_exactly(connection: Connection) -> None:
    stored = []
    for name in ("Ä b/c", "a" * 254, "🦊 '\";--%s\\", " lead and trail ", "x\ny"):
        for text in (name, name.upper() + "!", name.lower() + " "):
            book = models.LogBook(text)
            flow = models.FlowDetail(text)
            flow.add(models.TaskDetail(text))
            book.add(flow)
            connection.save_logbook(book)
            stored.append(book)
    for book in stored:
        assert records.of_book(connection.get_logbook(book.uuid)) == records.of_book(book)


@places.dialects
def test_large_results_are_stored(connection: Connection) -> None:
    """16 MB of text in one result, and bytes in others of the same save."""
    atoms = [models.TaskDetail("text"), models.TaskDetail("bytes"), models.TaskDetail("other")]
    book, flow = make(*atoms)
    connection.save_logbook(book)
    atoms[0].results = "ä\n" + "x" * (16 * 2**20 - 2)
    atoms[1].results = b"\0\xff" * 2**20
    atoms[2].failure = records.failure("y" * 60_000)
    connection.save_changes(flow, flow)
    found = {atom.name: atom for atom in connection.get_flow_details(flow.uuid)}
    assert found["text"].results == atoms[0].results
    assert found["bytes"].results == atoms[1].results
    assert records.of_atom(found["other"]) == records.of_atom(atoms[2])


def test_lazy_read_omits_nested_records(connection: Connection) -> None:
    book, flow = make(models.TaskDetail("t"))
    book.meta["m"] = flow.meta["m"] = 1
    connection.save_logbook(book)
    lazy = [connection.get_logbook(book.uuid, lazy=True), *connection.get_logbooks(lazy=True)]
    for logbook in lazy:
        assert len(logbook) == 0
        assert records.of_book(logbook) == {**records.of_book(book), "flows": {}}
    for bare in (
        connection.get_flow_details(flow.uuid, lazy=True),
        *connection.get_flows_for_book(book.uuid, lazy=True),
    ):
        assert records.of_flow(bare) == {**records.of_flow(flow), "atoms": {}}


def test_missing_record_raises_not_found_with_uuid(connection: Connection) -> None:
    other, _ = make(models.TaskDetail("other"))
    connection.save_logbook(other)
    book, flow = make(models.TaskDetail("t"))
    (atom,) = flow
    before = records.of_store(connection)
    for uuid, call in [
        (book.uuid, lambda: connection.get_logbook(book.uuid)),
        (book.uuid, lambda: connection.get_logbook(book.uuid, lazy=True)),
        (book.uuid, lambda: list(connection.get_flows_for_book(book.uuid))),
        (book.uuid, lambda: connection.destroy_logbook(book.uuid)),
        (flow.uuid, lambda: connection.get_flow_details(flow.uuid)),
        (flow.uuid, lambda: list(connection.get_atoms_for_flow(flow.uuid))),
        (flow.uuid, lambda: connection.save_changes(flow, flow)),
        (flow.uuid, lambda: connection.save_changes(flow, [], flow_row=False)),
        (flow.uuid, lambda: connection.update_flow_details(flow)),
        (atom.uuid, lambda: connection.get_atom_details(atom.uuid)),
        (atom.uuid, lambda: connection.update_atom_details(atom)),
    ]:
        with pytest.raises(exceptions.NotFound, match=uuid):
            call()
    for odd in ("", "../x", "%", "' OR 1=1 --", "x" * 300, "é"):
        for look in (connection.get_logbook, connection.get_flow_details):
            with pytest.raises(exceptions.NotFound):
                look(odd)
        with pytest.raises(exceptions.NotFound):
            connection.get_atom_details(odd)
    assert records.of_store(connection) == before


# Copies and updates.


@places.everywhere
def test_store_copies_records_when_written_and_read(
    conf: stores.Conf, connection: Connection
) -> None:
    atom = models.TaskDetail("t")
    atom.results, atom.meta = {"a": [1]}, {"m": [1]}
    atom.items = models.Items(0, [[1]])
    book, flow = make(atom)
    book.meta["b"], flow.meta["f"] = [1], [1]
    returned = connection.save_logbook(book)
    before = records.of_store(connection)

    def spoil(book: models.LogBook) -> None:
        book.name = "spoiled"
        book.meta["b"] = 0
        for flow in book:
            flow.state, flow.meta["f"] = "SPOILED", 0
            for atom in flow:
                atom.state, atom.meta["m"] = "SPOILED", 0
                if atom.items is not None:
                    atom.items[0].order = 7
                if conf.get("deep_copy", True):
                    atom.results["a"].append(2)
                    for item in atom.items or ():
                        item.value.append(2)
            flow.add(models.TaskDetail("spoiled"))

    for logbook in (book, returned, connection.get_logbook(book.uuid), *connection.get_logbooks()):
        spoil(logbook)
        assert records.of_store(connection) == before


def test_save_writes_only_given_records(connection: Connection) -> None:
    atoms = [models.TaskDetail("a"), models.TaskDetail("b"), models.RetryDetail("r")]
    book, flow = make(*atoms)
    book.add(models.FlowDetail("other"))
    connection.save_logbook(book)
    expected = records.of_book(book)

    def kept() -> Any:
        return records.of_book(connection.get_logbook(book.uuid))

    for atom in atoms:
        atom.state, atom.attempt, atom.meta = states.RUNNING, 1, {"x": 1}
    flow.state, flow.meta = states.RUNNING, {"x": 1}
    flow.add(models.TaskDetail("never written"))
    connection.save_changes(flow, [], flow_row=False)
    assert kept() == expected
    connection.save_changes(flow, [atoms[1]], flow_row=False)
    expected["flows"][flow.uuid]["atoms"][atoms[1].uuid] = records.of_atom(atoms[1])
    assert kept() == expected
    connection.save_changes(flow, [])
    expected["flows"][flow.uuid] |= {"state": states.RUNNING, "meta": {"x": 1}}
    assert kept() == expected
    connection.update_atom_details(atoms[2])
    expected["flows"][flow.uuid]["atoms"][atoms[2].uuid] = records.of_atom(atoms[2])
    assert kept() == expected
    atoms[0].meta = flow.meta = {}
    connection.save_changes(flow, [atoms[0]])
    expected["flows"][flow.uuid]["atoms"][atoms[0].uuid] = records.of_atom(atoms[0])
    expected["flows"][flow.uuid]["meta"] = {}
    assert kept() == expected


def test_save_logbook_adds_and_updates_but_removes_nothing(connection: Connection) -> None:
    """Flows that the logbook does not contain stay, and the result contains all stored flows."""
    first, flow = make(models.TaskDetail("a"))
    second = models.FlowDetail("second")
    first.add(second)
    connection.save_logbook(first)
    book = connection.get_logbook(first.uuid, lazy=True)
    third = models.FlowDetail("third")
    third.add(models.RetryDetail("r"))
    book.add(third)
    changed = connection.get_flow_details(flow.uuid)
    changed.add(models.TaskDetail("b"))
    next(iter(changed)).state = states.SUCCESS
    book.add(changed)
    book.meta["new"] = 1
    returned = records.of_book(connection.save_logbook(book))
    assert returned == records.of_book(connection.get_logbook(book.uuid))
    assert set(returned["flows"]) == {flow.uuid, second.uuid, third.uuid}
    assert returned["flows"][flow.uuid] == records.of_flow(changed)
    assert returned["flows"][third.uuid] == records.of_flow(third)
    assert returned["meta"] == {"new": 1}


@places.durable
def test_unencodable_value_is_refused_and_nothing_is_written(connection: Connection) -> None:
    """The error contains the path of the value."""
    atoms = [models.TaskDetail("good"), models.TaskDetail("bad")]
    book, flow = make(*atoms)
    connection.save_logbook(book)
    before = records.of_store(connection)
    atoms[0].state = states.SUCCESS
    flow.state = states.RUNNING
    for name in ("results", "revert_results", "progress_details", "meta"):
        setattr(atoms[1], name, {"a": [1, object()]})
        path = rf"{name}\['a'\]\[1\].*object"
        for write in (
            lambda: connection.save_changes(flow, atoms),
            lambda: connection.update_flow_details(flow),
            lambda: connection.update_atom_details(atoms[1]),
            lambda: connection.save_logbook(book),
        ):
            with pytest.raises(exceptions.NotEncodable, match=path):
                write()
            assert records.of_store(connection) == before
        setattr(atoms[1], name, None)
    items = list(models.Items(0, [1, object()]))
    with pytest.raises(exceptions.NotEncodable, match="value"):
        connection.save_changes(flow, atoms, items={atoms[0].uuid: items})
    flow.meta["bad"] = {1: object()}
    for call in (lambda: connection.save_changes(flow, []), lambda: connection.save_logbook(book)):
        with pytest.raises(exceptions.NotEncodable, match="meta"):
            call()
    assert records.of_store(connection) == before


@places.durable
@pytest.mark.parametrize(
    ("into", "levels"),
    [
        (lambda inner: [inner], 64),
        (lambda inner: {"k": inner}, 64),
        (lambda inner: (inner,), 32),
        (lambda inner: frozenset([inner]), 32),
    ],
    ids=["list", "dict", "tuple", "frozenset"],
)
def test_value_of_maximum_depth_is_stored_and_deeper_one_refused(
    conf: stores.Conf, connection: Connection, into: Callable[[Any], Any], levels: int
) -> None:
    atom = models.TaskDetail("t")
    book, flow = make(atom)
    connection.save_logbook(book)
    deep: Any = 1
    for _ in range(levels):
        deep = into(deep)
    atom.results, atom.meta = deep, {"m": 1}
    connection.save_changes(flow, [atom])
    atom.results = into(deep)
    with pytest.raises(exceptions.NotEncodable, match="deeper than 64"):
        connection.save_changes(flow, [atom])
    assert connection.get_atom_details(atom.uuid).results == deep
    assert reopened(conf, lambda later: later.get_atom_details(atom.uuid).results) == deep


# Random writes, compared with the memory backend.


@pytest.mark.slow
@places.everywhere
@few
@given(data=st.data())
def test_random_writes_have_same_effect_in_all_stores(
    kind: str, conf: stores.Conf, connection: Connection, data: Any
) -> None:
    turns = Turns(data.draw, connection)
    for _ in range(data.draw(st.integers(1, 5))):
        turns.step()

    def picture(store: Connection) -> Any:
        record = records.of_book(store.get_logbook(turns.book.uuid))
        return {**record, "updated_at": None}

    expected = picture(turns.model)
    assert not records.differences(picture(connection), expected)
    if "memory" not in kind:
        assert not records.differences(reopened(conf, picture), expected)


# Concurrency.


@places.dialects
def test_readers_see_only_complete_writes(backend: base.Backend) -> None:
    atoms = [models.TaskDetail(f"t{n}") for n in range(5)]
    book, flow = make(*atoms)
    turns = 40
    ended = threading.Event()
    seen: list[set[int]] = []

    def write() -> None:
        with backend.get_connection() as connection, contextlib.ExitStack() as stack:
            stack.callback(ended.set)
            lease = connection.acquire_lease(flow.uuid, "writer", 60)
            for turn in range(1, turns + 1):
                flow.meta["turn"] = turn
                for atom in atoms:
                    atom.attempt = turn
                    atom.items = models.Items(turn, [turn] * 2)
                items = {atom.uuid: list(atom.items) for atom in atoms if atom.items is not None}
                connection.save_changes(flow, atoms, items=items, lease=lease)
            connection.release_lease(lease)

    def told(found: models.FlowDetail) -> set[int]:
        numbers = {found.meta.get("turn", 0), *(atom.attempt for atom in found)}
        for atom in found:
            if atom.items is not None:
                numbers |= {atom.items.attempt, *(item.value for item in atom.items)}
                numbers |= {turn for turn in (-1,) if len(atom.items) != 2}
        return numbers

    def look() -> None:
        with backend.get_connection() as connection:
            while True:
                last = ended.is_set()
                seen.append(told(connection.get_flow_details(flow.uuid)))
                (whole,) = connection.get_logbook(book.uuid)
                seen.append(told(whole))
                (whole,) = connection.get_flows_for_book(book.uuid)
                seen.append(told(whole))
                if last:
                    return

    with backend.get_connection() as connection:
        connection.save_logbook(book)
    call_in_threads(lambda call: call(), (write, look, look))
    assert {len(numbers) for numbers in seen} == {1}
    assert seen[-1] == {turns}


@places.dialects
def test_concurrent_threads_lose_no_write(backend: base.Backend) -> None:
    book = models.LogBook("b")
    flows = [models.FlowDetail(f"f{n}") for n in range(4)]
    for flow in flows:
        flow.add_all([models.TaskDetail("a"), models.TaskDetail("b")])
        book.add(flow)
    with backend.get_connection() as connection:
        connection.save_logbook(book)

    def work(flow: models.FlowDetail) -> None:
        with backend.get_connection() as mine:
            lease = mine.acquire_lease(flow.uuid, flow.name, 60)
            for turn in range(15):
                for atom in flow:
                    atom.attempt, atom.results = turn, f"{flow.name} {turn}"
                mine.save_changes(flow, flow, flow_row=turn % 2 == 0, lease=lease)
            mine.release_lease(lease)

    call_in_threads(work, flows)
    with backend.get_connection() as connection:
        assert records.of_book(connection.get_logbook(book.uuid)) == records.of_book(book)


# Side effects.


@places.durable
def test_reading_does_not_change_store(kind: str, conf: stores.Conf) -> None:
    with contextlib.closing(backends.fetch(conf)) as backend, backend.get_connection() as writer:
        book, flow = make(models.TaskDetail("t"))
        writer.save_logbook(book)
        lease = writer.acquire_lease(flow.uuid, "owner", 60)
        writer.save_changes(flow, flow, lease=lease)
    before = stores.raw(conf)

    def everything(connection: Connection) -> None:
        connection.validate()
        records.of_store(connection)
        connection.get_logbook(book.uuid, lazy=True)
        list(connection.get_atoms_for_flow(flow.uuid))
        connection.get_atom_details(next(iter(flow)).uuid)
        for call in (connection.get_logbook, connection.get_flow_details, connection.get_lease):
            with pytest.raises(exceptions.NotFound):
                call("11111111-2222-4333-8444-555555555555")
        with pytest.raises(exceptions.FlowBusy):
            connection.acquire_lease(flow.uuid, "x", 15)

    reopened(conf, everything)
    assert stores.raw(conf) == before
    reopened(conf, lambda connection: connection.clear_all())


@places.durable_dialects
@pytest.mark.parametrize("how", ["destroy", "clear"])
def test_destroyed_logbook_leaves_no_data(
    kind: str, conf: stores.Conf, connection: Connection, how: str
) -> None:
    """Flows, atoms, items and leases are deleted; other logbooks stay."""
    other, _ = make(models.TaskDetail("other"))
    if how == "destroy":
        connection.save_logbook(other)
    before = stores.raw(conf)
    book, flow = make(models.TaskDetail("t"), models.RetryDetail("r"))
    (atom, _) = flow
    atom.items = models.Items(1, ["a", "b"])
    second = models.FlowDetail("second")
    second.add(models.TaskDetail("t"))
    book.add(second)
    connection.save_logbook(book)
    connection.release_lease(connection.acquire_lease(flow.uuid, "x", 15))
    lease = connection.acquire_lease(flow.uuid, "owner", 15)
    connection.save_changes(flow, flow, items={atom.uuid: list(atom.items)}, lease=lease)
    assert stores.raw(conf) != before
    if how == "destroy":
        connection.destroy_logbook(book.uuid)
    else:
        connection.clear_all()
        connection.clear_all()
    assert stores.raw(conf) == before


@places.everywhere
def test_connections_and_backends_can_be_closed_repeatedly(conf: stores.Conf) -> None:
    with backends.backend(conf) as backend:
        assert backend.conf["connection"] == conf["connection"]
        connection = backend.get_connection()
        assert connection.backend is backend
        connection.upgrade()
        connection.validate()
        connection.close()
        connection.close()
        with backend.get_connection() as other:
            assert list(other.get_logbooks()) == []
    backend.close()


@places.every_durable
def test_store_is_created_on_first_use(
    kind: str, tmp_path: Path, database_servers: servers.Databases
) -> None:
    book, flow = make(models.TaskDetail("t"))
    with places.place(kind, tmp_path, database_servers) as fresh:
        assert reopened(fresh, lambda c: records.of_book(c.save_logbook(book))) == (
            records.of_book(book)
        )
        flow_detail = reopened(fresh, lambda c: records.of_flow(c.get_flow_details(flow.uuid)))
        assert flow_detail == records.of_flow(flow)
