"""Private database servers for tests and tools, started on first use.

    with servers.postgresql() as server, server.database() as url: ...

Each has its own folder, port and password, and is deleted afterwards, also if this process is
killed (`tests/support/server_keeper.py`).
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import itertools
import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
USER = "wbe"

S = TypeVar("S")


class ServerMissing(Exception):
    """The server is not installed or does not start. The text contains the remedy."""


@dataclass(frozen=True)
class Server:
    """A running server."""

    kind: str
    version: str
    port: int
    password: str

    @classmethod
    def of(cls, kind: str, told: dict[str, Any]) -> Server:
        return cls(kind, told["version"], told["port"], told["password"])

    def url(self, database: str) -> str:
        """Return the URL of a database for `backends.fetch`."""
        return f"{self.kind}://{USER}:{self.password}@127.0.0.1:{self.port}/{database}"

    @contextlib.contextmanager
    def database(self, options: str = "") -> Iterator[str]:
        """Yield the URL of a new, empty database, and drop it afterwards, even if clients are
        connected.
        """
        name = f"wbe_{next(_numbers)}_{uuid.uuid4().hex[:6]}"
        self.execute(f"CREATE DATABASE {name} {options}")
        try:
            yield self.url(name)
        finally:
            with_force = " WITH (FORCE)" if self.kind == "postgresql" else ""
            self.execute(f"DROP DATABASE {name}{with_force}")

    def execute(self, statement: str, database: str | None = None) -> list[Any]:
        """Execute a statement as administrator, by default outside the databases of tests, and
        return its rows.
        """
        with contextlib.closing(self._connect(database)) as connection:
            cursor = connection.cursor()
            cursor.execute(statement)
            return list(cursor.fetchall()) if cursor.description else []

    def connections(self, url: str) -> int:
        """Return the number of connections to a database."""
        name = url.rpartition("/")[2]
        table = {"postgresql": "pg_stat_activity WHERE datname"}.get(
            self.kind, "information_schema.processlist WHERE db"
        )
        return int(self.execute(f"SELECT count(*) FROM {table} = '{name}'")[0][0])

    def cut(self, url: str) -> None:
        """End all connections to a database, as a server does when it stops."""
        name = url.rpartition("/")[2]
        if self.kind == "postgresql":
            self.execute(
                f"SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity"
                f" WHERE datname = '{name}'"
            )
            return
        who = f"SELECT id FROM information_schema.processlist WHERE db = '{name}'"
        import pymysql

        while ids := self.execute(who):
            for (number,) in ids:
                with contextlib.suppress(pymysql.OperationalError):  # already closed
                    self.execute(f"KILL {number}")
            time.sleep(0.005)

    def _connect(self, database: str | None) -> Any:
        where: dict[str, Any] = {"host": "127.0.0.1", "port": self.port, "user": USER}
        where["password"] = self.password
        if self.kind == "postgresql":
            import psycopg

            return psycopg.connect(**where, dbname=database or "postgres", autocommit=True)
        import pymysql

        return pymysql.connect(**where, database=database, autocommit=True)


_numbers = itertools.count(1)


def postgresql() -> contextlib.AbstractContextManager[Server]:
    """Run a private PostgreSQL.

    :raises ServerMissing: if it is not installed or does not start.
    """
    return _running("postgresql")


def mariadb() -> contextlib.AbstractContextManager[Server]:
    """Run a private MariaDB; see `postgresql`."""
    return _running("mysql")


@contextlib.contextmanager
def _running(kind: str) -> Iterator[Server]:
    with keeping(kind) as server:
        yield Server.of(kind, server.details)


class KeptServer:
    """A running server and its keeper."""

    def __init__(self, keeper: subprocess.Popen[bytes]) -> None:
        self._keeper = keeper
        self.details = self._answer()

    def ask(self, word: str) -> dict[str, Any]:
        """Send a command and return its answer when it is done; see `server_keeper`."""
        assert self._keeper.stdin is not None
        self._keeper.stdin.write(f"{word}\n".encode())
        self._keeper.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._keeper.stdout is not None
        data = json.loads(self._keeper.stdout.readline() or b'{"error": "its keeper died"}')
        if "error" in data:
            raise ServerMissing(data["error"])
        assert isinstance(data, dict)
        return data


class Shared:
    """A server that other processes use at the same time. Tests must not disturb it."""

    def __init__(self, told: dict[str, Any]) -> None:
        self.details = told

    def ask(self, word: str) -> dict[str, Any]:
        raise AssertionError(f"{word!r}: other tests use this server; start one of the test's own")


@contextlib.contextmanager
def keeping(kind: str, **settings: str) -> Iterator[KeptServer]:
    """Run a private server with settings of its configuration.

    :raises ServerMissing: if it is not installed or does not start.
    """
    keeper = _keeper(os.getpid(), kind, **settings)
    assert keeper.stdin is not None and keeper.stdout is not None
    try:
        yield _started(keeper, kind)
    finally:
        keeper.terminate()
        keeper.stdin.close()
        keeper.stdout.close()
        keeper.wait()


def shared(kind: str, folder: Path) -> Shared:
    """Return the server of this kind that all processes of a pytest run share.

    The first caller starts the server and writes its address to the shared `folder`. The server
    ends with the process that began the run.

    :raises ServerMissing: if it is not installed or does not start.
    """
    with open(folder / f"server-{kind}", "a+") as note:
        fcntl.flock(note, fcntl.LOCK_EX)
        note.seek(0)
        noted = note.read()
        if not noted:
            with _keeper(os.getppid(), kind) as keeper:
                noted = json.dumps(_started(keeper, kind).details)
            note.write(noted)
        return Shared(json.loads(noted))


def _started(keeper: subprocess.Popen[bytes], kind: str) -> KeptServer:
    try:
        return KeptServer(keeper)
    except ServerMissing as error:
        raise ServerMissing(f"{_program(kind)} does not start: {error}") from None


def _program(kind: str) -> str:
    from tools import _servers

    program = _servers.find(kind)
    if program is None:
        raise ServerMissing(_servers.reason([kind]))
    return program


def _keeper(pid: int, kind: str, **settings: str) -> subprocess.Popen[bytes]:
    """Start the process that keeps a server as long as the process `pid` exists."""
    words = [str(pid), kind, _program(kind), *(f"{key}={value}" for key, value in settings.items())]
    return subprocess.Popen(
        [sys.executable, "-E", "-S", "-m", "tests.support.server_keeper", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        # Ctrl-C must not end the server: this process does so after the last use
        start_new_session=True,
        cwd=REPOSITORY,
    )


# For pytest. --------------------------------------------------------------------------------------


def skip_or_fail(reason: str) -> None:
    """Skip the test because a program is missing, or fail it if `CI` is set."""
    if os.environ.get("CI", "").lower() in ("1", "true", "yes"):
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


class Once(Generic[S]):
    """The servers of one session. The first test that uses a kind starts its server."""

    def __init__(self, start: Callable[[str], contextlib.AbstractContextManager[S]]) -> None:
        self._start = start
        self._stack = contextlib.ExitStack()
        self._known: dict[str, S] = {}
        self._missing: dict[str, str] = {}

    def __getitem__(self, kind: str) -> S:
        if kind not in self._known and kind not in self._missing:
            try:
                self._known[kind] = self._stack.enter_context(self._start(kind))
            except ServerMissing as error:
                self._missing[kind] = str(error)
        if kind in self._missing:
            skip_or_fail(self._missing[kind])
        return self._known[kind]

    def close(self) -> None:
        self._stack.close()


class Databases(Once[Server]):
    """Databases by kind. The first test that uses a kind starts its server.

    All processes of a run share a server if they share a `folder`. Tests that change the
    configuration of a server use 'own mysql'.
    """

    def __init__(self, folder: Path | None = None) -> None:
        super().__init__(functools.partial(_reached, folder))


@contextlib.contextmanager
def _reached(folder: Path | None, kind: str) -> Iterator[Server]:
    own = kind.startswith("own ")
    kind = kind.removeprefix("own ")
    if folder is not None and not own:
        yield Server.of(kind, shared(kind, folder).details)
        return
    with _running(kind) as server:
        yield server


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path | None:
    """Return the folder that the processes of a parallel run share, or None."""
    several = "PYTEST_XDIST_WORKER" in os.environ
    return tmp_path_factory.getbasetemp().parent if several else None


@pytest.fixture(scope="session")
def database_servers(shared_folder: Path | None) -> Iterator[Databases]:
    """Yield the servers by kind ('postgresql', 'mysql'). Other tests use them at the same time."""
    with contextlib.closing(Databases(shared_folder)) as servers:
        yield servers


@pytest.fixture(scope="session")
def postgresql_server(database_servers: Databases) -> Server:
    """Return the PostgreSQL server. Tests of backends use `postgresql_url`."""
    return database_servers["postgresql"]


@pytest.fixture(scope="session")
def mariadb_server(database_servers: Databases) -> Server:
    return database_servers["mysql"]


@pytest.fixture
def postgresql_url(postgresql_server: Server) -> Iterator[str]:
    """Yield an empty database for this test."""
    with postgresql_server.database() as url:
        yield url


@pytest.fixture
def mariadb_url(mariadb_server: Server) -> Iterator[str]:
    """Yield an empty database for this test."""
    with mariadb_server.database() as url:
        yield url
