"""A process with Celery for all tests, and shared workers of both kinds."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.architecture import imports
from tests.celery import peers
from tests.celery.peers import NAME
from tests.support import changes
from tests.support.brokers import Brokers, Place
from tests.support.workers import WorkerProcess
from wbengine.interop.celery import _reconnecting

HERE = Path(__file__).parent
PACKAGE = "wbengine.interop.celery"

#: Start a wbengine worker that stops at the end of the context.
Ours = Callable[..., contextlib.AbstractContextManager[WorkerProcess]]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Make these tests slow, unless they or what they test changed recently."""
    if not any(changes.is_recent(path) for path in tested_files()):
        for item in items:
            if HERE in item.path.parents:
                item.add_marker(pytest.mark.slow)


def tested_files() -> set[Path]:
    """Return the files of the tests, of the package for Celery, and what these import."""
    found = imports.modules(imports.ROOT / "wbengine")
    package = {name: path for name, path in found.items() if name.startswith(PACKAGE)}
    used = {found[each.target] for each in imports.imports(found, package)}
    return {*HERE.glob("*.py"), *package.values(), *used}


@dataclass
class Bed:
    """Workers that serve a queue, and a Celery client that calls them."""

    client: peers.Client
    url: str
    backend: str
    served_by: str
    queue: str = peers.QUEUE
    #: Settings of the client's app.
    conf: Any = None

    def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call a function of `tests.celery.clients` in the client."""
        conf = peers.conf_of(self.url, self.backend, queue=self.queue, **(self.conf or {}))
        return self.client.call(name, conf, *args, **kwargs)

    def run(self, task: str, *args: Any, **options: Any) -> dict[str, Any]:
        """Send a task and wait for it: see `clients.ended`."""
        outcome: dict[str, Any] = self.call("run", f"{NAME}.{task}", args, options)
        return outcome

    def using(self, **conf: Any) -> Bed:
        """Return a copy with other settings of the app."""
        return Bed(
            self.client, self.url, self.backend, self.served_by, self.queue,
            {**(self.conf or {}), **conf},
        )  # fmt: skip


class Beds:
    """Shared workers of the session, started at first use."""

    def __init__(self, celery: peers.Celery, brokers: Brokers, folder: Path) -> None:
        self._celery = celery
        self._brokers = brokers
        self._folder = folder
        self._stack = contextlib.ExitStack()
        self._known: dict[tuple[str, ...], Bed] = {}
        self._redis_pid: int | None = None
        self.client = self._stack.enter_context(celery.client())

    def place(self, broker: str) -> Place:
        return self._stack.enter_context(self._brokers[broker].place())

    def get(self, served_by: str, broker: str, backend: str, pool: str = "threads") -> Bed:
        """Return a bed with a worker with four slots."""
        self._check_redis()
        key = served_by, broker, backend, pool
        if key not in self._known:
            url = self.place(broker)
            stored = "rpc://" if backend == "rpc" else self.place("redis")
            bed = Bed(self.client, str(url), str(stored), served_by)
            if served_by == "celery":
                kind = "prefork" if pool == "processes" else pool
                worker: Any = self._celery.worker(url, kind, concurrency=4, backend=stored)
            else:
                words = "--pool", pool, "--concurrency", "4"
                worker = peers.wbengine_worker(self._folder, url, *words, backend=stored)
            self._stack.enter_context(worker)
            self._known[key] = bed
        return self._known[key]

    def _check_redis(self) -> None:
        """Close the connections of the client if a test has killed Redis. Workers reconnect."""
        pid = self._brokers["redis"].pid
        if self._redis_pid not in (None, pid):
            self.client.call("forget", peers.conf_of("memory://"))
        self._redis_pid = pid

    def close(self) -> None:
        self._stack.close()


@pytest.fixture(scope="session")
def celery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[peers.Celery]:
    with contextlib.closing(peers.Celery(tmp_path_factory.mktemp("celery"))) as side:
        yield side


@pytest.fixture(scope="session")
def beds(
    celery: peers.Celery, broker_servers: Brokers, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Beds]:
    with contextlib.closing(
        Beds(celery, broker_servers, tmp_path_factory.mktemp("beds"))
    ) as opened:
        yield opened


@pytest.fixture(params=["redis", "rabbitmq"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


#: (served by, broker, backend).  Celery's worker must pass each test, too: otherwise the test
#: requires features that Celery does not have.
REDIS = "wbengine", "redis", "redis"
RABBITMQ = "wbengine", "rabbitmq", "rpc"
CELERY = pytest.param(("celery", "redis", "redis"), marks=pytest.mark.slow)


@pytest.fixture(params=[REDIS, RABBITMQ, CELERY], ids="-".join)
def bed(beds: Beds, request: pytest.FixtureRequest) -> Bed:
    """Return a shared bed: tests must not leave messages or workers."""
    return beds.get(*request.param)


@pytest.fixture(params=[REDIS, CELERY], ids="-".join)
def storing(beds: Beds, request: pytest.FixtureRequest) -> Bed:
    """Return a bed with results in Redis, which chords require."""
    return beds.get(*request.param)


@pytest.fixture(params=[REDIS, CELERY], ids="-".join)
def killing(beds: Beds, request: pytest.FixtureRequest) -> Bed:
    """Return a bed whose tasks run in processes, which can be killed."""
    return beds.get(*request.param, "processes")


@pytest.fixture(params=[2, 1], ids=["v2", "v1"])
def protocol(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def url(kind: str, broker_servers: Brokers) -> Iterator[Place]:
    """Yield a separate place of a broker of that kind."""
    with broker_servers[kind].place() as place:
        yield place


@pytest.fixture
def store(broker_servers: Brokers) -> Iterator[Place]:
    """Yield a separate place of a Redis for results."""
    with broker_servers["redis"].place() as place:
        yield place


#: (broker, results, pool) of Celery workers for flows.
SIDES = [("redis", "redis", "threads"), ("rabbitmq", "rpc", "processes")]


@pytest.fixture(params=SIDES, ids="-".join)
def side(beds: Beds, request: pytest.FixtureRequest) -> Bed:
    return beds.get("celery", *request.param)


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    """Close connections of flows to Celery's brokers."""
    yield
    _reconnecting.close_all()


@pytest.fixture
def client(beds: Beds) -> peers.Client:
    return beds.client


@pytest.fixture
def own(url: Place, store: Place, client: peers.Client) -> Bed:
    """Return a separate bed without workers."""
    return Bed(client, url, store, "nobody")


@pytest.fixture
def ours(own: Bed, tmp_path: Path) -> Ours:
    """Return a function that starts a wbengine worker for the bed with further arguments."""
    return functools.partial(peers.wbengine_worker, tmp_path, own.url, backend=own.backend)
