"""Transports of kombu, without publisher confirms and shared bindings."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import python, sample_tasks
from tests.support.workers import REPOSITORY, until, worker_in_thread
from wbengine import engines, exceptions, task
from wbengine.engines.worker_based._connections import consumer_loop
from wbengine.engines.worker_based.proxy import Proxy
from wbengine.patterns import unordered_flow


class Fragile(task.Task):
    """Task that kills its worker when it runs for the first time."""

    idempotent = True

    def execute(self, folder: str) -> str:
        try:
            os.close(os.open(f"{folder}/ran", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return "survived"
        os.kill(os.getpid(), signal.SIGKILL)
        return "unreachable"


WARNS = "ignore:The ``noload`` loader strategy is deprecated"


@pytest.mark.slow
@pytest.mark.filterwarnings(WARNS)
def test_flow_runs_over_sql_database_of_kombu(tmp_path: Path) -> None:
    url = f"sqlalchemy+sqlite:///{tmp_path}/broker.db"
    with worker_in_thread(url, sample_tasks) as worker:
        names = [f"n{number}" for number in range(10)]
        flow = unordered_flow.Flow("f").add(*[sample_tasks.Nothing(name=name) for name in names])
        engines.run(flow, engine="worker-based", url=url)
        assert worker.counts["SUCCESS"] == 10


@contextlib.contextmanager
def two_workers(folder: Path, *arguments: str) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Start two workers as `support.workers` does, but accept warnings of the database library."""
    command = ["-m", "wbengine.worker", *arguments]
    started = []
    with open(folder / "log", "wb") as log, contextlib.ExitStack() as stack:
        for _ in range(2):
            made = python.start(command, cwd=REPOSITORY, stdout=log, stderr=log)
            started.append(stack.enter_context(made))
            stack.callback(made.kill)
        yield started


@pytest.mark.slow
@pytest.mark.filterwarnings(WARNS)
def test_flow_over_sql_database_survives_killed_worker(tmp_path: Path) -> None:
    url = f"sqlalchemy+sqlite:///{tmp_path}/broker.db"
    flow = unordered_flow.Flow("f").add(
        *[sample_tasks.Nothing(name=f"n{number}") for number in range(49)],
        Fragile(name="fragile", provides="how"),
    )
    options = (
        "--url",
        url,
        "--topic",
        "t",
        "--threads",
        "2",
        "--tasks",
        "tests.support.sample_tasks",
    )
    with two_workers(tmp_path, *options, "--tasks", __name__) as started:
        loaded = engines.load(
            flow,
            store={"folder": str(tmp_path)},
            engine="worker-based",
            url=url,
            worker_expiry=5,
            # Another task of the killed worker can be lost too, because its reply may be unsent.
            on_worker_lost="resend",
        )
        loaded.run()
        assert loaded.storage.fetch("how") == "survived"
        until(lambda: sum(worker.poll() is None for worker in started) == 1)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("nothing://h", "Unknown transport 'nothing'"),
        ("mongodb://me:s3cret@h", "pip install 'kombu[mongodb]'"),
        ("me:s3cret@h", "must begin with its transport, as in amqp://h"),
    ],
)
def test_unusable_url_is_rejected_with_hint_and_without_password(url: str, says: str) -> None:
    with pytest.raises(ValueError) as caught:
        Proxy("a", "x", {}, url=url)
    assert says in str(caught.value)
    assert "s3cret" not in str(caught.value)


def test_redis_url_without_client_library_names_package_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gone: Any = None
    for name in ("redis", "wbengine.transports._redis.redis_broker"):
        monkeypatch.setitem(__import__("sys").modules, name, gone)
    monkeypatch.delattr("wbengine.transports._redis.redis_broker", raising=False)
    with pytest.raises(ValueError, match=r"pip install .*\[redis\]'$"):
        Proxy("a", "x", {}, url="redis://h")


@pytest.mark.filterwarnings(WARNS)
def test_failing_connection_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer_loop, "CONNECT_TIMEOUT_SECONDS", 1.0)
    proxy = Proxy("me", "x", url=f"sqlalchemy+sqlite:///{tmp_path}/none/broker.db")
    with pytest.raises(exceptions.TransportFailure, match="unable to open"):
        proxy.start()
    told = [each.getMessage() for each in caplog.records if each.name == consumer_loop.__name__]
    assert [text for text in told if "reconnecting" in text] == told[:1]
