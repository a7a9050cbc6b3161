"""The journal of a folder's ledger: what is torn, sealed, removed, full, or written by many."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from wbengine import exceptions
from wbengine.engines.worker_based.ledger import base, directory, journal

Opened = Callable[[], directory.DirectoryLedger]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opened]:
    """One ledger, as several processes would open it."""
    made: list[directory.DirectoryLedger] = []

    def open_it() -> directory.DirectoryLedger:
        made.append(directory.DirectoryLedger(str(tmp_path / "ledger")))
        return made[-1]

    yield open_it
    for ledger in made:
        ledger.close()


def journals(tmp_path: Path) -> list[int]:
    return sorted(int(name) for name in os.listdir(tmp_path / "ledger" / "journal"))


def append(tmp_path: Path, data: bytes) -> None:
    number = journals(tmp_path)[-1]
    with (tmp_path / "ledger" / "journal" / str(number)).open("ab") as file:
        file.write(data)


LINES = [
    b"O b 1;",
    b"C a 1 w;",
    b"F a 1 w 4 r ;s;",
    b"I a 1 w a.1.x;",
    b"D a;",
    b"R a -;",
    b"N a 7;",
]


@pytest.mark.parametrize("line", LINES)
def test_a_torn_line_has_no_effect_and_harms_none(
    opened: Opened, tmp_path: Path, line: bytes
) -> None:
    """Whoever wrote it was killed within the write, at any place of it."""
    mine, other = opened(), opened()
    for cut in range(1, len(line)):
        mine.open("a", 1)
        if line[:1] in b"FI":
            assert mine.claim("a", 1, "w").granted
        before = other.state("a")
        append(tmp_path, b"\n" + line[:cut])
        assert other.state("a") == before and other.state("b") is None
        other.open("c", 1)
        assert [mine.state(id) for id in "abc"] == [before, None, base.Row("c", 1, "open")]
        assert opened().state("a") == before
        mine.drop_many(["a", "c"])
    mine.open("a", 1)
    if line[:1] in b"FI":
        assert mine.claim("a", 1, "w").granted
    before = (mine.state("a"), mine.state("b"))
    append(tmp_path, b"\n" + line)
    other.open("c", 1)  # which ends it: but for its end it was whole
    after = (mine.state("a"), mine.state("b"))
    assert after != before or line[:1] == b"I"


def test_what_is_still_being_written_is_waited_for(opened: Opened, tmp_path: Path) -> None:
    ledger = opened()
    ledger.open("a", 1)
    append(tmp_path, b"\nC a 1 w;\nF a 1 w 6 res")
    assert ledger.state("a") == base.Row("a", 1, "claimed", "w")
    append(tmp_path, b"ult;\n")
    assert ledger.state("a") == base.Row("a", 1, "done", None, b"result")


def test_garbage_is_passed_over(opened: Opened, tmp_path: Path) -> None:
    ledger = opened()
    ledger.open("a", 1)
    append(
        tmp_path,
        b"\n\x00\x00\x00\nC a;\nC a x w;\nQ a 1 w;\nF a 1 w;\nS a;\n;\n" + bytes(range(256)),
    )
    assert ledger.claim("a", 1, "w").granted
    assert opened().state("a") == base.Row("a", 1, "claimed", "w")


RESULTS = [b"", b"\n", b"Z;", b"\nZ;\n", b" ;", b"x" * 5000, b"D a;\nD b;"]


def test_what_there_is_goes_from_one_journal_to_the_next(opened: Opened, tmp_path: Path) -> None:
    one, two, late = opened(), opened(), opened()
    late.open("seen", 1)
    one.open_many([("open", 3), ("-", 1), *((f"r{n}", 2) for n in range(len(RESULTS)))])
    assert one.claim("-", 1, "-").granted
    for number, result in enumerate(RESULTS):
        assert one.claim(f"r{number}", 2, "w").granted
        assert two.finish(f"r{number}", 2, "w", result)
    before = {id: one.state(id) for id in one.ids()}
    for _ in range(3):
        one._journal._seal()
        two.open("more", 1)
        two.drop("more")
        for ledger in (one, two, opened()):
            assert {id: ledger.state(id) for id in ledger.ids()} == before
    assert journals(tmp_path) == [3, 4]
    assert late.claim("open", 3, "w").granted  # it was frozen for three journals
    one.drop_many(list(before))
    assert not late.ids() and not os.listdir(tmp_path / "ledger" / "results")
    assert not os.listdir(tmp_path / "ledger" / "spare")


def test_a_journal_does_not_grow_for_ever(
    opened: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "_LEAST", 2000)
    ledger, other = opened(), opened()
    for number in range(300):
        ledger.open(f"{number}", 1)
        assert other.claim(f"{number}", 1, "w").granted
        assert other.finish(f"{number}", 1, "w", b"r" * 50)
        ledger.drop(f"{number}")
    before, number = journals(tmp_path)
    assert before == number - 1 > 10
    assert (tmp_path / "ledger" / "journal" / f"{number}").stat().st_size < 3000
    ledger.open_many([(f"{number}", 1) for number in range(1000)])
    known = journals(tmp_path)
    ledger.open_many([(f"more{number}", 1) for number in range(100)])
    assert journals(tmp_path) == known  # all of it is needed
    assert len(other.ids()) == 1100


@pytest.mark.parametrize("died", [False, True])
def test_who_was_frozen_before_it_made_the_next_one_disturbs_nobody(
    opened: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, died: bool
) -> None:
    """It read the seal, and went on when the next journal had come and gone."""
    frozen, other = opened(), opened()
    frozen.open("a", 1)
    frozen._journal._seal()
    place = frozen._journal._place

    def meanwhile(number: int, data: bytes) -> bool:
        monkeypatch.setattr(frozen._journal, "_place", place)
        for _ in range(3):
            assert other.state("a") is not None
            other._journal._seal()
        other.open("b", 1)
        assert journals(tmp_path) == [4, 5]
        made = place(number, data)
        assert made
        if died:
            raise KeyboardInterrupt
        return made

    monkeypatch.setattr(frozen._journal, "_place", meanwhile)
    if died:
        with pytest.raises(KeyboardInterrupt):
            frozen.claim("b", 1, "w")
        assert journals(tmp_path) == [2, 4, 5]
        frozen = opened()
    assert frozen.claim("b", 1, "w").granted
    assert journals(tmp_path) == [4, 5]
    assert other.state("b") == base.Row("b", 1, "claimed", "w")


def test_who_sealed_it_and_died_is_followed_by_the_next(opened: Opened, tmp_path: Path) -> None:
    ledger = opened()
    ledger.open("a", 1)
    append(tmp_path, b"\nZ;\nD a;\n")  # after the seal, it is void
    assert opened().state("a") == base.Row("a", 1, "open")
    assert ledger.claim("a", 1, "w").granted
    assert journals(tmp_path) == [1, 2]


@pytest.mark.parametrize("seen", [[], ["3"], ["3", "5"]])
def test_a_folder_that_changes_while_it_is_read_deceives_nobody(
    opened: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seen: list[str]
) -> None:
    """A file system need not show what was added since the folder was opened."""
    ledger = opened()
    for _ in range(5):
        ledger.open("a", 1)
        ledger._journal._seal()
    ledger.open("b", 1)
    assert journals(tmp_path) == [5, 6]
    (tmp_path / "ledger" / "journal" / "3").touch()  # of one that was frozen, and died
    listed, views = os.listdir, [seen]

    def listdir(path: str) -> list[str]:
        return views.pop() if views and path.endswith("/journal") else listed(path)

    monkeypatch.setattr(os, "listdir", listdir)
    assert opened().claim("b", 1, "w").granted
    state = ledger.state("b")
    assert not views and state is not None and state.holder == "w"
    assert journals(tmp_path) == [5, 6]


def test_a_journal_that_was_removed_is_begun_anew(opened: Opened, tmp_path: Path) -> None:
    one, two = opened(), opened()
    one.open("a", 1)
    assert two.state("a") is not None
    (tmp_path / "ledger" / "journal" / "1").unlink()
    two.open("b", 1)
    assert [one.state(id) for id in "ab"] == [None, base.Row("b", 1, "open")]
    os.rename(tmp_path / "ledger" / "journal", tmp_path / "away")
    assert one.state("b") is None
    os.rename(tmp_path / "ledger", tmp_path / "gone")
    with pytest.raises(exceptions.LedgerFailure, match="No such file"):
        one.open("a", 1)


def test_a_name_that_came_to_mean_another_journal_deceives_nobody(
    opened: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the moments at which the folder was read, and the newest in it was opened."""
    ledger, late = opened(), opened()
    for _ in range(3):
        ledger.open("b", 1)
        ledger._journal._seal()
    listed = os.listdir

    def listdir(path: str) -> list[str]:
        found = listed(path)
        if path.endswith("/journal"):
            monkeypatch.setattr(os, "listdir", listed)
            for _ in range(3):
                ledger.open("b", 1)
                ledger._journal._seal()
            assert max(found) == "3" not in listed(path)
            (tmp_path / "ledger" / "journal" / "3").touch()  # of one who was frozen
        return found

    monkeypatch.setattr(os, "listdir", listdir)
    assert late.claim("b", 1, "w").granted
    state = ledger.state("b")
    assert state is not None and state.holder == "w"


