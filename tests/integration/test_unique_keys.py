"""Submissions with a key that outlives its flow."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import sqlalchemy as sa

from tests.contract import places
from tests.support import conducted, servers
from tests.support.killed import is_killed
from tests.support.reading import flow_uuids
from tests.support.requested import conducting
from tests.support.waiting import until
from wbengine import engines, exceptions, operations, states
from wbengine._concurrency import crash_points
from wbengine.jobs import backends as boards
from wbengine.persistence import backends as stores
from wbengine.persistence import base as persistence
from wbengine.persistence._unique_keys import UniqueKey
from wbengine.persistence.backends._sql import backend as _sql_backend
from wbengine.persistence.backends._sql import writing

PLAIN = "tests.support.conducted:plain"


@pytest.fixture(params=["sqlite", "postgresql", "mysql"])
def uri(
    request: pytest.FixtureRequest, tmp_path: Path, database_servers: servers.Databases
) -> Iterator[str]:
    with places.place(request.param, tmp_path, database_servers) as conf:
        yield conf["connection"]


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[persistence.Backend]:
    with stores.backend(f"sqlite:///{tmp_path}/flows.db") as opened:
        yield opened


def submit(
    store: persistence.Backend, folder: Path, mark: str = "x", key: str = "k", **options: Any
) -> engines.FlowHandle:
    inputs = {"folder": str(folder), "mark": mark}
    options = {"unique_for": "24h", **options}
    return engines.submit(PLAIN, backend=store, inputs=inputs, unique=key, **options)


def run(store: persistence.Backend, handle: engines.FlowHandle) -> None:
    with conducting(store):
        assert handle.wait(60)


def uuids(store: persistence.Backend) -> set[str]:
    return {*flow_uuids(store)}


def execute(store: persistence.Backend, statement: str) -> Any:
    with cast(Any, store).engine.begin() as connection:
        return connection.execute(sa.text(statement))


def test_key_outlives_the_end_and_the_record_of_its_flow(
    store: persistence.Backend, tmp_path: Path
) -> None:
    first = submit(store, tmp_path)
    run(store, first)
    again = submit(store, tmp_path)
    assert again.id == first.id and again.result(0)["mark"] == "x"
    assert len(uuids(store)) == 1
    operations.delete(store, first.id)
    deleted = submit(store, tmp_path)
    assert deleted.id == first.id and uuids(store) == set()
    calls: list[Callable[[], object]] = [
        lambda: deleted.wait(0),
        deleted.cancel,
        lambda: deleted.signal("paid"),
        lambda: deleted.signal("paid", strict=True),
    ]
    for call in calls:
        with pytest.raises(exceptions.FlowDeleted, match=f"Flow {first.id} was deleted"):
            call()


def test_expired_key_is_used_again(store: persistence.Backend, tmp_path: Path) -> None:
    first = submit(store, tmp_path)
    execute(store, "UPDATE wbe_unique_keys SET expires = 1")
    assert submit(store, tmp_path).id == first.id  # the flow has not ended
    run(store, first)
    second = submit(store, tmp_path, "other")
    assert second.id != first.id
    assert submit(store, tmp_path, "other").id == second.id


@pytest.mark.parametrize(
    ("factory", "mark", "text"),
    [
        (PLAIN, "other", "with unique='k' and other arguments or inputs"),
        (f"{PLAIN[:-6]}:greeting", "x", "with unique='k' and another factory"),
    ],
)
def test_other_submission_with_the_same_key_is_refused(
    sqlite: persistence.Backend, tmp_path: Path, factory: str, mark: str, text: str
) -> None:
    first = submit(sqlite, tmp_path)
    inputs = {"folder": str(tmp_path), "mark": mark, "name": "Ada"}
    if factory == PLAIN:
        del inputs["name"]
    with pytest.raises(exceptions.UniqueKeyConflict, match=text) as raised:
        engines.submit(factory, backend=sqlite, inputs=inputs, unique="k", unique_for="forever")
    assert first.id in str(raised.value) and isinstance(raised.value, exceptions.Duplicate)
    assert uuids(sqlite) == {first.id}


def test_order_of_dict_keys_and_set_items_is_no_conflict() -> None:
    def digest(value: object) -> str:
        return UniqueKey.of("k", "24h", PLAIN, None, {"value": value}, {"value": value}).digest

    assert digest([{1: {(2, 3): 0, None: {"a", "b"}}, "x": 5}]) == digest(
        [{"x": 5, 1: {None: {"b", "a"}, (2, 3): 0}}]
    )
    different = [1, True, 1.0, "1", [1], (1,), {1: 1}, {"1": 1}, {1: 2}]
    assert len({digest(value) for value in different}) == len(different)


def test_name_of_a_function_and_the_function_are_no_conflict(
    sqlite: persistence.Backend, tmp_path: Path
) -> None:
    first = submit(sqlite, tmp_path)
    inputs = {"folder": str(tmp_path), "mark": "x"}
    for factory in (conducted.plain, PLAIN.replace(":", ".")):
        again = engines.submit(factory, backend=sqlite, inputs=inputs, unique="k", unique_for="1h")
        assert again.id == first.id


def test_keys_of_many_submissions(store: persistence.Backend, tmp_path: Path) -> None:
    """Known keys and keys that are used twice do not prevent new flows."""
    old = submit(store, tmp_path, "old", "old")
    keys = ["b", "old", "a", "b"]
    inputs = [{"folder": str(tmp_path), "mark": key} for key in keys]
    handles = engines.submit_many(PLAIN, inputs, backend=store, unique=keys, unique_for=60)
    ids = [handle.id for handle in handles]
    assert ids[1] == old.id and ids[0] == ids[3] and len({*ids}) == 3
    assert uuids(store) == {*ids}
    again = engines.submit_many(PLAIN, inputs, backend=store, unique=keys, unique_for=60)
    assert [handle.id for handle in again] == ids
    inputs[2]["mark"] = "other"
    with pytest.raises(exceptions.UniqueKeyConflict):
        engines.submit_many(
            PLAIN, [*inputs, inputs[0]], backend=store, unique=[*keys, "new"], unique_for=60
        )
    with pytest.raises(exceptions.UniqueKeyConflict):
        engines.submit_many(PLAIN, inputs[1:3], backend=store, unique=["c", "c"], unique_for=60)
    assert uuids(store) == {*ids}


@pytest.mark.parametrize("uri", ["postgresql", "mysql"], indirect=True)
def test_latest_state_of_the_flow_of_a_later_key_is_read(
    store: persistence.Backend, tmp_path: Path
) -> None:
    """The first key begins the snapshot of the transaction, the second must not read from it."""
    flows = {key: submit(store, tmp_path, key=key, unique_for=None).id for key in "az"}
    change = f"UPDATE wbe_flowdetails SET state = '%s' WHERE uuid = '{flows['z']}'"
    execute(store, change % states.SUCCESS)
    keys = [UniqueKey(name, "", None) for name in "az"]
    with cast(Any, store).engine.begin() as connection:
        statements = cast(Any, store).statements
        assert writing.claim_key(connection, statements, keys[0], "new") == flows["a"]
        execute(store, change % states.PENDING)
        assert writing.claim_key(connection, statements, keys[1], "new") == flows["z"]


def test_flow_that_is_requested_to_run_again_has_its_key(
    sqlite: persistence.Backend, tmp_path: Path
) -> None:
    first = submit(sqlite, tmp_path, unique_for=None)
    execute(sqlite, f"UPDATE wbe_flowdetails SET state = '{states.FAILURE}'")
    operations.request(sqlite, first.id, "retry")
    assert submit(sqlite, tmp_path, unique_for=None).id == first.id
    operations.suspend(sqlite, first.id)  # withdraws the request
    assert submit(sqlite, tmp_path, unique_for=None).id != first.id


def test_key_without_lifetime_is_prolonged(sqlite: persistence.Backend, tmp_path: Path) -> None:
    first = submit(sqlite, tmp_path, unique_for=None)
    assert submit(sqlite, tmp_path, "other", unique_for=None).id == first.id
    assert submit(sqlite, tmp_path).id == first.id
    run(sqlite, first)
    assert first.state == states.SUCCESS and submit(sqlite, tmp_path).id == first.id


def test_prune_deletes_expired_keys_of_deleted_flows(
    sqlite: persistence.Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_sql_backend, "_KEYS_PER_TRANSACTION", 1)
    handles = {key: submit(sqlite, tmp_path, key=key) for key in ("kept", "old", "older", "flow")}
    submit(sqlite, tmp_path, key="short", unique_for=None)
    for key in ("kept", "old", "older"):
        operations.delete(sqlite, handles[key].id)
    execute(sqlite, "UPDATE wbe_unique_keys SET expires = 1 WHERE name NOT IN ('kept', 'short')")
    assert list(operations.prune(sqlite, before=0.0, dry_run=True)) == []
    names = "SELECT name FROM wbe_unique_keys ORDER BY name"
    assert len(execute(sqlite, names).all()) == 5
    assert list(operations.prune(sqlite, before=0.0)) == []
    assert execute(sqlite, names).scalars().all() == ["flow", "kept", "short"]


def test_failed_submission_leaves_no_key(
    sqlite: persistence.Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("wbengine.persistence.backends._sql.writing.write_new_books", fail)
        with pytest.raises(KeyboardInterrupt):
            submit(sqlite, tmp_path)
    assert submit(sqlite, tmp_path, "other").state == states.PENDING


def test_killed_submission_stores_its_keys_with_its_flows_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path}/flows.db"
    write = writing.write_new_books

    def watched(*arguments: Any) -> None:
        crash_points.crashpoint("before the flows")
        write(*arguments)
        crash_points.crashpoint("before the commit")

    monkeypatch.setattr(writing, "write_new_books", watched)
    with stores.backend(url):
        pass  # creates the tables

    def submit_two(keys: list[str]) -> list[str]:
        inputs = [{"folder": "", "mark": key} for key in keys]
        with stores.backend(url) as opened:
            handles = engines.submit_many(
                PLAIN, inputs, backend=opened, unique=keys, unique_for="24h"
            )
        return [handle.id for handle in handles]

    number = 1
    while is_killed(number, submit_two, [f"a{number}", f"b{number}"]):
        with stores.backend(url) as opened:
            before = uuids(opened)
        ids = submit_two([f"a{number}", f"b{number}"])
        assert len(before & {*ids}) in (0, 2)
        assert submit_two([f"b{number}", f"a{number}"]) == ids[::-1]
        number += 1
    assert number > 2
    with stores.backend(url) as opened, boards.backend("b", "sql", persistence=opened) as board:
        assert board.job_count == len(uuids(opened)) == 2 * number


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"unique_for": "soon"}, "unique_for must be a duration above 0 such as '24h'"),
        ({"unique_for": 0}, "unique_for must be a duration above 0"),
        ({"unique_for": True}, "unique_for must be a duration above 0"),
        ({"unique": None}, "unique_for= requires unique="),
    ],
)
def test_invalid_lifetime_is_refused(
    sqlite: persistence.Backend, options: dict[str, Any], text: str
) -> None:
    arguments = {"unique": "k", "unique_for": "1h", **options}
    with pytest.raises(ValueError, match=text):
        engines.submit(PLAIN, backend=sqlite, inputs={"folder": "", "mark": ""}, **arguments)


def test_number_of_keys_must_be_that_of_the_flows(sqlite: persistence.Backend) -> None:
    with pytest.raises(ValueError, match="unique must contain 1 keys, got 2"):
        engines.submit_many(PLAIN, [{"folder": "", "mark": ""}], backend=sqlite, unique=["a", "b"])


def test_key_of_a_submission_is_not_deleted_with_that_of_its_deleted_flow(
    tmp_path: Path, database_servers: servers.Databases
) -> None:
    with contextlib.ExitStack() as stack:
        conf = stack.enter_context(places.place("postgresql", tmp_path, database_servers))
        store = stack.enter_context(stores.backend(conf["connection"]))
        operations.delete(store, submit(store, tmp_path, unique_for=None).id)

        def delete() -> None:
            with store.get_connection() as connection:
                connection.delete_expired_keys()

        def is_waiting() -> bool:
            with cast(Any, store).engine.begin() as connection:
                return bool(connection.scalar(sa.text("SELECT 1 FROM pg_locks WHERE NOT granted")))

        deleting = threading.Thread(target=delete)
        with cast(Any, store).engine.begin() as transaction:
            new = submit(store, tmp_path, unique_for=None, connection=transaction)
            deleting.start()
            until(is_waiting)
        deleting.join()
        assert submit(store, tmp_path, unique_for=None).id == new.id
        assert uuids(store) == {new.id}
