"""Servers that the tests start."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kombu
import pytest
import redis

from tests.support import servers
from tests.support.brokers import Place, Rabbitmq, Redis
from tests.support.workers import REPOSITORY, until
from tools import _servers

STARTER = """
import os, sys
from tests.support import servers
with servers.keeping(sys.argv[1]) as server:
    print(server.details["port"], flush=True)
    if sys.argv[2] == "leave":
        os.execv(sys.executable, [sys.executable, "-c", ""])
    sys.stdin.read()
"""

#: Program with two processes that use a server; the first one ends before the second one starts.
RUN = """
import subprocess, sys
ask = "import pathlib, sys; from tests.support import servers;" \\
    " print(servers.shared('redis', pathlib.Path(sys.argv[1])).details['port'])"
for _ in range(2):
    subprocess.run([sys.executable, "-c", ask, sys.argv[1]], check=True)
print(flush=True)
sys.stdin.read()
"""


def _living(folder: Path) -> list[int]:
    """Return the processes that use a folder, including Erlang's, which have it as their home."""
    pids = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if not entry.name.isdigit():
                continue
            line, words = (entry / "cmdline").read_bytes(), (entry / "environ").read_bytes()
            if str(folder).encode() in line or f"HOME={folder}".encode() in words:
                pids.append(int(entry.name))
    return pids


@pytest.fixture
def folder() -> Iterator[Path]:
    """Return a folder that other users can read: root starts servers as another user."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as path:
        os.chmod(path, 0o755)
        yield Path(path)


@pytest.mark.parametrize(
    ("kind", "how"),
    [
        ("redis", "kill"),
        ("redis", "leave"),
        ("redis", "kill the keeper"),
        pytest.param("rabbitmq", "kill", marks=pytest.mark.slow),
    ],
)
def test_server_stops_with_process_that_started_it(kind: str, how: str, folder: Path) -> None:
    """The server also stops if its keeper process is killed."""
    if _servers.find(kind) is None:
        servers.skip_or_fail(_servers.reason([kind]))
    process = subprocess.Popen(
        [sys.executable, "-c", STARTER, kind, how],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=REPOSITORY,
        env={**os.environ, "TMPDIR": str(folder)},
    )
    with process:
        assert process.stdout is not None
        assert int(process.stdout.readline()) > 0
        if how != "leave":
            assert _living(folder)
            victim = process.pid
            if how == "kill the keeper":
                (victim,) = _keepers(process.pid)
            os.kill(victim, signal.SIGKILL)
        until(lambda: not _living(folder))
        if how == "kill the keeper":
            assert process.stdin is not None
            process.stdin.close()  # only the starter can remove the folder
        else:
            until(lambda: not list(folder.iterdir()))


def test_server_is_shared_by_processes_of_a_run(folder: Path, tmp_path: Path) -> None:
    """The server stops with the process that started the run."""
    if _servers.find("redis") is None:
        servers.skip_or_fail(_servers.reason(["redis"]))
    with subprocess.Popen(
        [sys.executable, "-c", RUN, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=REPOSITORY,
        env={**os.environ, "TMPDIR": str(folder)},
    ) as run:
        assert run.stdout is not None
        first, second = int(run.stdout.readline()), int(run.stdout.readline())
        assert first == second > 0
        assert run.stdout.readline() and _living(folder)
        run.kill()
    until(lambda: not _living(folder) and not list(folder.iterdir()))


def test_redis_keeps_data_after_kill(redis_server: Redis, redis_url: Place) -> None:
    """The data survive kill -9, and a stopped server does not answer."""
    number = redis_url.rpartition("/")[2]
    with redis_server.client(number) as client:
        client.set("left", 1)
        redis_server.kill()
        with pytest.raises(redis.ConnectionError):
            client.get("left")
        redis_server.start()
        assert client.get("left") == b"1"
    redis_server.pause()
    with (
        redis.Redis.from_url(redis_url, socket_timeout=0.05, retry=None) as client,
        pytest.raises(redis.TimeoutError),
    ):
        client.get("left")
    redis_server.resume()
    assert redis_url.left() == ["left"]
    with redis_server.place() as other:
        assert other.left() == []


def test_rabbitmq_has_separate_vhost_for_each_place(
    rabbitmq_server: Rabbitmq, rabbitmq_url: Place
) -> None:
    with kombu.Connection(rabbitmq_url) as connection:
        queue = kombu.Queue("letters", kombu.Exchange("post"), channel=connection.channel())
        queue.declare()
        assert rabbitmq_url.left() == ["exchange post", "queue letters"]
        with rabbitmq_server.place() as other:
            assert other.left() == []
        vhost = rabbitmq_url.rpartition("/")[2]
        until(lambda: rabbitmq_server.connections(vhost))
        rabbitmq_server.cut(vhost)
        with pytest.raises(connection.recoverable_connection_errors):
            connection.drain_events(timeout=60)


def _keepers(parent: int) -> list[int]:
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return [int(child) for child in children]


def test_missing_server_skips_tests_locally_and_fails_them_in_ci(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The message contains the fix."""
    monkeypatch.setattr(_servers, "find", lambda kind: None)
    outcomes: list[Any] = [("", pytest.skip.Exception), ("true", pytest.fail.Exception)]
    for ci, outcome in outcomes:
        monkeypatch.setenv("CI", ci)
        with contextlib.closing(servers.Databases()) as lazy, pytest.raises(outcome) as caught:
            lazy["mysql"]
        assert "MariaDB not found" in str(caught.value)
        assert "apt-get install" in str(caught.value)
