"""The directory backend when things go wrong: damage, crashes, full disks, several processes."""

from __future__ import annotations

import errno
import logging
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.contract import records
from tests.support import directories, disks, fresh
from tests.support.directories import Kept
from wbengine import _crash, exceptions, states
from wbengine.persistence import base, models
from wbengine.persistence.backends.directory import DirectoryBackend, files, library, opened

#: Every so many bytes one is damaged; 1 takes a minute.
STRIDE = int(os.environ.get("WBENGINE_DAMAGE_STRIDE", "17"))


@pytest.fixture
def kept(tmp_path: pathlib.Path) -> Kept:
    return Kept(tmp_path / "store")


def aside(kept: Kept) -> list[bytes]:
    return [path.read_bytes() for path in sorted(kept.root.glob("aside/*"))]


# -- an unfinished end -----------------------------------------------------------------------------


def test_a_journal_that_is_cut(kept: Kept, caplog: pytest.LogCaptureFixture) -> None:
    """Wherever it is cut, and whatever was marked by then: the turns before, or an error.

    What was marked as written is never silently missing.
    """
    sizes, states_then, heads = [0], [kept.picture()], [kept.file("head").read_bytes()]
    for _ in range(4):
        kept.turn()
        sizes.append(kept.file("journal").stat().st_size)
        states_then.append(kept.picture())
        heads.append(kept.file("head").read_bytes())
    data = kept.file("journal").read_bytes()
    refused = 0
    for marked in (0, 2, 4):
        kept.file("head").write_bytes(heads[marked])
        near = {size + step for size in sizes for step in (-1, 0, 1)}
        for cut in sorted({*range(0, len(data), 3 * STRIDE), *near} & set(range(len(data) + 1))):
            kept.file("journal").write_bytes(data[:cut])
            whole = max(n for n, size in enumerate(sizes) if size <= cut)
            if whole < marked:
                with pytest.raises(exceptions.CorruptRecord, match="restore it from a copy"):
                    kept.picture()
                refused += 1
            else:
                assert kept.picture() == states_then[whole]
    assert refused > 20
    assert "of a turn that was not written to its end" in caplog.text


def test_an_unfinished_end_is_told_once_and_cut_off(
    kept: Kept, caplog: pytest.LogCaptureFixture
) -> None:
    kept.turn()
    before = kept.picture()
    journal = kept.file("journal")
    whole = journal.read_bytes()
    journal.write_bytes(whole + whole[-100:-50])
    caplog.clear()
    connection = kept.fresh()
    for _ in range(3):
        assert records.of_flow(connection.get_flow_details(kept.flow.uuid)) == before
    assert journal.stat().st_size == len(whole) + 50  # reading changes nothing
    lease = connection.take_lease(kept.flow.uuid, "me", 15.0)
    (message,) = [record.getMessage() for record in caplog.records]
    assert message.startswith(f"{journal} ends with 50 bytes of a turn")
    assert journal.read_bytes() == whole
    kept.turn(lease)
    assert journal.read_bytes().startswith(whole)
    assert kept.picture()["meta"]["turn"] == 2


# -- damage ----------------------------------------------------------------------------------------


