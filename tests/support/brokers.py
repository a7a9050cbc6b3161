"""Private brokers for tests and tools: Redis and RabbitMQ, started when first asked for.

And ZooKeeper and etcd, in which job boards are.

    with brokers.redis() as redis, redis.place() as url: ...

As with the servers of `servers.py`, each has its own folder, ports and password, and is gone
afterwards.  They can be killed, started again where they were, and stopped for a while.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import itertools
import json
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support import servers, tally
from tests.support.servers import USER, Kept, Shared


class Place(str):
    """The URL of a part of a broker that belongs to one test."""

    _left: Callable[[], list[str]]

    @classmethod
    def of(cls, url: str, left: Callable[[], list[str]]) -> Place:
        made = cls(url)
        made._left = left
        return made

    def left(self) -> list[str]:
        """What is in it: the keys, or the queues and exchanges that the broker did not make."""
        return self._left()


class Broker:
    """One that runs, or was killed and can be started again; not to be used by two threads."""

    kind: str

    def __init__(self, kept: Kept | Shared) -> None:
        self._kept = kept
        self.version: str = kept.told["version"]
        self.port: int = kept.told["port"]
        self.password: str = kept.told["password"]
        self.pid: int = kept.told["pid"]
        self.runs = True
        self.paused = False

    def kill(self) -> None:
        """End it by SIGKILL; returns when it is gone."""
        self._kept.ask("kill")
        self.runs = self.paused = False

    def start(self) -> None:
        """Start it again after `kill`, on the same port and data; returns when it serves."""
        self.pid = self._kept.ask("start")["pid"]
        self.runs = True

    def pause(self) -> None:
        """Stop it by SIGSTOP: connections stay, and nobody answers."""
        self._kept.ask("pause")
        self.paused = True

    def resume(self) -> None:
        self._kept.ask("resume")
        self.paused = False

    def mend(self) -> None:
        """See that it serves, whatever was done to it."""
        if not self.runs:
            self.start()
        if self.paused:
            self.resume()

    def url(self, place: str = "") -> str:
        """A part of it: the number of a database, the name of a vhost; '' is the first."""
        raise NotImplementedError

    def place(self) -> contextlib.AbstractContextManager[Place]:
        """A new, empty part of it; it is gone afterwards, whoever is still connected."""
        raise NotImplementedError


class Redis(Broker):
    """With an append-only file, unless `appendonly='no'` was asked for."""

    kind = "redis"

    def __init__(self, kept: Kept | Shared) -> None:
        super().__init__(kept)
        self._numbers = itertools.count(1)

    def url(self, place: str = "") -> str:
        return f"redis://:{self.password}@127.0.0.1:{self.port}/{place or 0}"

    @contextlib.contextmanager
    def place(self) -> Iterator[Place]:
        number = str(next(self._numbers))  # there are 4,096 of them
        self.mend()
        try:
            yield Place.of(self.url(number), lambda: self.left(number))
        finally:
            self.mend()
            with self.client(number) as client:
                client.flushdb()

    def left(self, place: str = "") -> list[str]:
        """The keys of a database."""
        with self.client(place) as client:
            return sorted(key.decode(errors="replace") for key in client.scan_iter(count=1000))

    def kept(self) -> Callable[[], None]:
        """Keep what is on its disk; to be called to kill it, and start it again with that."""
        with self.client() as client:
            folder = Path(client.config_get("dir")["dir"])
        copies = folder.with_name(f"{folder.name}-{next(self._numbers)}")
        subprocess.run(["cp", "-a", folder, copies], check=True)

        def set_back() -> None:
            if self.runs:
                self.kill()
            shutil.rmtree(folder)
            subprocess.run(["cp", "-a", copies, folder], check=True)
            self.start()

        return set_back

    def client(self, place: str = "") -> Any:
        """A client of it, to be closed."""
        import redis

        return redis.Redis.from_url(self.url(place))


class Rabbitmq(Broker):
    kind = "rabbitmq"

    def __init__(self, kept: Kept | Shared) -> None:
        super().__init__(kept)
        self.alarmed = False
        self._pages = f"http://127.0.0.1:{kept.told['pages']}/api/"

    def url(self, place: str = "") -> str:
        path = urllib.parse.quote(place or "/", safe="")
        return f"amqp://{USER}:{self.password}@127.0.0.1:{self.port}/{path}"

    @contextlib.contextmanager
    def place(self) -> Iterator[Place]:
        name = f"test-{uuid.uuid4().hex[:12]}"
        self.mend()
        self.ask("PUT", "vhosts", name)
        everything = {"configure": ".*", "write": ".*", "read": ".*"}
        self.ask("PUT", "permissions", name, USER, body=everything)
        try:
            yield Place.of(self.url(name), lambda: self.left(name))
        finally:
            self.mend()
            self.ask("DELETE", "vhosts", name)

    def left(self, place: str = "") -> list[str]:
        """The queues and exchanges of a vhost, without those that each has."""
        queues = [f"queue {found['name']}" for found in self.queues(place)]
        exchanges = [
            f"exchange {found['name']}"
            for found in self.ask("GET", "exchanges", place or "/")
            if found["name"] and not found["name"].startswith("amq.")
        ]
        return sorted(queues + exchanges)

    def alarm(self) -> None:
        """Make it believe that it is short of memory: it blocks those who publish."""
        self._kept.ask("alarm")
        self.alarmed = True

    def calm(self) -> None:
        """After `alarm`: it takes messages again."""
        self._kept.ask("calm")
        self.alarmed = False

    def mend(self) -> None:
        super().mend()
        if self.alarmed:
            self.calm()

    def queues(self, place: str = "") -> list[dict[str, Any]]:
        """What the broker knows of the queues of a vhost."""
        found: list[dict[str, Any]] = self.ask("GET", "queues", place or "/")
        return found

    def connections(self, place: str = "") -> list[str]:
        """The names of the connections to a vhost."""
        # Those of one vhost are only told where statistics are collected.
        found = self.ask("GET", "connections")
        return [each["name"] for each in found if each.get("vhost") == (place or "/")]

    def cut(self, place: str = "") -> None:
        """Have the broker close all connections to a vhost."""
        for name in self.connections(place):
            with contextlib.suppress(urllib.error.HTTPError):  # it is gone
                self.ask("DELETE", "connections", name)

    def ask(self, method: str, *path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Ask the management plugin; its answer."""
        url = self._pages + "/".join(urllib.parse.quote(part, safe="") for part in path)
        secret = base64.b64encode(f"{USER}:{self.password}".encode()).decode()
        request = urllib.request.Request(
            url,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Basic {secret}", "Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            said = answer.read()
        return json.loads(said) if said else None


class Coordinator(Broker):
    """A ZooKeeper or etcd; a part of it is what is below a path."""

    def __init__(self, kept: Kept | Shared, kind: str) -> None:
        super().__init__(kept)
        self.kind = kind

    def url(self, place: str = "") -> str:
        return f"{self.kind}://127.0.0.1:{self.port}/{place or 'boards'}"

    @contextlib.contextmanager
    def place(self) -> Iterator[Place]:
        self.mend()
        # What is left is of no harm: it goes with the server.
        yield Place.of(self.url(f"test-{uuid.uuid4().hex[:12]}/boards"), list)


@contextlib.contextmanager
def coordinator(kind: str, **settings: str) -> Iterator[Coordinator]:
    """A ZooKeeper or etcd of one's own, with settings in its own words.

    :raises ServerMissing: it is not installed, or does not start.
    """
    with servers.keeping(kind, **settings) as kept:
        yield Coordinator(kept, kind)


@contextlib.contextmanager
def redis(**settings: str) -> Iterator[Redis]:
    """A Redis of one's own, with settings of redis.conf; it starts in some 30 ms.

    :raises ServerMissing: it is not installed, or does not start.
    """
    with servers.keeping("redis", **settings) as kept:
        yield Redis(kept)


@contextlib.contextmanager
def rabbitmq(**settings: str) -> Iterator[Rabbitmq]:
    """A RabbitMQ of one's own, with settings of rabbitmq.conf; it takes 5 s to start, and 155 MB.

    :raises ServerMissing: it is not installed, or does not start.
    """
    with servers.keeping("rabbitmq", **settings) as kept:
        yield Rabbitmq(kept)


#: The brokers of tests that kill theirs: a RabbitMQ takes 5 s to start, and again to start again.
KILLED = ("redis", pytest.param("own rabbitmq", marks=pytest.mark.slow))

# For pytest. --------------------------------------------------------------------------------------

_MAKERS: Mapping[str, Callable[[], contextlib.AbstractContextManager[Broker]]]
_MAKERS = {
    "redis": redis,
    "rabbitmq": rabbitmq,
    **{kind: functools.partial(coordinator, kind) for kind in ("zookeeper", "etcd")},
}


class Brokers(servers.Once[Broker]):
    """Brokers by kind: each is started by the first test that needs it.

    A Redis is each process's own: it starts in no time, and tests set it up, look at what it was
    asked for, and kill it.  The others are one for all processes of a run, where these have a
    `folder` in common: 'own rabbitmq' is for tests that kill it.
    """

    def __init__(self, folder: Path | None = None) -> None:
        super().__init__(functools.partial(_reached, folder))

    def __getitem__(self, kind: str) -> Broker:
        found = super().__getitem__(kind)
        tally.brokers[found.kind] = found.version
        found.mend()
        return found


@contextlib.contextmanager
def _reached(folder: Path | None, kind: str) -> Iterator[Broker]:
    if folder is not None and kind in ("rabbitmq", "zookeeper", "etcd"):
        kept = servers.shared(kind, folder)
        yield Rabbitmq(kept) if kind == "rabbitmq" else Coordinator(kept, kind)
        return
    with _MAKERS[kind.removeprefix("own ")]() as found:
        yield found


@pytest.fixture(scope="session")
def broker_servers(shared_folder: Path | None) -> Iterator[Brokers]:
    """The brokers, by kind ('redis', 'rabbitmq')."""
    with contextlib.closing(Brokers(shared_folder)) as found:
        yield found


@pytest.fixture
def redis_server(broker_servers: Brokers) -> Broker:
    """One for the whole session; it may be killed, and is mended for the next test."""
    return broker_servers["redis"]


@pytest.fixture
def rabbitmq_server(broker_servers: Brokers) -> Broker:
    """One for the whole run: other tests use it at the same time."""
    return broker_servers["rabbitmq"]


@pytest.fixture
def redis_url(redis_server: Broker) -> Iterator[Place]:
    """An empty database of the test's own."""
    with redis_server.place() as url:
        yield url


@pytest.fixture
def rabbitmq_url(rabbitmq_server: Broker) -> Iterator[Place]:
    """An empty vhost of the test's own."""
    with rabbitmq_server.place() as url:
        yield url
