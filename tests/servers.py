"""Private database servers for tests and tools: real ones, started when first asked for.

    with servers.postgresql() as server, server.database() as url: ...

Each has its own folder, port and password, and is gone afterwards, also when this process is killed
(`tests/server_keeper.py` sees to that).
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

KEEPER = Path(__file__).resolve().with_name("server_keeper.py")
USER = "wbe"

#: What ran so far in this run of the tests, by kind, for the line at its end: a version, or ''.
ran: dict[str, str] = {}
ledgers_ran: dict[str, str] = {}


class ServerMissing(Exception):
    """The server's programs are not installed, or it does not start; the text says what to do."""


@dataclass(frozen=True)
class Server:
    """A server that runs."""

    kind: str
    version: str
    port: int
    password: str

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

    def cut(self, url: str) -> None:
        """End all connections to a database, as a server does that stops."""
        name = url.rpartition("/")[2]
        if self.kind == "postgresql":
            self.execute(
                f"SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
                f" WHERE datname = '{name}'"
            )
            return
        who = f"SELECT id FROM information_schema.processlist WHERE db = '{name}'"
        for (number,) in self.execute(who):
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
    from tools import _servers

    program = _servers.find(kind)
    if program is None:
        raise ServerMissing(_servers.reason([kind]))
    keeper = subprocess.Popen(
        [sys.executable, "-E", "-S", str(KEEPER), kind, program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is for us: we end it when nobody needs it any more
        cwd="/",
    )
    assert keeper.stdin is not None and keeper.stdout is not None
    try:
        told = json.loads(keeper.stdout.readline() or b'{"error": "its keeper died"}')
        if "error" in told:
            raise ServerMissing(f"{program} does not start: {told['error']}")
        yield Server(kind, told["version"], told["port"], told["password"])
    finally:
        keeper.terminate()
        keeper.stdin.close()
        keeper.stdout.close()
        keeper.wait()


# For pytest. --------------------------------------------------------------------------------------


def skip_or_fail(reason: str) -> None:
    """What is missing may be missing on somebody's own machine, but not where it counts."""
    if os.environ.get("CI", "").lower() in ("1", "true", "yes"):
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


class Lazy:
    """The servers of one session: each started once, by the first test that needs it."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._known: dict[str, Server | str] = {}

    def __getitem__(self, kind: str) -> Server:
        if kind not in self._known:
            try:
                self._known[kind] = self._stack.enter_context(_running(kind))
            except ServerMissing as error:
                self._known[kind] = str(error)
        found = self._known[kind]
        if isinstance(found, str):
            skip_or_fail(found)
        assert isinstance(found, Server)
        return found

    def close(self) -> None:
        self._stack.close()


@pytest.fixture(scope="session")
def database_servers() -> Iterator[Lazy]:
    """The servers, by kind ('postgresql', 'mysql')."""
    with contextlib.closing(Lazy()) as servers:
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


def summary() -> list[str]:
    """Which kinds of stores and ledgers tests ran on, a line of each."""
    return [f"{what}: {_listed(kinds)}" for what, kinds in
            (("backends", ran), ("ledgers", ledgers_ran)) if kinds]  # fmt: skip


def _listed(kinds: dict[str, str]) -> str:
    order = ("memory", "dir", "sqlite", "mysql", "postgresql")
    words = []
    for kind in sorted(kinds, key=order.index):
        version = kinds[kind] if kind == "sqlite" else f"({kinds[kind]})"
        words.append(f"{kind} {version}" if kinds[kind] else kind)
    return ", ".join(words)
