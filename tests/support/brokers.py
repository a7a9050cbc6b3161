"""Private servers for tests and tools, started on first use: Redis, RabbitMQ, PostgreSQL and MySQL
as brokers, ZooKeeper and etcd.

    with brokers.redis() as redis, redis.place() as url: ...

Like the servers of `servers.py`, each has its own folder, ports and password, and is deleted
afterwards. Brokers can be killed, restarted with the same ports and data, and paused.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import importlib
import itertools
import json
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support import servers, tally
from tests.support.servers import USER, KeptServer, Shared


class Place(str):
    """The URL of a part of a broker (database, vhost or path) that belongs to one test."""

    _left: Callable[[], list[str]]

    @classmethod
    def of(cls, url: str, left: Callable[[], list[str]]) -> Place:
        place = cls(url)
        place._left = left
        return place

    def left(self) -> list[str]:
        """Return the content: the keys, or the queues and exchanges that are not built in."""
        return self._left()


class Broker:
    """A broker that runs, or was killed and can be restarted. Not thread-safe."""

    kind: str

    def __init__(self, kept: KeptServer | Shared) -> None:
        self._kept = kept
        self.version: str = kept.details["version"]
        self.port: int = kept.details["port"]
        self.password: str = kept.details["password"]
        self.pid: int = kept.details["pid"]
        self.runs = True
        self.paused = False

    def kill(self) -> None:
        """Kill the broker by SIGKILL and wait for its end."""
        self._kept.ask("kill")
        self.runs = self.paused = False

    def start(self) -> None:
        """Restart the broker after `kill`, on the same port and data, and wait until it serves."""
        self.pid = self._kept.ask("start")["pid"]
        self.runs = True

    def pause(self) -> None:
        """Stop the broker by SIGSTOP: connections stay open and get no answers."""
        self._kept.ask("pause")
        self.paused = True

    def resume(self) -> None:
        self._kept.ask("resume")
        self.paused = False

    def mend(self) -> None:
        """Start or resume the broker, whatever state the test before left it in."""
        if not self.runs:
            self.start()
        if self.paused:
            self.resume()

    def url(self, place: str = "") -> str:
        """Return the URL of a database (number) or vhost (name); '' is the default one."""
        raise NotImplementedError

    def place(self) -> contextlib.AbstractContextManager[Place]:
        """Yield a new, empty part. Delete it afterwards, even if clients are connected."""
        raise NotImplementedError


class Redis(Broker):
    """A Redis with an append-only file, unless it is created with `appendonly='no'`."""

    kind = "redis"

    def __init__(self, kept: KeptServer | Shared) -> None:
        super().__init__(kept)
        self._numbers = itertools.count(1)

    def url(self, place: str = "") -> str:
        return f"redis://:{self.password}@127.0.0.1:{self.port}/{place or 0}"

    @contextlib.contextmanager
    def place(self) -> Iterator[Place]:
        number = str(next(self._numbers))  # the server has 4,096 databases
        self.mend()
        try:
            yield Place.of(self.url(number), lambda: self.left(number))
        finally:
            self.mend()
            with self.client(number) as client:
                client.flushdb()

    def left(self, place: str = "") -> list[str]:
        """Return the keys of a database."""
        with self.client(place) as client:
            return sorted(key.decode(errors="replace") for key in client.scan_iter(count=1000))

    def copy_data(self) -> Callable[[], None]:
        """Copy the data on disk. The returned function kills the server and restarts it with this
        copy.
        """
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
        """Return a client of the server. The caller closes it."""
        import redis

        return redis.Redis.from_url(self.url(place))


class Rabbitmq(Broker):
    kind = "rabbitmq"

    def __init__(self, kept: KeptServer | Shared) -> None:
        super().__init__(kept)
        self.alarmed = False
        self._pages = f"http://127.0.0.1:{kept.details['pages']}/api/"

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
        """Return the queues and exchanges of a vhost, except the built-in ones."""
        queues = [f"queue {names['name']}" for names in self.queues(place)]
        exchanges = [
            f"exchange {names['name']}"
            for names in self.ask("GET", "exchanges", place or "/")
            if names["name"] and not names["name"].startswith("amq.")
        ]
        return sorted(queues + exchanges)

    def alarm(self) -> None:
        """Trigger the memory alarm: the broker blocks publishers."""
        self._kept.ask("alarm")
        self.alarmed = True

    def calm(self) -> None:
        """Clear the memory alarm: the broker accepts messages again."""
        self._kept.ask("calm")
        self.alarmed = False

    def mend(self) -> None:
        super().mend()
        if self.alarmed:
            self.calm()

    def queues(self, place: str = "") -> list[dict[str, Any]]:
        """Return the broker's data about the queues of a vhost."""
        listed: list[dict[str, Any]] = self.ask("GET", "queues", place or "/")
        return listed

    def connections(self, place: str = "") -> list[str]:
        """Return the names of the connections to a vhost."""
        # The list per vhost requires the collection of statistics.
        listed = self.ask("GET", "connections")
        return [each["name"] for each in listed if each.get("vhost") == (place or "/")]

    def cut(self, place: str = "") -> None:
        """Let the broker close all connections to a vhost."""
        for name in self.connections(place):
            with contextlib.suppress(urllib.error.HTTPError):  # already closed
                self.ask("DELETE", "connections", name)

    def ask(self, method: str, *path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Send a request to the management plugin and return its answer."""
        url = self._pages + "/".join(urllib.parse.quote(part, safe="") for part in path)
        secret = base64.b64encode(f"{USER}:{self.password}".encode()).decode()
        request = urllib.request.Request(
            url,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Basic {secret}", "Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            content = answer.read()
        return json.loads(content) if content else None


class Database(Broker):
    """A PostgreSQL or MySQL as broker. Its places are databases."""

    def __init__(self, kind: str, kept: KeptServer) -> None:
        super().__init__(kept)
        self.kind = kind
        self.server = servers.Server.of(self.kind, kept.details)
        self.server.execute(f"CREATE DATABASE {_DEFAULT_DATABASE}")

    def start(self) -> None:
        for _ in range(100):
            # The processes of the killed server must end first.
            with contextlib.suppress(servers.ServerMissing):
                super().start()
                return
            time.sleep(0.2)
        raise servers.ServerMissing("the database does not start again")

    def url(self, place: str = "") -> str:
        return self.server.url(place or _DEFAULT_DATABASE)

    @contextlib.contextmanager
    def place(self) -> Iterator[Place]:
        self.mend()
        with self.server.database() as url:
            yield Place.of(url, lambda: self.left(url.rpartition("/")[2]))

    def left(self, place: str = "") -> list[str]:
        """Return the tables with rows, except those that describe the format."""
        names = "SELECT table_name FROM information_schema.tables WHERE table_name LIKE 'wbe%'"
        if self.kind == "mysql":
            names += " AND table_schema = database()"
        tables = {name for (name,) in self.ask(names, place)}
        counts = {
            name: self.ask(f"SELECT count(*) FROM {name}", place)[0][0]
            for name in tables - {"wbe_transport", "wbe_ledger_about"}
        }
        return sorted(f"{count} rows of {name}" for name, count in counts.items() if count)

    def ask(self, statement: str, place: str = "") -> list[Any]:
        """Return the rows of a query."""
        return self.server.execute(statement, place or _DEFAULT_DATABASE)


_DEFAULT_DATABASE = "wbe_default"


class Coordinator(Broker):
    """A ZooKeeper or etcd server. A part of it is the subtree of a path."""

    def __init__(self, kept: KeptServer | Shared, kind: str) -> None:
        super().__init__(kept)
        self.kind = kind

    def url(self, place: str = "") -> str:
        return f"{self.kind}://127.0.0.1:{self.port}/{place or 'boards'}"

    @contextlib.contextmanager
    def place(self) -> Iterator[Place]:
        self.mend()
        # Remaining nodes do no harm: they are deleted with the server.
        yield Place.of(self.url(f"test-{uuid.uuid4().hex[:12]}/boards"), list)


@contextlib.contextmanager
def coordinator(kind: str, **settings: str) -> Iterator[Coordinator]:
    """Run a private ZooKeeper or etcd with settings of its configuration.

    :raises ServerMissing: if it is not installed or does not start.
    """
    with servers.keeping(kind, **settings) as server:
        yield Coordinator(server, kind)


@contextlib.contextmanager
def redis(**settings: str) -> Iterator[Redis]:
    """Run a private Redis with settings of redis.conf. It starts in about 30 ms.

    :raises ServerMissing: if it is not installed or does not start.
    """
    with servers.keeping("redis", **settings) as server:
        yield Redis(server)


@contextlib.contextmanager
def rabbitmq(**settings: str) -> Iterator[Rabbitmq]:
    """Run a private RabbitMQ with settings of rabbitmq.conf. It needs 5 s to start and 155 MB.

    :raises ServerMissing: if it is not installed or does not start.
    """
    with servers.keeping("rabbitmq", **settings) as server:
        yield Rabbitmq(server)


@contextlib.contextmanager
def database(kind: str) -> Iterator[Database]:
    """Run a private 'postgresql' or 'mysql'.

    :raises ServerMissing: if it is not installed or does not start.
    """
    with servers.keeping(kind) as server:
        yield Database(kind, server)


postgresql = functools.partial(database, "postgresql")
mysql = functools.partial(database, "mysql")


#: Brokers of tests that kill their broker. A RabbitMQ needs 5 s for each start.
KILLED = ("redis", pytest.param("own rabbitmq", marks=pytest.mark.slow))

# For pytest. --------------------------------------------------------------------------------------

_MAKERS: Mapping[str, Callable[[], contextlib.AbstractContextManager[Broker]]]
_MAKERS = {
    "redis": redis,
    "rabbitmq": rabbitmq,
    "postgresql": postgresql,
    "mysql": mysql,
    **{kind: functools.partial(coordinator, kind) for kind in ("zookeeper", "etcd")},
}


class Brokers(servers.Once[Broker]):
    """Brokers by kind. The first test that uses a kind starts its broker.

    Each process has its own Redis: it starts fast, and tests configure it, inspect its commands and
    kill it. All processes of a run share the other brokers if they share a `folder`. Tests that
    kill RabbitMQ use 'own rabbitmq'.
    """

    def __init__(self, folder: Path | None = None) -> None:
        super().__init__(functools.partial(_reached, folder))

    def __getitem__(self, kind: str) -> Broker:
        server = super().__getitem__(kind)
        tally.brokers[server.kind] = server.version
        server.mend()
        return server


@contextlib.contextmanager
def _reached(folder: Path | None, kind: str) -> Iterator[Broker]:
    if folder is not None and kind in ("rabbitmq", "zookeeper", "etcd"):
        shared_server = servers.shared(kind, folder)
        yield Rabbitmq(shared_server) if kind == "rabbitmq" else Coordinator(shared_server, kind)
        return
    with _MAKERS[kind.removeprefix("own ")]() as server:
        yield server


@pytest.fixture(scope="session")
def broker_servers(shared_folder: Path | None) -> Iterator[Brokers]:
    """Yield the brokers by kind ('redis', 'rabbitmq')."""
    with contextlib.closing(Brokers(shared_folder)) as brokers:
        yield brokers


@pytest.fixture
def redis_server(broker_servers: Brokers) -> Broker:
    """Return the Redis of the session. Tests may kill it: it is repaired for the next test."""
    return broker_servers["redis"]


@pytest.fixture
def rabbitmq_server(broker_servers: Brokers) -> Broker:
    """Return the RabbitMQ of the run, which other tests use at the same time."""
    return broker_servers["rabbitmq"]


def broker_url(kind: str, request: pytest.FixtureRequest, folder: Path) -> str:
    """Return the URL of a broker of this kind that only one test uses.

    `memory`, `filesystem` and `rowless` (see `rowless_url`) are private to the folder.
    """
    if kind == "memory":
        return f"memory://{folder.name}"
    if kind == "filesystem":
        return f"filesystem://{folder / 'broker'}"
    return str(request.getfixturevalue(f"{kind}_url"))


@pytest.fixture
def rowless_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the URL of a broker in this process without rows of requests."""
    kinds = importlib.import_module("wbengine.transports._kinds")
    monkeypatch.setitem(kinds.KINDS, "rowless", "tests.support.rowless:KIND")
    return f"rowless://{tmp_path.name}"


@pytest.fixture
def redis_url(redis_server: Broker) -> Iterator[Place]:
    """Yield an empty database for this test."""
    with redis_server.place() as url:
        yield url


@pytest.fixture
def rabbitmq_url(rabbitmq_server: Broker) -> Iterator[Place]:
    """Yield an empty vhost for this test."""
    with rabbitmq_server.place() as url:
        yield url
