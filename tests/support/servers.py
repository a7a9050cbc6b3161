"""Private database servers for tests and tools: real ones, started when first asked for.

    with servers.postgresql() as server, server.database() as url: ...

Each has its own folder, port and password, and is gone afterwards, also when this process is killed
(`tests/support/server_keeper.py` sees to that).
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
    """The server's programs are not installed, or it does not start; the text says what to do."""


@dataclass(frozen=True)
class Server:
    """A server that runs."""

    kind: str
    version: str
    port: int
    password: str

    @classmethod
    def of(cls, kind: str, told: dict[str, Any]) -> Server:
        return cls(kind, told["version"], told["port"], told["password"])

    def url(self, database: str) -> str:
        """The place of a database, as `backends.fetch` takes it."""
        return f"{self.kind}://{USER}:{self.password}@127.0.0.1:{self.port}/{database}"

    @contextlib.contextmanager
    def database(self) -> Iterator[str]:
        """The place of a new, empty database; it is gone afterwards, whoever is still connected."""
        name = f"wbe_{next(_numbers)}_{uuid.uuid4().hex[:6]}"
        self.execute(f"CREATE DATABASE {name}")
        try:
            yield self.url(name)
        finally:
            with_force = " WITH (FORCE)" if self.kind == "postgresql" else ""
            self.execute(f"DROP DATABASE {name}{with_force}")

    def execute(self, statement: str) -> list[Any]:
        """Run a statement as who may do everything, outside of the databases of tests; its rows."""
        with contextlib.closing(self._connect()) as connection:
            cursor = connection.cursor()
            cursor.execute(statement)
            return list(cursor.fetchall()) if cursor.description else []

    def connections(self, url: str) -> int:
        """How many there are to a database."""
        name = url.rpartition("/")[2]
        table = {"postgresql": "pg_stat_activity WHERE datname"}.get(
            self.kind, "information_schema.processlist WHERE db"
        )
        return int(self.execute(f"SELECT count(*) FROM {table} = '{name}'")[0][0])

    def cut(self, url: str) -> None:
        """End all connections to a database, as a server does that stops."""
        name = url.rpartition("/")[2]
        if self.kind == "postgresql":
            self.execute(
                f"SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity"
                f" WHERE datname = '{name}'"
            )
            return
        who = f"SELECT id FROM information_schema.processlist WHERE db = '{name}'"
        import pymysql

        for (number,) in self.execute(who):
            with contextlib.suppress(pymysql.OperationalError):  # it has ended meanwhile
                self.execute(f"KILL {number}")
        while self.execute(who):
            time.sleep(0.005)

    def _connect(self) -> Any:
        where: dict[str, Any] = {"host": "127.0.0.1", "port": self.port, "user": USER}
        where["password"] = self.password
        if self.kind == "postgresql":
            import psycopg

            return psycopg.connect(**where, dbname="postgres", autocommit=True)
        import pymysql

        return pymysql.connect(**where, autocommit=True)


_numbers = itertools.count(1)


def postgresql() -> contextlib.AbstractContextManager[Server]:
    """A PostgreSQL of one's own.

    :raises ServerMissing: it is not installed, or does not start.
    """
    return _running("postgresql")


def mariadb() -> contextlib.AbstractContextManager[Server]:
    """A MariaDB of one's own; see `postgresql`."""
    return _running("mysql")


@contextlib.contextmanager
def _running(kind: str) -> Iterator[Server]:
    with keeping(kind) as kept:
        yield Server.of(kind, kept.told)


class Kept:
    """A server that runs, and its keeper."""

    def __init__(self, keeper: subprocess.Popen[bytes]) -> None:
        self._keeper = keeper
        self.told = self._answer()

    def ask(self, word: str) -> dict[str, Any]:
        """Have something done; see `server_keeper`.  Returns when it was."""
        assert self._keeper.stdin is not None
        self._keeper.stdin.write(f"{word}\n".encode())
        self._keeper.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._keeper.stdout is not None
        told = json.loads(self._keeper.stdout.readline() or b'{"error": "its keeper died"}')
        if "error" in told:
            raise ServerMissing(told["error"])
        assert isinstance(told, dict)
        return told


