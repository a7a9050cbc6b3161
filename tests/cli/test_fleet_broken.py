"""Each command, against what is down, empty, or of a newer version: one line, and soon."""

from __future__ import annotations

import importlib
import socket
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Command
from wbengine import transports

#: Commands that need workers, or a broker.
WITH_BROKER = (
    ("workers", "ls"),
    ("workers", "show", "w"),
    ("workers", "ping"),
    ("workers", "drain", "w"),
    ("workers", "stop", "w"),
    ("workers", "suspend", "--all"),
    ("workers", "resume", "--all"),
    ("status",),
    ("queues", "ls"),
    ("queues", "purge", "q", "--yes"),
)
#: What each says where a broker is, and nothing else.
ALONE = {
    ("workers", "show", "w"): 66,
    ("workers", "drain", "w"): 66,
    ("workers", "stop", "w"): 66,
    ("queues", "ls"): 0,
    ("queues", "purge", "q", "--yes"): 66,
}
WITH_STORE = (
    ("db", "upgrade"),
    ("db", "current"),
    ("db", "check"),
    ("db", "prune", "--older-than", "30d", "--yes"),
    ("dashboard", "--port", "0"),
)


@pytest.fixture
def silent() -> Iterator[int]:
    """The port of somebody who takes connections, and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture(scope="module", autouse=True)
def loaded() -> None:
    """What the commands import takes its time on a busy host, and once."""
    for module in ("queues", "ledgers"):
        importlib.import_module(f"wbengine.views.{module}")
    for module in ("workers", "queues", "status", "db", "dashboard"):
        importlib.import_module(f"wbengine.cli.{module}_command")
    transports.resolve("redis://localhost")


def name(words: tuple[str, ...]) -> str:
    return "-".join(words[:2])


def soon(wbengine: Command, *words: str) -> tuple[int, str]:
    began = time.monotonic()
    answer = wbengine(*words)
    assert time.monotonic() - began < 10
    assert answer.out == ""
    return answer.code, answer.error


@pytest.mark.parametrize("words", WITH_BROKER, ids=name)
@pytest.mark.parametrize("place", ["amqp://127.0.0.1:1//", "redis://127.0.0.1:1/0"])
def test_a_broker_that_is_down(wbengine: Command, words: tuple[str, ...], place: str) -> None:
    code, line = soon(wbengine, *words, "--url", place, "--timeout", "1")
    assert code == 69
    assert "nothing listens there" in line or "Connection refused" in line


@pytest.mark.parametrize("kind", ["amqp", "redis"])
def test_a_broker_that_says_nothing(wbengine: Command, silent: int, kind: str) -> None:
    words = "workers", "ls", "--url", f"{kind}://u:secret@127.0.0.1:{silent}/0", "--timeout", "1"
    code, line = soon(wbengine, *words)
    assert code == 69 and "cannot be reached" in line and "secret" not in line


@pytest.mark.parametrize("words", WITH_BROKER, ids=name)
def test_a_broker_where_nobody_is(wbengine: Command, home: Path, words: tuple[str, ...]) -> None:
    began = time.monotonic()
    answer = wbengine(*words, "--url", f"filesystem://{home}/broker", "--timeout", "0.3")
    assert time.monotonic() - began < 10
    assert answer.code == ALONE.get(words, 69)
    if words == ("status",):
        assert answer.out.startswith("broker")
    else:
        assert answer.out == ""
    assert len(answer.err.splitlines()) == 1


@pytest.mark.parametrize(
    "url", ["nonsense", "ampq://host", "amqp://host?no=1", "redis://host/zero", "memory://a b"]
)
def test_an_url_that_makes_no_sense(wbengine: Command, home: Path, url: str) -> None:
    by_flag = wbengine("workers", "ls", "--url", url)
    assert (by_flag.code, by_flag.out) == (2, "") and "--url" in by_flag.error
    (home / "wbengine.toml").write_text(f'url = "{url}"\n')
    by_file = wbengine("workers", "ls")
    assert by_file.code == 78 and "wbengine.toml: url" in by_file.error


@pytest.mark.parametrize("ledger", ["nonsense://x", "redis://127.0.0.1:1/0", "dir:///dev/null/x"])
def test_a_ledger_that_cannot_be_used(wbengine: Command, home: Path, ledger: str) -> None:
    url = f"filesystem://{home}/broker"
    answer = wbengine("queues", "ls", "--rows", "--url", url, "--ledger", ledger)
    assert answer.out == "" and len(answer.err.splitlines()) == 1
    assert answer.code == (2 if ledger.startswith("nonsense") else 69)


def test_a_broker_without_a_ledger(wbengine: Command, home: Path) -> None:
    answer = wbengine("queues", "ls", "--rows", "--url", "amqp://127.0.0.1:1//")
    assert answer.code == 2 and "has no ledger of its own" in answer.error


# -- stores


@pytest.mark.parametrize("words", WITH_STORE, ids=name)
@pytest.mark.parametrize(
    "place", ["postgresql://u:secret@127.0.0.1:1/f", "mysql://u:secret@127.0.0.1:1/f"]
)
def test_a_store_that_is_down(wbengine: Command, words: tuple[str, ...], place: str) -> None:
    code, line = soon(wbengine, *words, "--persistence", place, "--timeout", "3")
    assert code == 69 and "secret" not in line


@pytest.mark.parametrize("words", WITH_STORE, ids=name)
def test_a_store_of_a_newer_version(wbengine: Command, home: Path, words: tuple[str, ...]) -> None:
    place = f"sqlite:///{home}/flows.db"
    assert wbengine("db", "upgrade", "--persistence", place).code == 0
    with sqlite3.connect(home / "flows.db") as database:
        database.execute("UPDATE wbe_alembic_version SET version_num = '9999'")
    database.close()
    if words == ("db", "current"):
        told = wbengine(*words, "--persistence", place, "--json").json
        assert told["revision"] == "9999" != told["wanted"]
        return
    code, line = soon(wbengine, *words, "--persistence", place)
    assert code == 69 and "9999" in line and "newer version" in line


@pytest.mark.parametrize("words", WITH_STORE[1:4], ids=name)
def test_a_store_where_nothing_is(wbengine: Command, home: Path, words: tuple[str, ...]) -> None:
    answer = wbengine(*words, "--persistence", f"sqlite:///{home}/flows.db")
    assert answer.code == 0 and len(answer.err.splitlines()) <= 1
    assert not (home / "flows.db").exists()


def test_a_damaged_store(wbengine: Command, home: Path) -> None:
    (home / "flows.db").write_bytes(b"no database at all" * 1000)
    for words in (("db", "check"), ("db", "current"), ("db", "upgrade")):
        answer = wbengine(*words, "--persistence", f"sqlite:///{home}/flows.db")
        assert answer.code == 69 and "is damaged" in answer.error
