"""Engines and workers that share a ledger which is not their broker's own."""

from __future__ import annotations

import contextlib
import signal
import socket
import sqlite3
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import sample_tasks as tasks
from tests.support import servers
from tests.support.workers import worker_in_thread
from wbengine import engines, exceptions
from wbengine import worker as command
from wbengine.engines.worker_based import executor as executors
from wbengine.engines.worker_based import ledger as ledgers
from wbengine.engines.worker_based import worker as workers
from wbengine.patterns import linear_flow
from wbengine.persistence import backends, models

ID = "0b7f8a52-8f3e-5d6e-9a30-1d1f0f4e8a11"
AWAY = "postgresql://me:s3cret@127.0.0.1:1/db?application_name=s3cret"


def flow() -> Any:
    return linear_flow.Flow("f").add(tasks.Add(), tasks.Double())


def run(url: str, **options: Any) -> Any:
    store = {"x": 1, "y": 2}
    return engines.run(flow(), store=store, engine="worker-based", url=url, **options)["double"]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"memory://{tmp_path.name}"


@pytest.fixture(params=["dir", "sqlite", "mysql", "postgresql"])
def place(
    request: pytest.FixtureRequest, tmp_path: Path, database_servers: servers.Lazy
) -> Iterator[str]:
    if request.param in ("mysql", "postgresql"):
        with database_servers[request.param].database() as found:
            yield found
    elif request.param == "dir":
        yield f"dir://{tmp_path}/ledger"
    else:
        yield f"sqlite:///{tmp_path}/ledger.db"


def test_a_flow_runs_with_a_ledger_of_choice(url: str, place: str) -> None:
    """The rows are in it, and gone at the end."""
    with worker_in_thread(url, tasks, ledger=place) as worker:
        with worker_in_thread(url, tasks, ledger=place):
            loaded = engines.load(
                flow(), store={"x": 1, "y": 2}, engine="worker-based", url=url, ledger=place
            )
            loaded.run()
        assert loaded.storage.fetch("double") == 6
        shared = ledgers.open_ledger(place)
        assert loaded.executor._tracker.ledger == shared.digest == worker._server.ledger
    # What was retired, and what the worker held; there is nothing to sweep.
    assert shared.sweep(0) == 0
    shared.close()


@pytest.mark.parametrize("ours", [False, True])
def test_engine_and_worker_with_different_ledgers_are_refused(
    url: str, tmp_path: Path, ours: bool
) -> None:
    """Rather than that a task is run twice."""
    place = f"sqlite:///{tmp_path}/ledger.db"
    engine, worker = ({"ledger": place}, {}) if ours else ({}, {"ledger": place})
    with (
        worker_in_thread(url, tasks, **worker),
        pytest.raises(
            exceptions.NotFound, match=r"does not hold the ledger.*give engine and worker the same"
        ),
    ):
        run(url, **engine)


def test_flow_runs_without_a_ledger(tmp_path: Path) -> None:
    """Engine and worker may do without the broker's own."""
    url = f"filesystem://{tmp_path}/broker"
    with worker_in_thread(url, tasks, ledger="none"):
        loaded = engines.load(
            flow(), store={"x": 1, "y": 2}, engine="worker-based", url=url, ledger="none"
        )
        loaded.run()
    assert loaded.storage.fetch("double") == 6
    assert loaded.executor._tracker.ledger is None


def test_worker_with_a_ledger_refuses_tasks_of_an_engine_without(url: str) -> None:
    """Nothing would keep a copy of a request from being run."""
    with (
        worker_in_thread(url, tasks),
        pytest.raises(exceptions.NotFound, match=r"has no row in a ledger.*give engine and worker"),
    ):
        run(url, ledger="none")


