"""The directory backend: its options, what it leaves on the disk, and what a turn costs there."""

from __future__ import annotations

import itertools
import os
import pathlib
import stat
import threading
from typing import Any

import pytest

from tests.unit import descriptors
from wbengine import _clock, exceptions, states
from wbengine.persistence import backends, models
from wbengine.persistence.backends.directory import DirectoryBackend, opened, store

OWNER = "somebody"


def make(atoms: int = 2) -> tuple[models.LogBook, models.FlowDetail]:
    book, flow = models.LogBook("b"), models.FlowDetail("f")
    book.add(flow)
    flow.add_all([models.TaskDetail(f"t{number}") for number in range(atoms)])
    return book, flow


@pytest.fixture
def backend(tmp_path: pathlib.Path) -> DirectoryBackend:
    return DirectoryBackend({"path": str(tmp_path / "store")})


def tree(root: pathlib.Path) -> dict[str, bytes | None]:
    """Every file and folder, and what is in it."""
    return {
        str(path.relative_to(root)): path.read_bytes() if path.is_file() else None
        for path in root.rglob("*")
    }


def files_of(backend: DirectoryBackend, flow: models.FlowDetail) -> list[str]:
    return sorted(os.listdir(os.path.join(backend.path, "flows", flow.uuid)))


# -- options ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "conf",
    [
        {"connection": "dir", "path": "/some/where"},
        {"connection": "file", "path": pathlib.Path("/some/where")},
        {"connection": "dir:///some/where"},
        {"connection": "dir:///some%2Fwhere"},
        {"connection": "file:///some/where?max_cache_size=7"},
        {"connection": "dir:///else/where", "path": "/some/where", "encoding": "utf-8"},
    ],
)
def test_where_it_is(conf: dict[str, Any]) -> None:
    made = backends.fetch(conf)
    assert isinstance(made, DirectoryBackend) and made.path == "/some/where"
    assert not os.path.exists("/some/where")


