"""Clients, workers and commands of Celery, and wbengine workers, in separate processes."""

from __future__ import annotations

import contextlib
import http.client
import json
import multiprocessing.connection
import os
import signal
import socket
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import redis

from tests.celery import tasks
from tests.support import workers
from tests.support.forked import Forked, ForkServer

QUEUE = "celery"
NAME = "tests.celery.tasks"


class Peer(Forked):
    """A process forked by the Celery process."""

    @property
    def code(self) -> int | None:
        """Return the exit code, or None while it runs or if it was killed."""
        try:
            return int(Path(f"{self._log}.code").read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return None

    def wait(self) -> int | None:
        """Wait for the end and return the exit code."""
        workers.until(lambda: not self.lives)
        return self.code

    def kill(self) -> None:
        """Kill the process with its children and wait for its end."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        super().kill()


def noted(backend: str) -> set[str]:
    """Return the keys of tasks that were sent according to a Redis result store."""
    with contextlib.closing(redis.Redis.from_url(backend)) as results:
        return {key.decode() for key in results.scan_iter("*wbengine-celery-sent-*")}


class CallFailed(Exception):
    """A call in the client raised an exception; `told` is the result of `clients.told`."""

    def __init__(self, error: Mapping[str, Any]) -> None:
        super().__init__(f"{error['type']}: {error['text']}")
        self.told = error


class Client:
    """A process with Celery apps that calls the functions of `tests.celery.clients`."""

    def __init__(self, peer: Peer, connection: multiprocessing.connection.Connection) -> None:
        self._peer = peer
        self._connection = connection

    def call(self, name: str, conf: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Call a function with the app of a configuration and return its result.

        :raises CallFailed: if it raised an exception
        """
        self._connection.send((name, dict(conf), args, kwargs))
        if not self._connection.poll(110):
            raise AssertionError(f"no answer to {name}: {self._peer.text[-3000:]}")
        kind, value = self._connection.recv()
        if kind == "error":
            raise CallFailed(value)
        return value

    def close(self) -> None:
        self._connection.close()


class Flower(Peer):
    """Celery's web monitor."""

    def __init__(self, pid: int, log: Path, where: Path) -> None:
        super().__init__(pid, log)
        self._where = where

    @property
    def listens(self) -> bool:
        with socket.socket(socket.AF_UNIX) as asked:
            return not asked.connect_ex(str(self._where))

    def ask(self, path: str) -> Any:
        """Return the JSON answer of its API, for example for '/api/workers'.

        :raises AssertionError: if the status is not 200
        """
        return json.loads(self.page(path))

    def page(self, path: str) -> str:
        """Return a page, for example '/tasks'.

        :raises AssertionError: if the status is not 200
        """
        asked = _OverUnix(self._where)
        with contextlib.closing(asked):
            asked.request("GET", path)
            answer = asked.getresponse()
            page = answer.read()
        assert answer.status == 200, (path, answer.status, page)
        return page.decode()


class _OverUnix(http.client.HTTPConnection):
    def __init__(self, where: Path) -> None:
        super().__init__("localhost", timeout=60)
        self._socket_path = str(where)

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(60)
        self.sock.connect(self._socket_path)


class Celery(ForkServer):
    """The process with Celery that forks all others; it starts in about a second."""

    def __init__(self, folder: Path) -> None:
        variables = {tasks.SIDE: "celery", "FLOWER_UNAUTHENTICATED_API": "1"}
        variables["C_FORCE_ROOT"] = "1"  # Celery otherwise refuses pickle for root
        super().__init__(folder, "tests.celery.celery_side", variables)

    @contextlib.contextmanager
    def worker(
        self,
        url: str,
        pool: str = "prefork",
        *,
        queue: str = QUEUE,
        concurrency: int = 2,
        backend: str = "rpc://",
        name: str = "celery",
        arguments: tuple[str, ...] = (),
        **conf: Any,
    ) -> Iterator[Peer]:
        """Yield a Celery worker that is ready; kill it afterwards.

        `pool` is 'prefork', 'threads' or 'solo'; `conf` contains settings of its app.
        """
        words = ["-P", pool, "-c", str(concurrency), "-Q", queue, "-n", f"{name}@here"]
        words += ["-l", "INFO", "--without-mingle", "--without-gossip", *arguments]
        settings = conf_of(url, backend, queue=queue, **conf)
        peer = Peer(*self.order("work", conf=settings, arguments=words))
        try:
            workers.until(lambda: " ready." in peer.text or _died(peer))
            yield peer
        finally:
            peer.signal(signal.SIGCONT)
            peer.kill()

    @contextlib.contextmanager
    def command(self, url: str, *arguments: str, **conf: Any) -> Iterator[Peer]:
        """Yield a command such as `celery inspect ping`; kill it afterwards."""
        settings = conf_of(url, **conf)
        peer = Peer(*self.order("command", conf=settings, arguments=arguments))
        try:
            yield peer
        finally:
            peer.kill()

    @contextlib.contextmanager
    def flower(self, url: str, *arguments: str, **conf: Any) -> Iterator[Flower]:
        """Yield Flower when it listens; kill it afterwards."""
        where = self._folder / f"flower-{uuid.uuid4().hex[:6]}"
        words = ["flower", f"--unix_socket={where}", *arguments]
        pid, log = self.order("command", conf=conf_of(url, **conf), arguments=words)
        peer = Flower(pid, log, where)
        try:
            workers.until(lambda: peer.listens or _died(peer))
            yield peer
        finally:
            peer.kill()

    @contextlib.contextmanager
    def client(self) -> Iterator[Client]:
        """Yield a client; kill it afterwards."""
        with multiprocessing.connection.Listener(family="AF_UNIX") as listener:
            peer = Peer(*self.order("serve", socket=listener.address))
            try:
                with contextlib.closing(Client(peer, listener.accept())) as client:
                    yield client
            finally:
                peer.kill()


def _died(peer: Peer) -> bool:
    assert peer.lives, peer.text
    return False


def conf_of(
    url: str, backend: str = "rpc://", *, queue: str = QUEUE, **more: Any
) -> dict[str, Any]:
    """Return the configuration of an app."""
    return {
        "broker_url": str(url),
        "result_backend": str(backend),
        "task_default_queue": queue,
        "broker_connection_retry_on_startup": True,
        "worker_hijack_root_logger": False,
        **more,
    }


@contextlib.contextmanager
def wbengine_worker(
    folder: Path,
    url: str,
    *arguments: str,
    queue: str = QUEUE,
    backend: str = "rpc://",
    tasks: str = NAME,
    **conf: Any,
) -> Iterator[workers.WorkerProcess]:
    """Yield a wbengine worker for Celery tasks; stop it afterwards.

    `conf` contains Celery settings.  Deprecation warnings of libraries are not errors.
    """
    module = f"settings_{uuid.uuid4().hex[:8]}"
    settings = "".join(f"{name} = {value!r}\n" for name, value in conf.items())
    (folder / f"{module}.py").write_text(settings, encoding="utf-8")
    path = os.pathsep.join((str(folder), os.environ.get("PYTHONPATH", "")))
    with workers.workers(
        folder,
        *("--celery-config", module),
        *("--url", str(url), "--celery-queue", queue, "--celery-result-backend", str(backend)),
        *("--log-level", "info", "--tasks", tasks, *arguments),
        environment={"PYTHONPATH": path},
        warnings="default",
    ) as (worker,):
        try:
            yield worker
        except BaseException:
            print(worker.text[-6000:])
            raise
