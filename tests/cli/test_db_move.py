"""`wbengine db move`: copy a store to another one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Command
from wbengine import engines, exceptions, retry, states, task
from wbengine.patterns import linear_flow
from wbengine.persistence import backends, base, models


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


def test_missing_store_is_not_moved(wbengine: Command, home: Path) -> None:
    answer = wbengine("db", "move", f"sqlite:///{home}/none.db", f"sqlite:///{home}/new.db")
    assert answer.code == 69
    assert f"OLD must be an existing store, got sqlite:///{home}/none.db" in answer.error
    assert not (home / "new.db").exists()


class Square(task.Task):
    def execute(self, number: int) -> int:
        return number * number


def test_flow_that_ran_is_moved_completely(wbengine: Command, tmp_path: Path) -> None:
    old, new = f"dir://{tmp_path}/old", f"sqlite:///{tmp_path}/new.db"
    squares = task.Map(Square(), over="numbers", item="number", name="squares")
    with backends.backend(old) as backend:
        engine = engines.load(
            linear_flow.Flow("f", retry.Times(2, "again")).add(squares),
            store={"numbers": [1, 2, 3]}, backend=backend,
        )  # fmt: skip
        engine.run()
        uuid = engine.storage.flow_uuid
    answer = wbengine("db", "move", old, new)
    assert answer.out == f"copied 1 flows in 1 logbooks to {new} and verified them\n"
    again = wbengine("db", "move", old, new, "--json")
    assert again.code == 0 and again.json["flows"] == 1
    with opened(old) as before, opened(new) as after:
        flow = after.get_flow_details(uuid)
        assert [change.state for change in flow.history] == [states.RUNNING, states.SUCCESS]
        assert {atom.name for atom in flow} > {"squares", "again"}
        (mapped,) = [atom for atom in flow if atom.name == "squares"]
        assert [item.results for item in mapped.items or ()] == [1, 4, 9]
        outline = after.get_outline(uuid)
        assert outline is not None and outline.digest == flow.outlined
        # Epochs of later runs exceed all earlier ones, also in the ledgers of workers.
        epoch = before.get_flow_details(uuid).epoch
        assert after.acquire_lease(uuid, "me", 60).epoch == epoch + 1


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
