"""Ledgers that engines and workers share, separate from the broker."""

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


def load(url: str, **options: Any) -> Any:
    return engines.load(flow(), store={"x": 1, "y": 2}, engine="worker-based", url=url, **options)


def run(url: str, **options: Any) -> Any:
    loaded = load(url, **options)
    loaded.run()
    return loaded.storage.fetch("double")


@pytest.fixture
def url(rowless_url: str) -> str:
    return rowless_url


@pytest.fixture(params=["dir", "sqlite", "mysql", "postgresql"])
def place(
    request: pytest.FixtureRequest, tmp_path: Path, database_servers: servers.Databases
) -> Iterator[str]:
    if request.param in ("mysql", "postgresql"):
        with database_servers[request.param].database() as found:
            yield found
    elif request.param == "dir":
        yield f"dir://{tmp_path}/ledger"
    else:
        yield f"sqlite:///{tmp_path}/ledger.db"


def test_flow_runs_with_configured_ledger_and_leaves_no_rows(url: str, place: str) -> None:
    with worker_in_thread(url, tasks, ledger=place) as worker:
        with worker_in_thread(url, tasks, ledger=place):
            loaded = load(url, ledger=place)
            loaded.run()
        assert loaded.storage.fetch("double") == 6
        shared = ledgers.open_ledger(place)
        assert loaded.executor._tracker.ledger == shared.digest == worker._server.ledger
    # The engine and the worker have deleted their rows, so there is nothing to sweep.
    assert shared.sweep(0) == 0
    shared.close()


@pytest.mark.parametrize(
    ("engine", "worker", "uses"),
    [
        ({"ledger": "memory://other"}, {"ledger": "memory://one"}, "ledger "),
        ({"ledger": "memory://other"}, {}, "ledger "),
        ({"ledger": "none"}, {"ledger": "memory://one"}, "no ledger"),
    ],
    ids=["other ledger", "worker without ledger", "engine without ledger"],
)
def test_task_fails_if_engine_and_worker_use_different_ledgers(
    url: str, engine: dict[str, str], worker: dict[str, str], uses: str
) -> None:
    """Otherwise a task could run twice."""
    words = rf"the request uses {uses}.*configure the same ledger"
    with worker_in_thread(url, tasks, **worker), pytest.raises(exceptions.NotFound, match=words):
        run(url, **engine)


def test_flow_runs_without_a_ledger(url: str) -> None:
    with worker_in_thread(url, tasks, ledger="none"):
        loaded = load(url, ledger="none")
        loaded.run()
    assert loaded.storage.fetch("double") == 6
    assert loaded.executor._tracker.ledger is None


def test_engine_and_worker_read_ledger_from_environment(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = f"sqlite:///{tmp_path}/ledger.db"
    monkeypatch.setenv("WBENGINE_LEDGER", place)
    shared = ledgers.open_ledger(place)
    with worker_in_thread(url, tasks) as worker:
        assert run(url) == 6
        assert worker._server.ledger == shared.digest
        with pytest.raises(exceptions.NotFound, match="the request uses ledger"):
            run(url, ledger=f"dir://{tmp_path}/other")
    shared.close()
    monkeypatch.setenv("WBENGINE_LEDGER", "nowhere")
    with pytest.raises(ValueError, match="'nowhere'"):
        run(url)


def test_broker_with_rows_uses_only_its_own_ledger(
    redis_url: Any, postgresql_url: str, mariadb_url: str, tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    places = {
        "memory://m": "memory://m",
        f"filesystem://{tmp_path}": f"dir://{tmp_path}/link",
        f"{redis_url}?prefix=p": f"{redis_url}?prefix=p",
        postgresql_url: postgresql_url,
        mariadb_url: mariadb_url,
    }
    for url, own in places.items():
        for place in (*places.values(), f"sqlite:///{tmp_path}/l.db", "none", str(redis_url)):
            for make in (
                lambda url, place: executors.WorkerTaskExecutor("e", "x", url=url, ledger=place),
                lambda url, place: workers.Worker("x", "t", [tasks], url=url, ledger=place),
            ):
                if place == own:
                    make(url, place)
                    continue
                words = "uses only its own ledger, got .*: omit the ledger. .*postgresql://"
                with pytest.raises(ValueError, match=words) as caught:
                    make(url, place)
                assert place.partition("?")[0].rpartition("@")[2] in str(caught.value)
                assert "@" not in str(caught.value)


def test_flow_runs_with_ledger_at_the_place_of_its_broker(tmp_path: Path) -> None:
    url, place = f"filesystem://{tmp_path}/broker", f"dir://{tmp_path}/broker"
    with worker_in_thread(url, tasks, ledger=place):
        assert run(url) == 6


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ("", "one of memory://NAME, dir:///PATH"),
        ("ledger", "'ledger'"),
        ("dir://", "dir:///PATH"),
        ("sqlite://", "memory://NAME"),
        ("sqlite:///:memory:", "memory://NAME"),
        ("postgresql://me:s3cret@host", "must contain its name"),
        ("postgresql://me:s3cret@host/db?max_retries=many", "max_retries"),
        ("postgresql+nodriver://me:s3cret@host/db", "nodriver"),
    ],
)
def test_invalid_ledger_is_rejected_without_password(url: str, place: str, text: str) -> None:
    """It is rejected when an engine or a worker is constructed."""
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
    """Restore the signal handlers that the command replaces."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("as_command")
def test_unreachable_ledger_database_is_reported_without_password(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(exceptions.LedgerFailure, match=r"postgresql://127.0.0.1:1/db") as caught:
        run(url, ledger=AWAY)
    assert "s3cret" not in "".join(traceback.format_exception(caught.value))
    arguments = ["--topic", "t", "--tasks", "tests.support.sample_tasks", "--url", url, "--quiet"]
    assert command.main([*arguments, "--ledger", AWAY]) == 69
    told = capsys.readouterr().err
    assert "127.0.0.1" in told and "s3cret" not in told
    assert command.main([*arguments, "--ledger", "nowhere"]) == 2
    assert "ledger must be one of memory://NAME, " in capsys.readouterr().err


# The ledger in a database.


@pytest.mark.parametrize("kind", ["mysql", "postgresql"])
def test_ledger_reconnects_after_cut_connections(
    kind: str, database_servers: servers.Databases
) -> None:
    server = database_servers[kind]
    with server.database() as place:
        ledger = ledgers.open_ledger(place)
        ledger.open(ID, 1)
        server.cut(place)
        assert ledger.claim(ID, 1, "w").granted
        server.cut(place)
        assert ledger.finish(ID, 1, "w", b"r")
        ledger.close()


def test_database_can_contain_records_and_ledger(tmp_path: Path) -> None:
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


def test_old_rows_are_swept_once_an_hour(tmp_path: Path) -> None:
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
def test_failing_server_is_retried_as_often_as_url_configures(query: str, tries: int) -> None:
    """Without `max_retries`, two retries follow."""
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
def test_only_empty_file_is_accepted_as_new_ledger(tmp_path: Path, text: str) -> None:
    path = tmp_path / "l.db"
    path.write_text(text)
    if not text:
        ledgers.open_ledger(f"sqlite:///{path}").close()
        return
    with pytest.raises(exceptions.LedgerFailure, match=r"l\.db"):
        ledgers.open_ledger(f"sqlite:///{path}")
    assert path.read_text() == text