@pytest.mark.parametrize(
    ("conf", "told"),
    [
        ({"connection": "dir"}, "needs a 'path'"),
        ({"connection": "dir://"}, "needs a 'path'"),
        ({"connection": "dir", "path": ""}, "path="),
        ({"connection": "dir://some/where"}, "dir:///some/where"),
        ({"connection": "dir:///x", "patj": "/y"}, "did you mean 'path'"),
        ({"connection": "dir:///x", "max_cache_size": "many"}, "max_cache_size='many'"),
    ],
)
def test_wrong_options_are_told(conf: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        backends.fetch(conf)


# -- what is on the disk ---------------------------------------------------------------------------


def test_reading_makes_nothing(backend: DirectoryBackend, tmp_path: pathlib.Path) -> None:
    """Neither where there is nothing yet, nor where something is."""
    connection = backend.get_connection()

    def read_all() -> None:
        assert list(connection.get_logbooks()) == kept
        for read in (
            connection.get_logbook,
            connection.get_flow_details,
            connection.get_atom_details,
            connection.get_flows_for_book,
            connection.get_lease,
            connection.destroy_logbook,
        ):
            with pytest.raises(exceptions.NotFound):
                read("missing")

    kept: list[models.LogBook] = []
    read_all()
    with pytest.raises(exceptions.StorageFailure, match=r"upgrade\(\)"):
        connection.validate()
    connection.clear_all()
    assert tree(tmp_path) == {}
    connection.upgrade()
    connection.validate()
    before = tree(tmp_path)
    read_all()
    assert tree(tmp_path) == before


def test_only_the_owner_may_read_it(backend: DirectoryBackend) -> None:
    book, flow = make()
    connection = backend.get_connection()
    connection.save_logbook(book)
    connection.save_changes(flow, flow)
    for path in (pathlib.Path(backend.path), *pathlib.Path(backend.path).rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_a_run_is_one_file_in_the_end(backend: DirectoryBackend) -> None:
    """Its turns are in a journal, until the lease is given back."""
    book, flow = make()
    connection = backend.get_connection()
    connection.save_logbook(book)
    assert files_of(backend, flow) == ["head", "records.1"]
    lease = connection.take_lease(flow.uuid, OWNER, 15.0)
    flow.state = states.RUNNING
    for atom in flow:
        atom.put(states.SUCCESS, atom.name)
        connection.save_changes(flow, [atom], lease=lease)
    assert files_of(backend, flow) == ["head", "journal.1", "records.1"]
    during = connection.get_flow_details(flow.uuid)
    connection.give_back_lease(lease)
    assert files_of(backend, flow) == ["head", "records.2"]
    after = connection.get_flow_details(flow.uuid)
    assert after.epoch == during.epoch == 1
    assert [a.to_dict() for a in after] == [a.to_dict() for a in during]
    assert [a.results for a in after] == ["t0", "t1"]


def test_a_turn_is_one_append(backend: DirectoryBackend) -> None:
    """As long as what is given; what was written before is not touched."""
    book, flow = make(50)
    connection = backend.get_connection()
    connection.save_logbook(book)
    lease = connection.take_lease(flow.uuid, OWNER, 15.0)
    journal = pathlib.Path(backend.path, "flows", flow.uuid, "journal.1")
    sizes = [0]
    before = b""
    for atom in flow:
        connection.save_changes(flow, [atom], flow_row=False, lease=lease)
        data = journal.read_bytes()
        assert data.startswith(before)
        before = data
        sizes.append(len(data))
    grown = [after - before for before, after in itertools.pairwise(sizes[1:])]
    assert max(grown) - min(grown) <= 4
    assert files_of(backend, flow) == ["head", "journal.1", "records.1"]


def test_a_long_journal_is_folded(
    backend: DirectoryBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When it is longer than what is folded: so that it takes few folds."""
    monkeypatch.setattr(opened, "FOLD_AT", 1000)
    book, flow = make(20)
    connection = backend.get_connection()
    connection.save_logbook(book)
    lease = connection.take_lease(flow.uuid, OWNER, 15.0)
    for turn in range(60):
        for atom in flow:
            atom.progress = turn / 100
        connection.save_changes(flow, flow, lease=lease)
    (records,) = [name for name in files_of(backend, flow) if name.startswith("records")]
    assert 20 < int(records.partition(".")[2]) <= 61
    assert {atom.progress for atom in connection.get_flow_details(flow.uuid)} == {0.59}
    assert connection.get_lease(flow.uuid) == lease


def test_items_of_older_attempts_are_forgotten(backend: DirectoryBackend) -> None:
    """When they are folded."""
    book, flow = make(1)
    connection = backend.get_connection()
    connection.save_logbook(book)
    (atom,) = flow
    for attempt, count in ((1, 50), (2, 3)):
        lease = connection.take_lease(flow.uuid, OWNER, 15.0)
        atom.attempt = attempt
        atom.items = models.Items(attempt, [f"value {attempt}"] * count)
        connection.save_changes(flow, [atom], items={atom.uuid: list(atom.items)}, lease=lease)
        connection.give_back_lease(lease)
    (records,) = pathlib.Path(backend.path, "flows", flow.uuid).glob("records.*")
    assert (records.read_text().count("value 1"), records.read_text().count("value 2")) == (0, 3)


def test_nothing_is_left_of_what_is_destroyed(backend: DirectoryBackend) -> None:
    connection = backend.get_connection()
    connection.upgrade()
    before = tree(pathlib.Path(backend.path))
    kept = [make() for _ in range(3)]
    for book, flow in kept:
        connection.save_logbook(book)
        connection.save_changes(flow, flow)
    connection.destroy_logbook(kept[0][0].uuid)
    connection.clear_all()
    after = tree(pathlib.Path(backend.path))
    assert after.pop("lock") == b"" and after == before


def test_few_files_stay_open(backend: DirectoryBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many flows are run at once; their owners do not notice."""
    monkeypatch.setattr(store, "_MOST_OPEN", 5)
    connection = backend.get_connection()
    flows = []
    for _ in range(12):
        book, flow = make(1)
        connection.save_logbook(book)
        flows.append(flow)
    before = descriptors.opened()

    def more() -> int:
        return len(descriptors.opened() - before)

    held = [connection.take_lease(flow.uuid, OWNER, 60.0) for flow in flows]
    for flow, lease in zip(flows, held, strict=True):
        connection.save_changes(flow, flow, lease=lease)
    assert more() == 2 * 5
    for lease in held:
        connection.give_back_lease(lease)
    assert more() == 0
    lease = connection.take_lease(flows[0].uuid, OWNER, 60.0)
    backend.close()
    assert more() == 0
    connection.save_changes(flows[0], flows[0], lease=lease)
    backend.close()


def test_threads_share_a_lease(backend: DirectoryBackend) -> None:
    """Listeners write too, and another thread renews."""
    book, flow = make(8)
    connection = backend.get_connection()
    connection.save_logbook(book)
    lease = connection.take_lease(flow.uuid, OWNER, 15.0)

    def write(atom: models.AtomDetail) -> None:
        mine = backend.get_connection()
        for turn in range(10):
            atom.progress = turn / 10
            mine.save_changes(flow, [atom], flow_row=False, lease=lease)
            mine.renew_lease(lease, 15.0)

    threads = [threading.Thread(target=write, args=(atom,)) for atom in flow]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {atom.progress for atom in connection.get_flow_details(flow.uuid)} == {0.9}
    connection.give_back_lease(lease)
    assert {atom.progress for atom in connection.get_flow_details(flow.uuid)} == {0.9}


# -- leases ----------------------------------------------------------------------------------------


def test_time_is_that_of_the_host(tmp_path: pathlib.Path) -> None:
    """As other processes there tell it."""
    clock = _clock.ManualClock(1000.0)
    mine = DirectoryBackend({"path": str(tmp_path)}, clock=clock).get_connection()
    theirs = DirectoryBackend({"path": str(tmp_path)}, clock=clock).get_connection()
    book, flow = make()
    mine.save_logbook(book)
    lease = mine.take_lease(flow.uuid, OWNER, 15.0)
    clock.advance(10.0)
    with pytest.raises(exceptions.FlowBusy) as caught:
        theirs.take_lease(flow.uuid, "other", 15.0)
    assert (caught.value.owner, caught.value.epoch, caught.value.seconds) == (OWNER, 1, 5.0)
    mine.renew_lease(lease, 15.0)
    clock.advance(14.0)
    assert theirs.get_lease(flow.uuid) == lease
    clock.advance(1.0)
    assert theirs.get_lease(flow.uuid) is None
    mine.save_changes(flow, flow, lease=lease)  # nobody took it
    assert theirs.take_lease(flow.uuid, "other", 15.0).epoch == 2
    with pytest.raises(exceptions.LeaseLost, match="other took it over"):
        mine.save_changes(flow, flow, lease=lease)


def test_epochs_do_not_depend_on_the_head(backend: DirectoryBackend) -> None:
    """It may be removed when it is damaged; what was written under an epoch tells of it."""
    book, flow = make()
    connection = backend.get_connection()
    connection.save_logbook(book)
    path = pathlib.Path(backend.path, "flows", flow.uuid, "head")
    for epoch in range(1, 4):
        path.unlink()
        assert connection.get_flow_details(flow.uuid).epoch == epoch - 1
        assert connection.get_lease(flow.uuid) is None
        lease = connection.take_lease(flow.uuid, OWNER, 15.0)
        assert lease.epoch == epoch
        connection.save_changes(flow, flow, lease=lease)
        if epoch % 2:  # folded, or in the journal
            connection.give_back_lease(lease)
    path.unlink()
    with pytest.raises(exceptions.LeaseLost):
        connection.save_changes(flow, flow, lease=lease)


def test_a_new_flow_of_the_same_uuid_has_another_owner(backend: DirectoryBackend) -> None:
    book, flow = make()
    connection = backend.get_connection()
    connection.save_logbook(book)
    old = connection.take_lease(flow.uuid, "old owner", 15.0)
    connection.save_changes(flow, flow, lease=old)
    connection.destroy_logbook(book.uuid)
    flow.epoch = 0
    connection.save_logbook(book)
    with pytest.raises(exceptions.LeaseLost):
        connection.renew_lease(old, 15.0)
    new = connection.take_lease(flow.uuid, "new owner", 15.0)
    assert new.epoch == old.epoch
    with pytest.raises(exceptions.LeaseLost):
        connection.save_changes(flow, flow, lease=old)
    connection.give_back_lease(old)
    assert connection.get_lease(flow.uuid) == new


# -- books -----------------------------------------------------------------------------------------


def test_books_come_in_the_order_they_were_created_in(backend: DirectoryBackend) -> None:
    connection = backend.get_connection()
    made = [make()[0] for _ in range(9)]
    for book in reversed(made):
        connection.save_logbook(book)
    assert [book.uuid for book in connection.get_logbooks(lazy=True)] == [b.uuid for b in made]


def test_a_flow_of_two_books_is_one(backend: DirectoryBackend) -> None:
    connection = backend.get_connection()
    book, flow = make()
    connection.save_logbook(book)
    other = models.LogBook("other")
    other.add(flow)
    flow.state = states.SUCCESS
    connection.save_logbook(other)
    for uuid in (book.uuid, other.uuid):
        (found,) = connection.get_flows_for_book(uuid)
        assert (found.uuid, found.state, len(found)) == (flow.uuid, states.SUCCESS, 2)