def test_both_read_it_from_the_environment(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nothing else is said."""
    place = f"sqlite:///{tmp_path}/ledger.db"
    monkeypatch.setenv("WBENGINE_LEDGER", place)
    shared = ledgers.open_ledger(place)
    with worker_in_thread(url, tasks) as worker:
        assert run(url) == 6
        assert worker._server.ledger == shared.digest
        with pytest.raises(exceptions.NotFound, match="does not hold the ledger"):
            run(url, ledger=f"dir://{tmp_path}/other")
    shared.close()
    monkeypatch.setenv("WBENGINE_LEDGER", "nowhere")
    with pytest.raises(ValueError, match="'nowhere'"):
        run(url)


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ("", "use memory://NAME, dir:///PATH"),
        ("ledger", "'ledger'"),
        ("dir://", "dir:///PATH"),
        ("sqlite://", "memory://NAME"),
        ("sqlite:///:memory:", "memory://NAME"),
        ("postgresql://me:s3cret@host", "names no database"),
        ("postgresql://me:s3cret@host/db?max_retries=many", "max_retries"),
        ("postgresql+nodriver://me:s3cret@host/db", "nodriver"),
    ],
)
def test_places_that_are_none(url: str, place: str, text: str) -> None:
    """Are refused when an engine or a worker is made; without their passwords."""
    for make in (
        lambda: engines.load(flow(), engine="worker-based", url=url, ledger=place).executor,
        lambda: executors.WorkerTaskExecutor("e", "x", url=url, ledger=place),
        lambda: workers.Worker("x", "t", [tasks], url=url, ledger=place),
        lambda: ledgers.open_ledger(place),
    ):
        with pytest.raises(ValueError, match=text) as caught:
            make()
        assert "s3cret" not in str(caught.value)


@pytest.fixture
def as_command() -> Iterator[None]:
    """The command takes the signals of its process, for it is not meant to come back."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("as_command")
def test_a_database_that_is_away(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Is told before anything runs, and its password is not."""
    with pytest.raises(exceptions.LedgerFailure, match=r"postgresql://127.0.0.1:1/db") as caught:
        run(url, ledger=AWAY)
    assert "s3cret" not in "".join(traceback.format_exception(caught.value))
    arguments = ["--topic", "t", "--tasks", "tests.support.sample_tasks", "--url", url, "--quiet"]
    assert command.main([*arguments, "--ledger", AWAY]) == 69
    told = capsys.readouterr().err
    assert "127.0.0.1" in told and "s3cret" not in told
    assert command.main([*arguments, "--ledger", "nowhere"]) == 2
    assert "no ledger at 'nowhere'" in capsys.readouterr().err


# The ledger in a database.


@pytest.mark.parametrize("kind", ["mysql", "postgresql"])
def test_connections_that_were_cut_are_made_anew(kind: str, database_servers: servers.Lazy) -> None:
    """As when a server restarts: the next step does not notice."""
    server = database_servers[kind]
    with server.database() as place:
        ledger = ledgers.open_ledger(place)
        ledger.open(ID, 1)
        server.cut(place)
        assert ledger.claim(ID, 1, "w").granted
        server.cut(place)
        assert ledger.finish(ID, 1, "w", b"r")
        ledger.close()


def test_a_database_may_have_records_and_a_ledger(tmp_path: Path) -> None:
    """Neither touches the other's tables."""
    place = f"sqlite:///{tmp_path}/both.db"
    ledger = ledgers.open_ledger(place)
    ledger.open(ID, 1)
    with backends.backend(place) as backend, backend.get_connection() as connection:
        connection.save_logbook(models.LogBook("b"))
        connection.validate()
        assert ledger.sweep(0) == 1
        assert len(list(connection.get_logbooks())) == 1
        ledger.open(ID, 1)
        connection.clear_all()
    assert ledger.state(ID) is not None
    ledger.close()


def _execute(path: Path, statement: str) -> None:
    connection = sqlite3.connect(path)
    with connection:
        connection.execute(statement)
    connection.close()


def test_a_ledger_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    """It is not changed."""
    path = tmp_path / "l.db"
    ledgers.open_ledger(f"sqlite:///{path}").close()
    _execute(path, "UPDATE wbe_ledger_about SET format = 2")
    with pytest.raises(exceptions.LedgerFailure, match=r"has format 2.*knows 1"):
        ledgers.open_ledger(f"sqlite:///{path}")


def test_old_rows_are_swept_once_an_hour(tmp_path: Path) -> None:
    """Once in an hour, by who opens the ledger."""
    path = tmp_path / "l.db"
    first = ledgers.open_ledger(f"sqlite:///{path}")
    for id in ("old", "new"):
        first.open(id, 1)
    week = 7 * 24 * 3600 + 10
    _execute(path, f"UPDATE wbe_ledger SET changed = changed - {week} WHERE id = 'old'")
    ledgers.open_ledger(f"sqlite:///{path}").close()
    assert first.state("old") is not None
    _execute(path, "UPDATE wbe_ledger_about SET swept = swept - 3700")
    ledgers.open_ledger(f"sqlite:///{path}").close()
    assert first.state("old") is None and first.state("new") is not None
    first.close()


@pytest.mark.parametrize(("query", "tries"), [("", 3), ("?max_retries=0", 1)])
def test_server_that_hangs_up_is_tried_as_often_as_the_url_says(query: str, tries: int) -> None:
    """Twice again, if it says nothing: who asks waits for an answer."""
    accepted = 0
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.1)

        def hang_up() -> None:
            nonlocal accepted
            while not over.is_set():
                with contextlib.suppress(TimeoutError):
                    server.accept()[0].close()
                    accepted += 1

        over = threading.Event()
        thread = threading.Thread(target=hang_up)
        thread.start()
        try:
            with pytest.raises(exceptions.LedgerFailure):
                ledgers.open_ledger(f"mysql://u@127.0.0.1:{server.getsockname()[1]}/rows{query}")
        finally:
            over.set()
            thread.join()
    assert accepted == tries


@pytest.mark.parametrize("text", ["", "no database at all, but some text " * 50])
def test_a_file_that_is_no_database(tmp_path: Path, text: str) -> None:
    """An empty one becomes a ledger, any other stays as it is."""
    path = tmp_path / "l.db"
    path.write_text(text)
    if not text:
        ledgers.open_ledger(f"sqlite:///{path}").close()
        return
    with pytest.raises(exceptions.LedgerFailure, match=r"l\.db"):
        ledgers.open_ledger(f"sqlite:///{path}")
    assert path.read_text() == text