class Shared:
    """A server that other processes use at the same time: none of them may hurt it."""

    def __init__(self, told: dict[str, Any]) -> None:
        self.told = told

    def ask(self, word: str) -> dict[str, Any]:
        raise AssertionError(f"{word!r}: other tests use this server; start one of the test's own")


@contextlib.contextmanager
def keeping(kind: str, **settings: str) -> Iterator[Kept]:
    """A server of one's own, with settings in its own words.

    :raises ServerMissing: it is not installed, or does not start.
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
    """The server of this kind that all processes of a run of pytest use.

    The first that asks for it starts it, and notes in `folder`, which they share, where it is.  It
    goes when the process that began the run ends.

    :raises ServerMissing: it is not installed, or does not start.
    """
    with open(folder / f"server-{kind}", "a+") as note:
        fcntl.flock(note, fcntl.LOCK_EX)
        note.seek(0)
        noted = note.read()
        if not noted:
            with _keeper(os.getppid(), kind) as keeper:
                noted = json.dumps(_started(keeper, kind).told)
            note.write(noted)
        return Shared(json.loads(noted))


def _started(keeper: subprocess.Popen[bytes], kind: str) -> Kept:
    try:
        return Kept(keeper)
    except ServerMissing as error:
        raise ServerMissing(f"{_program(kind)} does not start: {error}") from None


def _program(kind: str) -> str:
    from tools import _servers

    program = _servers.find(kind)
    if program is None:
        raise ServerMissing(_servers.reason([kind]))
    return program


def _keeper(pid: int, kind: str, **settings: str) -> subprocess.Popen[bytes]:
    """A process that keeps a server for as long as there is the process `pid`."""
    words = [str(pid), kind, _program(kind), *(f"{key}={value}" for key, value in settings.items())]
    return subprocess.Popen(
        [sys.executable, "-E", "-S", "-m", "tests.support.server_keeper", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is for us: we end it when nobody needs it any more
        cwd=REPOSITORY,
    )


# For pytest. --------------------------------------------------------------------------------------


def skip_or_fail(reason: str) -> None:
    """What is missing may be missing on somebody's own machine, but not where it counts."""
    if os.environ.get("CI", "").lower() in ("1", "true", "yes"):
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


class Once(Generic[S]):
    """The servers of one session: each started once, by the first test that needs it."""

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


class Lazy(Once[Server]):
    """Databases by kind: each is started by the first test that needs it.

    It is one for all processes of a run, where these have a `folder` in common: 'own mysql' is for
    tests that change how it is set up.
    """

    def __init__(self, folder: Path | None = None) -> None:
        super().__init__(functools.partial(_reached, folder))


@contextlib.contextmanager
def _reached(folder: Path | None, kind: str) -> Iterator[Server]:
    own = kind.startswith("own ")
    kind = kind.removeprefix("own ")
    if folder is not None and not own:
        yield Server.of(kind, shared(kind, folder).told)
        return
    with _running(kind) as found:
        yield found


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path | None:
    """What the processes have in common that run tests at the same time; None where it is one."""
    several = "PYTEST_XDIST_WORKER" in os.environ
    return tmp_path_factory.getbasetemp().parent if several else None


@pytest.fixture(scope="session")
def database_servers(shared_folder: Path | None) -> Iterator[Lazy]:
    """The servers, by kind ('postgresql', 'mysql'): other tests use them at the same time."""
    with contextlib.closing(Lazy(shared_folder)) as servers:
        yield servers


@pytest.fixture(scope="session")
def postgresql_server(database_servers: Lazy) -> Server:
    """For tests of one's own; those of backends take `postgresql_url`."""
    return database_servers["postgresql"]


@pytest.fixture(scope="session")
def mariadb_server(database_servers: Lazy) -> Server:
    return database_servers["mysql"]


@pytest.fixture
def postgresql_url(postgresql_server: Server) -> Iterator[str]:
    """An empty database of the test's own."""
    with postgresql_server.database() as url:
        yield url


@pytest.fixture
def mariadb_url(mariadb_server: Server) -> Iterator[str]:
    """An empty database of the test's own."""
    with mariadb_server.database() as url:
        yield url