class Disk:
    """A disk on which so many bytes are free."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, free: int) -> None:
        self.free = free
        self._write = os.write
        monkeypatch.setattr(os, "write", self.write)

    def write(self, fd: int, data: Any) -> int:
        if not self.free:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        done = self._write(fd, bytes(data)[: self.free])
        self.free -= done
        return done


@pytest.mark.parametrize("free", range(0, 39, 6))
def test_a_full_disk_is_told_and_what_was_done_is_done(
    opened: Opened, monkeypatch: pytest.MonkeyPatch, free: int
) -> None:
    ledger, other = opened(), opened()
    ids = ["a", "b", "c"]
    ledger.open_many([(id, 1) for id in ids])
    for id in ids:
        assert ledger.claim(id, 1, "w").granted
    with monkeypatch.context() as patch:
        Disk(patch, free)
        told = ledger.finish_many("w", [(id, 1, id.encode()) for id in ids])
        assert isinstance(told[-1], exceptions.LedgerFailure)
        with pytest.raises(exceptions.LedgerFailure, match="No space left"):
            ledger.open("d", 1)
    done = told.index(told[-1])
    assert told[:done] == [True] * done
    other.open("d", 1)
    for id, good in zip(ids, told, strict=True):
        row = other.state(id)
        assert row is not None and row == ledger.state(id) == opened().state(id)
        assert row.state == "done" if good is True else "claimed"
    assert [ledger.finish(id, 1, "w", id.encode()) for id in ids[done + 1 :]] == [True] * (2 - done)


def test_a_forked_child_has_a_position_of_its_own(opened: Opened) -> None:
    ledger = opened()
    ledger.open_many([(f"{number}", 1) for number in range(400)])
    child = os.fork()
    good = [ledger.claim(f"{n}", 1, f"w{bool(child)}").granted for n in range(400)]
    if not child:
        os._exit(good.count(True) % 200)
    _, status = os.waitpid(child, 0)
    held = {ledger.state(f"{n}").holder for n in range(400)}  # type: ignore[union-attr]
    assert held <= {"wTrue", "wFalse"}
    assert (400 - good.count(True)) % 200 == os.waitstatus_to_exitcode(status)


def test_many_threads_and_ledgers_agree(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who claims what, while journals follow each other fast."""
    monkeypatch.setattr(journal, "_LEAST", 1500)
    ledgers = [opened() for _ in range(4)]
    ids = [f"{number}" for number in range(300)]
    granted: list[list[str]] = [[] for _ in ledgers]
    errors: list[BaseException] = []

    def run(number: int) -> None:
        ledger = ledgers[number]
        try:
            for id in ids:
                ledger.open(id, 1)
                if ledger.claim(id, 1, f"w{number}").granted:
                    granted[number].append(id)
                    assert ledger.finish(id, 1, f"w{number}", id.encode() * 40)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert sorted(id for mine in granted for id in mine) == sorted(ids)
    for ledger in (*ledgers, opened()):
        assert all(
            ledger.state(id) == base.Row(id, 1, "done", None, id.encode() * 40) for id in ids
        )