def test_damage_is_an_error_or_does_not_matter(
    kept: Kept, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Every byte of every file: either all is read right, or a typed error names the file."""
    kept.turn()
    kept.connection.give_back_lease(kept.connection.take_lease(kept.flow.uuid, "me", 15.0))
    kept.turn()
    kept.turn()
    other = models.LogBook("other")
    kept.connection.save_logbook(other)
    expected = kept.picture()
    caplog.set_level(logging.CRITICAL)
    refused = 0
    paths = [*sorted(kept.folder.iterdir()), kept.root / "books" / kept.book.uuid]
    assert [path.name.partition(".")[0] for path in paths[:3]] == ["head", "journal", "records"]
    for path in paths:
        data = path.read_bytes()
        places = range(0, len(data), STRIDE)
        spoilts = [data[:at] + bytes([data[at] ^ (1 << at % 8)]) + data[at + 1 :] for at in places]
        spoilts += [data[:at] for at in (*places, *(m.end() for m in re.finditer(b"\n", data)))]
        for spoilt in spoilts:
            if spoilt != data:
                path.write_bytes(spoilt)
                connection = kept.fresh()
                try:
                    (flow,) = connection.get_flows_for_book(kept.book.uuid)
                    assert records.of_flow(flow) == expected
                except exceptions.CorruptRecord as error:
                    assert error.path == str(path) and str(path) in str(error)
                    assert error.flow == (None if path is paths[-1] else kept.flow.uuid)
                    refused += 1
                assert connection.get_logbook(other.uuid).name == "other"
        path.write_bytes(data)
    assert kept.picture() == expected
    assert refused > 200


@pytest.mark.parametrize("kind", ["records", "journal", "head"])
def test_what_is_damaged_is_put_aside_by_writers(kept: Kept, kind: str) -> None:
    """Once; it stays where it is, is refused until somebody restores it, and is then as it was."""
    kept.turn()
    before = kept.picture()
    path = kept.file(kind)
    data = path.read_bytes()
    path.write_bytes(data[:40] + b"#" + data[41:])
    connection = kept.fresh()
    with pytest.raises(exceptions.CorruptRecord):
        connection.get_flow_details(kept.flow.uuid)
    assert aside(kept) == []  # reading changes nothing
    for _ in range(2):
        with pytest.raises(exceptions.CorruptRecord) as caught:
            connection.take_lease(kept.flow.uuid, "me", 15.0)
        assert caught.value.path == str(path)
        with pytest.raises(exceptions.CorruptRecord):
            connection.save_logbook(kept.book)
    assert aside(kept) == [path.read_bytes()]
    (name,) = os.listdir(kept.root / "aside")
    assert name.startswith(f"{kept.flow.uuid}.{path.name}.20")
    path.write_bytes(data)
    assert kept.picture() == before
    connection.take_lease(kept.flow.uuid, "me", 15.0)


def test_the_other_flows_and_books_can_be_read(
    kept: Kept, caplog: pytest.LogCaptureFixture
) -> None:
    """Those of a book come first, then the error; nothing is left out silently."""
    connection = kept.connection
    other = models.FlowDetail("other")
    kept.book.add(other)
    connection.save_logbook(kept.book)
    books = [models.LogBook(f"b{number}") for number in range(3)]
    for book in books:
        connection.save_logbook(book)
    kept.file("records").write_bytes(b"")
    (kept.root / "books" / books[1].uuid).write_bytes(b"nothing\n")

    def read(found: Iterator[Any]) -> list[str]:
        names: list[str] = []
        with pytest.raises(exceptions.CorruptRecord):
            names.extend(each.name for each in found)
        return names

    assert read(connection.get_flows_for_book(kept.book.uuid)) == ["other"]
    assert [found.name for found in base.unfinished_flows(kept.backend)] == ["other"]
    assert caplog.text.count("is left out") == 2
    assert read(connection.get_logbooks()) == ["b0", "b2"]
    assert read(connection.get_logbooks(lazy=True)) == ["b", "b0", "b2"]
    assert connection.get_logbook(kept.book.uuid, lazy=True).name == "b"
    with pytest.raises(exceptions.CorruptRecord):
        connection.get_logbook(kept.book.uuid)
    with pytest.raises(exceptions.CorruptRecord):
        connection.save_logbook(books[1])
    assert aside(kept) == [b"nothing\n"]
    connection.destroy_logbook(books[1].uuid)
    connection.destroy_logbook(kept.book.uuid)
    assert [book.name for book in connection.get_logbooks()] == ["b0", "b2"]
    assert os.listdir(kept.root / "flows") == []


def test_a_book_that_cannot_be_read_can_be_destroyed(kept: Kept) -> None:
    """With the flows that were made for it."""
    (kept.root / "books" / kept.book.uuid).write_bytes(b"")
    kept.connection.destroy_logbook(kept.book.uuid)
    assert os.listdir(kept.root / "flows") == os.listdir(kept.root / "books") == []


def test_a_flow_that_is_missing_is_damage(kept: Kept) -> None:
    shutil.rmtree(kept.folder)
    with pytest.raises(exceptions.CorruptRecord, match="is missing") as caught:
        kept.fresh().get_logbook(kept.book.uuid)
    assert caught.value.flow == kept.flow.uuid
    with pytest.raises(exceptions.NotFound):
        kept.fresh().get_flow_details(kept.flow.uuid)


def test_a_run_goes_on_while_what_it_wrote_is_damaged(
    kept: Kept, caplog: pytest.LogCaptureFixture
) -> None:
    """What it adds is kept, and the lease given back; who reads is told."""
    lease = kept.connection.take_lease(kept.flow.uuid, "me", 15.0)
    kept.turn(lease)
    path = kept.file("journal")
    path.write_bytes(path.read_bytes().replace(b"result 1", b"result 2"))
    kept.turn(lease)
    kept.connection.give_back_lease(lease)
    assert "is folded another time" in caplog.text and len(aside(kept)) == 1
    with pytest.raises(exceptions.CorruptRecord):
        kept.picture()
    path.write_bytes(path.read_bytes().replace(b'"result 2"', b'"result 1"', 1))
    assert kept.picture()["meta"]["turn"] == 2
    assert kept.fresh().get_lease(kept.flow.uuid) is None


def test_a_folder_that_somebody_removes(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    """While it is used: an error that names it, of the kind that all failures of a store are."""
    lease = kept.connection.take_lease(kept.flow.uuid, "me", 15.0)
    kept.turn(lease)
    monkeypatch.setattr(library.Library, "make_folders", lambda _: None)
    shutil.rmtree(kept.root / "doing")
    for call in (
        lambda: kept.connection.save_logbook(kept.book),
        lambda: kept.connection.destroy_logbook(kept.book.uuid),
        kept.connection.clear_all,
    ):
        with pytest.raises(exceptions.StorageFailure, match=r"doing/.* is gone"):
            call()
    shutil.rmtree(kept.root)
    with pytest.raises(exceptions.LeaseLost):
        kept.turn(lease)
    kept.connection.give_back_lease(lease)


# -- crashes ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def crashes(tmp_path_factory: pytest.TempPathFactory) -> tuple[pathlib.Path, dict[str, Any]]:
    """A folder for each place, and what happened there."""
    root = tmp_path_factory.mktemp("crashes")
    return root, directories.run("crash_everywhere", str(root))


@pytest.mark.parametrize("place", directories.crash_points())
def test_a_crash_at_any_place(place: str, crashes: tuple[pathlib.Path, dict[str, Any]]) -> None:
    """What was done is there, what was not is there or not; the next one tidies up."""
    root = crashes[0] / place
    ended, told = crashes[1][place]
    assert ended == 9
    connection = DirectoryBackend({"path": str(root)}).get_connection()
    books = list(connection.get_logbooks())
    last = told[-1] if told else None
    if last is not None and "destroy" not in place and "removed" not in place:
        (book,) = books
        flow = next(iter(book))
        assert book.uuid == last[0]
        assert flow.meta.get("turn", 0) in (last[1], last[1] + 1)
        for atom in flow:
            assert atom.results == (f"result {atom.attempt}" if atom.attempt else None)
    connection.upgrade()
    known = {flow.uuid for book in connection.get_logbooks() for flow in book}
    assert set(os.listdir(root / "flows")) == known
    assert os.listdir(root / "doing") == []
    for uuid in known:
        lease = connection.take_lease(uuid, "next", 15.0, dead=1)
        flow = connection.get_flow_details(uuid)
        flow.meta["next"] = True
        connection.save_changes(flow, flow, lease=lease)
        connection.give_back_lease(lease)
        names = sorted(os.listdir(root / "flows" / uuid))
        kept_besides = [name.partition(".")[0] for name in names if name != "outline"]
        assert kept_besides == ["head", "records"]
        assert connection.get_outline(uuid) is None or "outline" in names
        assert connection.get_flow_details(uuid).meta["next"] is True
    for book in list(connection.get_logbooks()):
        connection.destroy_logbook(book.uuid)
    assert os.listdir(root / "flows") == os.listdir(root / "books") == []
    assert list(root.glob("wishes/*")) == []


# -- a disk that is full, or failing ---------------------------------------------------------------


class Disk:
    """The system's calls; from the `after`-th one on, those of one kind fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.failing = ""
        self.number = errno.ENOSPC
        self.after = 0
        self.write, self.cut = os.write, os.ftruncate
        monkeypatch.setattr(os, "write", self._write)
        monkeypatch.setattr(os, "ftruncate", self._cut)
        self.sync = files._data_sync
        monkeypatch.setattr(files, "_data_sync", self._sync)

    def _fails(self, kind: str) -> bool:
        if kind not in self.failing.split():
            return False
        self.after -= 1
        return self.after < 0

    def _error(self) -> OSError:
        return OSError(self.number, os.strerror(self.number))

    def _write(self, fd: int, data: Any) -> int:
        if self._fails("write"):
            if len(data) > 10:
                return self.write(fd, data[: len(data) // 2])
            raise self._error()
        return self.write(fd, data)

    def _sync(self, fd: int) -> None:
        if self._fails("sync"):
            raise self._error()
        self.sync(fd)

    def _cut(self, fd: int, size: int) -> None:
        if self._fails("cut"):
            raise self._error()
        self.cut(fd, size)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EROFS, errno.EACCES])
@pytest.mark.parametrize("failing", ["write", "sync", "write cut", "sync cut"])
@pytest.mark.parametrize("turns", [0, 1])
def test_a_turn_that_cannot_be_written(
    kept: Kept, monkeypatch: pytest.MonkeyPatch, failing: str, number: int, turns: int
) -> None:
    """It does not count, the error says what and why; later the same connection goes on."""
    lease = kept.connection.take_lease(kept.flow.uuid, "me", 15.0)
    for _ in range(turns):
        kept.turn(lease)
    before = kept.picture()
    disk = Disk(monkeypatch)
    disk.number = number
    for _ in range(2):
        disk.failing = failing
        with pytest.raises(exceptions.StorageFailure, match=os.strerror(number)) as caught:
            kept.turn(lease)
        assert "journal.1" in str(caught.value)
        disk.failing = ""
        if "sync cut" not in failing:
            assert kept.picture() == before
    kept.turn(lease)
    assert kept.picture()["meta"]["turn"] == turns + 3
    kept.connection.give_back_lease(lease)
    assert kept.picture()["meta"]["turn"] == turns + 3


@pytest.mark.parametrize("failing", ["write", "sync"])
@pytest.mark.parametrize("after", range(4))
def test_folding_that_fails_is_put_off(
    kept: Kept, monkeypatch: pytest.MonkeyPatch, failing: str, after: int
) -> None:
    """The lease is given back nevertheless, and nothing is lost."""
    lease = kept.connection.take_lease(kept.flow.uuid, "me", 15.0)
    kept.turn(lease)
    before = kept.picture()
    disk = Disk(monkeypatch)
    disk.failing, disk.after = failing, after
    kept.connection.give_back_lease(lease)
    disk.failing = ""
    assert kept.picture() == before
    assert kept.fresh().get_lease(kept.flow.uuid) is None
    lease = kept.connection.take_lease(kept.flow.uuid, "me", 15.0)
    kept.turn(lease)
    kept.connection.give_back_lease(lease)
    assert kept.picture()["meta"]["turn"] == 2
    assert sorted(path.name[:4] for path in kept.folder.iterdir()) == ["head", "reco"]


def test_a_fold_that_broke_off_is_forgotten(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the next turn: even who has lost the head does not take it for the latest."""

    def fail(place: str) -> None:
        if place == "dir.after-fold-rename":
            raise exceptions.StorageFailure("no")

    lease = kept.connection.take_lease(kept.flow.uuid, "me", 15.0)
    kept.turn(lease)
    monkeypatch.setattr(_crash, "_hook", fail)
    writing = kept.backend._store.writing(kept.flow.uuid, keep=True)
    with pytest.raises(exceptions.StorageFailure, match="no"), writing as held:
        held.fold()
    assert (kept.folder / "records.2").exists()
    kept.turn(lease)
    kept.file("head").unlink()
    assert kept.picture()["meta"]["turn"] == 2


def test_a_mark_that_cannot_be_written(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    """The turn counts nevertheless; the journal may even be folded right then."""
    lease = kept.connection.take_lease(kept.flow.uuid, "me", 15.0)
    kept.turn(lease)
    write, fails = os.pwrite, [True, False]

    def fail_once(fd: int, data: bytes, at: int) -> int:
        if fails.pop(0):
            raise OSError(errno.EIO, "broken")
        return write(fd, data, at)

    for at_once in (False, True):
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", fail_once)
            patch.setattr(opened.OpenFlow, "is_long", lambda _, answer=at_once: answer)
            fails[:] = [True, False, False, False]
            kept.turn(lease)
        assert len(fails) < 3
        assert kept.picture()["meta"]["turn"] == kept.turns
        assert kept.fresh().get_lease(kept.flow.uuid) == lease
        kept.turn(lease)
        assert kept.picture()["meta"]["turn"] == kept.turns


@pytest.mark.parametrize("failing", ["write", "sync"])
@pytest.mark.parametrize("after", range(4))
def test_a_book_that_cannot_be_written(
    kept: Kept, monkeypatch: pytest.MonkeyPatch, failing: str, after: int
) -> None:
    """Nothing is left of it, and of the others everything."""
    book, flow = models.LogBook("new"), models.FlowDetail("new")
    book.add(flow)
    disk = Disk(monkeypatch)
    disk.failing, disk.after = failing, after
    if failing == "sync" and after > 2:
        kept.connection.save_logbook(book)
        return
    with pytest.raises(exceptions.StorageFailure, match="No space left"):
        kept.connection.save_logbook(book)
    disk.failing = ""
    assert [found.name for found in kept.fresh().get_logbooks()] == ["b"]
    kept.connection.save_logbook(book)
    assert [found.name for found in kept.fresh().get_logbooks()] == ["b", "new"]
    kept.connection.destroy_logbook(book.uuid)
    assert os.listdir(kept.root / "flows") == [kept.flow.uuid]
    assert os.listdir(kept.root / "doing") == []


@pytest.fixture
def small_disk(tmp_path: pathlib.Path) -> Iterator[pathlib.Path]:
    """A file system of half a megabyte."""
    with disks.small_disk(tmp_path / "disk", "512k") as path:
        yield path


def test_a_full_disk(small_disk: pathlib.Path) -> None:
    """A clear error; nothing that counted is lost; it goes on once there is room."""
    kept = Kept(small_disk / "store")
    lease = kept.connection.take_lease(kept.flow.uuid, "me", 15.0)
    atom = next(iter(kept.flow))
    for turn in range(100):
        atom.put(states.SUCCESS, str(turn) * 9000)
        try:
            kept.connection.save_changes(kept.flow, [atom], lease=lease)
        except exceptions.StorageFailure as error:
            assert "No space left on device" in str(error) and "journal.1" in str(error)
            break
    (found,) = [a for a in kept.fresh().get_flow_details(kept.flow.uuid) if a.uuid == atom.uuid]
    assert found.results == str(turn - 1) * 9000
    with pytest.raises(exceptions.StorageFailure, match="No space left"):
        for _ in range(100):
            Kept(small_disk / "store")
    with pytest.raises(exceptions.StorageFailure, match="No space left"):
        kept.connection.save_changes(kept.flow, [atom], lease=lease)
    subprocess.run(["mount", "-o", "remount,size=4m", str(small_disk)], check=True)
    kept.connection.save_changes(kept.flow, [atom], lease=lease)
    kept.connection.give_back_lease(lease)
    (found,) = [a for a in kept.fresh().get_flow_details(kept.flow.uuid) if a.uuid == atom.uuid]
    assert found.results == str(turn) * 9000


# -- several processes -----------------------------------------------------------------------------


def test_who_reads_while_another_folds(tmp_path: pathlib.Path) -> None:
    """Sees each time one whole turn, and never an older one than before."""
    seen = directories.run("read_while_another_folds", str(tmp_path))
    assert seen == sorted(seen)


def test_a_journal_that_goes_while_it_is_read(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who read the records by then reads again: others may have seen what was in the journal."""
    lease = kept.connection.take_lease(kept.flow.uuid, "me", 15.0)
    read = files.read_lines

    def read_slowly(path: str) -> list[bytes]:
        found = read(path)
        if path.endswith("records.1"):
            monkeypatch.setattr(files, "read_lines", read)
            kept.turn(lease)
            kept.connection.give_back_lease(lease)
        return found

    monkeypatch.setattr(files, "read_lines", read_slowly)
    assert kept.fresh().get_flow_details(kept.flow.uuid).meta["turn"] == 1


def test_who_reads_is_not_kept_by_a_frozen_writer(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writers say so, after a while."""
    call = f"from tests.support import directories; directories.freeze({str(kept.root)!r})"
    child = subprocess.Popen([sys.executable, "-c", call], cwd=fresh.REPOSITORY)
    os.waitid(os.P_PID, child.pid, os.WSTOPPED)
    try:
        assert kept.fresh().get_flow_details(kept.flow.uuid).name == "f"
        lock = files.lock
        monkeypatch.setattr(files, "lock", lambda fd, path, **_: lock(fd, path, patience=0.05))
        with pytest.raises(exceptions.StorageFailure, match="is locked by another process"):
            kept.fresh().take_lease(kept.flow.uuid, "me", 15.0)
    finally:
        os.kill(child.pid, signal.SIGCONT)
        assert child.wait(timeout=60) == 0
    assert kept.picture()["state"] == states.RUNNING


def test_a_forked_child_has_files_of_its_own(tmp_path: pathlib.Path) -> None:
    """Locks belong to what was opened: shared files would keep neither out."""
    assert directories.run("share_with_a_child", str(tmp_path)) == 0
    (book,) = DirectoryBackend({"path": str(tmp_path)}).get_connection().get_logbooks()
    (flow,) = book
    # The second turn of the child's, then the first of the parent's: each counts its own.
    assert flow.meta["turn"] == 1
    assert {atom.attempt for atom in flow} == {0, 1, 2}
