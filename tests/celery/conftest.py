"""One process that has Celery, for all tests, and workers of both kinds that tests share."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.celery import peers
from tests.celery.peers import NAME
from tests.support.brokers import Brokers, Place
from tests.support.workers import WorkerProcess
from wbengine.interop.celery import reconnecting

#: Starts a worker of ours; it is gone afterwards.
Ours = Callable[..., contextlib.AbstractContextManager[WorkerProcess]]


@dataclass
class Bed:
    """Workers that serve a queue, and a client of Celery that calls them."""

    client: peers.Client
    url: str
    backend: str
    served_by: str
    queue: str = peers.QUEUE
    #: Settings of the client's app.
    conf: Any = None

    def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Have the client call a function of `tests.celery.clients`."""
        conf = peers.conf_of(self.url, self.backend, queue=self.queue, **(self.conf or {}))
        return self.client.call(name, conf, *args, **kwargs)

    def run(self, task: str, *args: Any, **options: Any) -> dict[str, Any]:
        """Send a task, and wait for what becomes of it: see `clients.ended`."""
        found: dict[str, Any] = self.call("run", f"{NAME}.{task}", args, options)
        return found

    def using(self, **conf: Any) -> Bed:
        """The same, by an app with other settings."""
        return Bed(
            self.client, self.url, self.backend, self.served_by, self.queue,
            {**(self.conf or {}), **conf},
        )  # fmt: skip


class Beds:
    """Those of one session: each made when the first test needs it."""

    def __init__(self, celery: peers.Celery, brokers: Brokers, folder: Path) -> None:
        self._celery = celery
        self._brokers = brokers
        self._folder = folder
        self._stack = contextlib.ExitStack()
        self._known: dict[tuple[str, ...], Bed] = {}
        self.client = self._stack.enter_context(celery.client())

    def place(self, broker: str) -> Place:
        return self._stack.enter_context(self._brokers[broker].place())

    def get(self, served_by: str, broker: str, backend: str, pool: str = "threads") -> Bed:
        """A worker with four slots, which serves as soon as it can."""
        key = served_by, broker, backend, pool
        if key not in self._known:
            url = self.place(broker)
            stored = "rpc://" if backend == "rpc" else self.place("redis")
            bed = Bed(self.client, str(url), str(stored), served_by)
            if served_by == "celery":
                kind = "prefork" if pool == "processes" else pool
                made: Any = self._celery.worker(url, kind, concurrency=4, backend=stored)
            else:
                words = "--pool", pool, "--concurrency", "4"
                made = peers.wbengine_worker(self._folder, url, *words, backend=stored)
            self._stack.enter_context(made)
            self._known[key] = bed
        return self._known[key]

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
    with contextlib.closing(Beds(celery, broker_servers, tmp_path_factory.mktemp("beds"))) as made:
        yield made


@pytest.fixture(params=["redis", "rabbitmq"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


#: (served by, broker, backend).  Each test must pass with Celery's worker too, or it asks for what
#: Celery does not do.
REDIS = "wbengine", "redis", "redis"
RABBITMQ = "wbengine", "rabbitmq", "rpc"
CELERY = pytest.param(("celery", "redis", "redis"), marks=pytest.mark.slow)


@pytest.fixture(params=[REDIS, RABBITMQ, CELERY], ids="-".join)
def bed(beds: Beds, request: pytest.FixtureRequest) -> Bed:
    """Shared with other tests: it is to be left as it was found."""
    return beds.get(*request.param)


@pytest.fixture(params=[REDIS, CELERY], ids="-".join)
def storing(beds: Beds, request: pytest.FixtureRequest) -> Bed:
    """One whose results are in Redis: chords need it."""
    return beds.get(*request.param)


@pytest.fixture(params=[REDIS, CELERY], ids="-".join)
def killing(beds: Beds, request: pytest.FixtureRequest) -> Bed:
    """One whose tasks run in processes, which can be killed."""
    return beds.get(*request.param, "processes")


@pytest.fixture(params=[2, 1], ids=["v2", "v1"])
def protocol(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def url(kind: str, broker_servers: Brokers) -> Iterator[Place]:
    """A part of a broker of that kind, of the test's own."""
    with broker_servers[kind].place() as place:
        yield place


@pytest.fixture
def store(broker_servers: Brokers) -> Iterator[Place]:
    """A Redis for results, of the test's own."""
    with broker_servers["redis"].place() as place:
        yield place


#: (broker, results, pool) of workers of Celery's, for flows.
SIDES = [("redis", "redis", "threads"), ("rabbitmq", "rpc", "processes")]


@pytest.fixture(params=SIDES, ids="-".join)
def side(beds: Beds, request: pytest.FixtureRequest) -> Bed:
    return beds.get("celery", *request.param)


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    """What flows keep open to Celery's brokers."""
    yield
    reconnecting.close_all()


@pytest.fixture
def client(beds: Beds) -> peers.Client:
    return beds.client


@pytest.fixture
def own(url: Place, store: Place, client: peers.Client) -> Bed:
    """One of the test's own, which nobody serves yet."""
    return Bed(client, url, store, "nobody")


@pytest.fixture
def ours(own: Bed, tmp_path: Path) -> Ours:
    """Starts workers of ours that serve it, with more words on their command lines."""
    return functools.partial(peers.wbengine_worker, tmp_path, own.url, backend=own.backend)
