"""`wbengine db move`: copy a store to another one."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Command
from wbengine import exceptions
from wbengine.persistence import backends, base, models

#: Files of a folder of journals, as latin-1 text: logbook 1 has a flow with three batches and a
#: flow that never ran; logbook 2 is empty.
JOURNALS = json.loads(Path(__file__).with_name("journal_folder.json").read_text())


@pytest.fixture
def journals(tmp_path: Path) -> Path:
    root = tmp_path / "journals"
    for name, text in JOURNALS.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode("latin-1"))
    return root


@contextlib.contextmanager
def opened(url: str) -> Iterator[base.Connection]:
    with contextlib.closing(backends.fetch(url)) as backend, backend.get_connection() as connection:
        yield connection


def a_flow(url: str, name: str = "a flow") -> None:
    book, flow = models.LogBook("book", uuid="book"), models.FlowDetail(name, uuid="flow")
    flow.add(models.TaskDetail("task", uuid="task"))
    book.add(flow)
    with opened(url) as connection:
        connection.save_logbook(book)


def test_folder_of_journals_is_refused_with_the_move_command(
    wbengine: Command, journals: Path
) -> None:
    for words in (("flow", "list"), ("db", "upgrade")):
        answer = wbengine(*words, "--persistence", f"dir://{journals}")
        assert answer.code == 69
        assert f"`wbengine db move dir://{journals} dir://{journals}-moved`" in answer.error
    assert not (journals / "flows.db").exists()


def test_missing_store_is_not_moved(wbengine: Command, home: Path) -> None:
    answer = wbengine("db", "move", f"sqlite:///{home}/none.db", f"sqlite:///{home}/new.db")
    assert answer.code == 69
    assert f"OLD must be an existing store, got sqlite:///{home}/none.db" in answer.error
    assert not (home / "new.db").exists()


def test_folder_of_journals_is_moved_completely(wbengine: Command, journals: Path) -> None:
    new = f"dir://{journals}-moved"
    before = {path: path.read_bytes() for path in journals.rglob("*") if path.is_file()}
    answer = wbengine("db", "move", f"dir://{journals}", new)
    assert (answer.code, answer.err) == (0, "")
    assert answer.out == f"copied 2 flows in 2 logbooks to {new} and verified them\n"
    with opened(new) as connection:
        assert {book.uuid: len(book) for book in connection.get_logbooks()} == {
            "book-1": 2,
            "book-2": 0,
        }
        book = connection.get_logbook("book-1")
        assert book.meta == {"by": "shop"} and [each.name for each in book] == [
            "order 17",
            "never run",
        ]
        flow = connection.get_flow_details("flow-1")
        assert (flow.state, flow.meta, flow.epoch) == ("SUSPENDED", {"amount": 17}, 3)
        assert [change.state for change in flow.history] == ["RUNNING", "SUSPENDED"]
        done, mapped, retry = flow
        assert done.results == {"receipt": "r-2", "when": (1, 2)} and done.version == "1.0"
        assert [item.results for item in mapped.items or ()] == [0, 10, 20]
        assert (retry.kind, retry.name) == ("retry", "again")
        outline = connection.get_outline("flow-1")
        assert outline is not None and outline.digest == flow.outlined
        # Epochs of later runs exceed all earlier ones, also in the ledgers of workers.
        assert connection.acquire_lease("flow-1", "me", 60).epoch == 4
    after = {path: path.read_bytes() for path in journals.rglob("*") if path.is_file()}
    assert after == before
    again = wbengine("db", "move", f"dir://{journals}", new, "--json")
    assert again.code == 0 and again.json["flows"] == 2


def test_incomplete_batch_at_the_end_of_a_journal_is_skipped(
    wbengine: Command, journals: Path
) -> None:
    (journal,) = (journals / "flows" / "flow-1").glob("journal.*")
    data = journal.read_bytes()
    journal.write_bytes(data + data[data.index(b"\n") + 1 : -5])
    assert wbengine("db", "move", f"dir://{journals}", f"dir://{journals}-moved").code == 0
    with opened(f"dir://{journals}-moved") as connection:
        assert connection.get_flow_details("flow-1").state == "SUSPENDED"


@pytest.mark.parametrize("file", ["books/book-1", "flows/flow-1/records.3", "flows/flow-1/head"])
def test_damaged_folder_of_journals_is_refused(
    wbengine: Command, journals: Path, file: str
) -> None:
    data = bytearray((journals / file).read_bytes())
    data[30] ^= 1
    (journals / file).write_bytes(data)
    answer = wbengine("db", "move", f"dir://{journals}", f"dir://{journals}-moved")
    assert answer.code != 0 and "is damaged: a checksum is wrong" in answer.error


def test_truncated_journal_is_refused(wbengine: Command, journals: Path) -> None:
    """It is shorter than the length in its head."""
    (journal,) = (journals / "flows" / "flow-1").glob("journal.*")
    journal.write_bytes(journal.read_bytes()[:100])
    answer = wbengine("db", "move", f"dir://{journals}", f"dir://{journals}-moved")
    assert answer.code != 0 and "flow-1 is damaged" in answer.error


def test_stores_of_other_kinds_are_moved(wbengine: Command, tmp_path: Path) -> None:
    old, new = f"sqlite:///{tmp_path}/old.db", f"dir://{tmp_path}/new"
    a_flow(old)
    assert wbengine("db", "move", old, new).code == 0
    with opened(old) as before, opened(new) as after:
        assert after.get_logbook("book").to_dict() == before.get_logbook("book").to_dict()
        assert [atom.name for atom in after.get_flow_details("flow")] == ["task"]


def test_move_to_a_store_with_another_logbook_of_that_name_is_refused(
    wbengine: Command, tmp_path: Path
) -> None:
    old, new = f"sqlite:///{tmp_path}/old.db", f"dir://{tmp_path}/new"
    a_flow(old)
    a_flow(new, "another one")
    answer = wbengine("db", "move", old, new)
    assert answer.code != 0 and "contains another logbook book" in answer.error
    with opened(new) as connection:
        assert connection.get_flow_details("flow").name == "another one"


def test_move_of_a_running_flow_is_refused(wbengine: Command, tmp_path: Path) -> None:
    old, new = f"sqlite:///{tmp_path}/old.db", f"dir://{tmp_path}/new"
    a_flow(old)
    with opened(old) as connection:
        connection.acquire_lease("flow", "somebody", 60)
    answer = wbengine("db", "move", old, new)
    assert (
        answer.code != 0 and "Flow flow must not be running, its owner is somebody" in answer.error
    )
    with opened(new) as connection, pytest.raises(exceptions.NotFound):
        connection.get_logbook("book")


def test_invalid_url_of_store_to_move_is_refused(wbengine: Command, tmp_path: Path) -> None:
    answer = wbengine("db", "move", f"dirr://{tmp_path}", f"dir://{tmp_path}/new")
    assert answer.code == 2 and "did you mean 'dir'?" in answer.error
