"""A store whose file was deleted or replaced is not used any more."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.waiting import until
from wbengine import engines, exceptions, task
from wbengine._cli import app
from wbengine.conductors import service
from wbengine.patterns import linear_flow
from wbengine.persistence import backends, base, models

WORDS = "was deleted or replaced while this process had it open"
ran: list[str] = []


def restore_copy(file: Path) -> None:
    shutil.copy(file, f"{file}-copy")
    os.replace(f"{file}-copy", file)


def move_folder(file: Path) -> None:
    file.parent.rename(file.parent.with_name("moved"))


CHANGES = [Path.unlink, restore_copy, move_folder]


@task.task
def delete_store() -> None:
    Path("store/flows.db").unlink()


@task.task
def step(number: int) -> None:
    ran.append(f"step {number}")


def flow_of_steps() -> linear_flow.Flow:
    steps = [step(name=f"step-{number}", inject={"number": number}) for number in range(3)]
    return linear_flow.Flow("steps").add(delete_store(), *steps)


@pytest.fixture(params=["sqlite", "dir"])
def store(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[base.Backend]:
    monkeypatch.chdir(tmp_path)
    ran.clear()
    (tmp_path / "store").mkdir()
    uri = f"dir://{tmp_path}/store" if request.param == "dir" else "sqlite:///store/flows.db"
    with contextlib.closing(backends.fetch(uri)) as backend:
        yield backend


@pytest.mark.parametrize("change", CHANGES)
def test_reads_and_writes_fail_until_the_store_is_opened_again(
    store: base.Backend, change: Callable[[Path], None]
) -> None:
    file = Path("store/flows.db").resolve()
    with contextlib.closing(store.get_connection()) as connection:
        connection.save_logbook(models.LogBook("a"))
        store.check_identity()
        change(file)
        for access in (
            store.check_identity,
            lambda: list(connection.get_logbooks()),
            lambda: connection.save_logbook(models.LogBook("b")),
        ):
            with pytest.raises(exceptions.StorageFailure, match=f"{file} {WORDS}"):
                access()
        store.close()
        file.parent.mkdir(exist_ok=True)
        connection.save_logbook(models.LogBook("c"))
        expected = {"a", "c"} if change is restore_copy else {"c"}
        assert {book.name for book in connection.get_logbooks()} == expected


def test_run_ends_with_the_first_write_after_its_store_was_deleted(
    store: base.Backend, capsys: pytest.CaptureFixture[str]
) -> None:
    uri = f"sqlite:///{Path('store/flows.db').resolve()}"
    factory = f"{__name__}:flow_of_steps"
    assert app.main(["--persistence", uri, "flow", "run", factory]) not in (0, None)
    assert f"flows.db {WORDS}" in capsys.readouterr().err
    assert ran == []


def test_run_without_writes_ends_after_its_store_was_deleted(
    store: base.Backend,
) -> None:
    go, running = threading.Event(), threading.Event()

    @task.task
    def wait() -> None:
        running.set()
        go.wait()

    engine = engines.load(
        linear_flow.Flow("f").add(wait(), step(inject={"number": 1})), backend=store
    )
    errors: list[BaseException] = []

    def run() -> None:
        try:
            engine.run()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    running.wait()
    Path("store/flows.db").unlink()
    held_lease = engine._ownership.held
    assert held_lease is not None
    until(lambda: held_lease.error, within=1)
    go.set()
    thread.join()
    assert ran == []
    assert isinstance(errors[0], exceptions.LeaseLost) and WORDS in str(errors[0])


def test_conductor_ends_after_its_store_was_replaced(
    store: base.Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service.ConductorService, "POLL_SECONDS", 0.05)
    conductor = service.ConductorService(store)
    errors: list[BaseException] = []

    def run() -> None:
        try:
            conductor.run()
        except exceptions.StorageFailure as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    file = Path("store/flows.db")
    until(lambda: conductor.responds(0) and file.exists() and conductor.trouble is None)
    restore_copy(file)
    thread.join(60)
    assert WORDS in str(errors[0])
