"""Each command against a broker and a store that are down, silent, empty, or of another version:
one line, the code that the help tells, and soon.

What a command needs not, is broken as well: it must not be asked.
"""

from __future__ import annotations

import importlib
import json
import socket
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from tests.cli.commands import ALL, UNKNOWN
from tests.cli.conftest import Answer, Command
from tests.support import servers
from wbengine.persistence import backends
from wbengine.persistence.backends.sql import backend, layout, tables

FACTORY = "tests.operations.flows:steps"

Words = tuple[str, ...]

#: What takes a broker, and its code where there is one, and nobody else.
OF_A_BROKER: dict[Words, int] = {
    ("workers", "ls"): 69,
    ("workers", "show", "w"): 66,
    ("workers", "ping"): 69,
    ("workers", "drain", "w"): 66,
    ("workers", "stop", "w"): 66,
    ("workers", "suspend", "--all"): 69,
    ("workers", "resume", "--all"): 69,
    ("status",): 69,
    ("queues", "ls"): 0,
    ("queues", "ls", "--requests"): 0,
    ("queues", "purge", "q", "--yes"): 66,
}
#: It would not end.
SERVES: Words = ("worker", "t", "--tasks", "tests.support.worker_tasks")

#: What takes a store, and its code where that is empty.
OF_A_STORE: dict[Words, int] = {
    ("flow", "show", UNKNOWN): 66,
    ("flow", "watch", UNKNOWN): 66,
    ("flow", "events", UNKNOWN): 66,
    ("flow", "logs", UNKNOWN): 66,
    ("flow", "export", UNKNOWN, "-o", "/dev/null"): 66,
    ("flow", "delete", UNKNOWN, "--yes"): 66,
    ("flow", "resume", UNKNOWN): 66,
    ("flow", "suspend", UNKNOWN): 66,
    ("flow", "cancel", UNKNOWN): 66,
    ("flow", "signal", UNKNOWN, "approved"): 66,
    ("flow", "revert", UNKNOWN, "--yes"): 66,
    ("flow", "retry", UNKNOWN): 66,
    ("graph", "--flow-id", UNKNOWN): 66,
    ("flow", "ls"): 0,
    ("flow", "run", FACTORY): 0,
    ("db", "upgrade"): 0,
    ("db", "current"): 0,
    ("db", "check"): 69,
    ("db", "prune", "--older-than", "30d", "--yes"): 0,
    ("schedule", "ls"): 0,
    ("limits",): 0,
    ("schedule", "pause", "s"): 66,
    ("schedule", "resume", "s"): 66,
    ("schedule", "run", "s"): 66,
    ("schedule", "rm", "s"): 66,
}
#: Commands that make a store where there is none, or say that there is none.
OF_NO_STORE: dict[Words, int] = {
    ("flow", "run", FACTORY): 0,
    ("db", "upgrade"): 0,
    ("db", "current"): 0,
}
#: It would not end.
SHOWS: Words = ("dashboard", "--port", "0")

#: What takes neither.
OF_NOBODY: tuple[Words, ...] = (
    ("graph", FACTORY),
    ("plugins", "ls"),
    ("config", "show"),
    ("config", "path"),
    ("config", "schema"),
    ("completion", "bash"),
)
#: Told of in tests of their own.
ELSEWHERE: tuple[Words, ...] = (
    ("doctor",), ("dev",), ("serve",), ("db", "move"), ("flow", "import"), ("flow", "submit"),
    ("queues", "retry"), ("schedule", "add"), ("keys", "new"), ("keys", "show"), ("keys", "rotate"),
)  # fmt: skip

#: What brings a store up to date, or only tells its version: no older one is an error for it.
OF_ANY_VERSION: dict[Words, int] = {
    ("db", "upgrade"): 0,
    ("db", "current"): 0,
    ("flow", "run", FACTORY): 0,
    ("flow", "resume", UNKNOWN): 66,
    ("flow", "retry", UNKNOWN): 66,
}

NOWHERE = "127.0.0.1:1"
DOWN = {"url": f"redis://me:canary@{NOWHERE}/0", "store": f"mysql://me:canary@{NOWHERE}/flows"}


def name(words: Words) -> str:
    return " ".join(word for word in words[:3] if not word.startswith("-") and word != UNKNOWN)


brokered = pytest.mark.parametrize("words", [*OF_A_BROKER, SERVES], ids=name)
stored = pytest.mark.parametrize("words", [*OF_A_STORE, SHOWS], ids=name)


@pytest.fixture(scope="module", autouse=True)
def loaded() -> None:
    """What the commands import takes its time, and once."""
    for module in ("views.queues", "views.ledgers", "worker", "dashboard", "diagnosis.examining"):
        importlib.import_module(f"wbengine.{module}")
    for module in ("redis", "pymysql", "alembic.command", "psycopg"):
        importlib.import_module(module)


@pytest.fixture(autouse=True)
def quickly(loaded: None) -> Iterator[None]:
    """Which of them wait for a second, and which for ever: a busy host takes its time."""
    began = time.monotonic()
    yield
    assert time.monotonic() - began < 45


@pytest.fixture(autouse=True)
def down(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody says anything else, nothing is there."""
    monkeypatch.setenv("WBENGINE_URL", DOWN["url"])
    monkeypatch.setenv("WBENGINE_PERSISTENCE", DOWN["store"])


@pytest.fixture
def silent() -> Iterator[int]:
    """The port of somebody who takes connections, and says nothing; they end with the test."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def unavailable(told: Answer, *said: str) -> None:
    assert (told.code, told.out) == (69, "")
    for words in said:
        assert words in told.error
    assert "canary" not in told.err


def test_every_command_is_asked() -> None:
    asked = {*OF_A_BROKER, SERVES, *OF_A_STORE, SHOWS, *OF_NOBODY, *ELSEWHERE}
    leaves = [path for path, command in ALL.items() if not isinstance(command, click.Group)]
    assert [path for path in leaves if not any(words[: len(path)] == path for words in asked)] == []


@pytest.mark.parametrize("words", OF_NOBODY, ids=name)
def test_who_needs_nobody_asks_nobody(words: Words, wbengine: Command) -> None:
    told = wbengine(*words, "--quiet")
    assert (told.code, told.err) == (0, "") and "canary" not in told.out


# Brokers. -----------------------------------------------------------------------------------------


@brokered
@pytest.mark.parametrize("kind", ["amqp", "redis"])
def test_a_broker_that_is_down(words: Words, kind: str, wbengine: Command) -> None:
    if kind == "amqp" and "--requests" in words:
        words = ("queues", "ls", "some")  # there are no rows
    told = wbengine(*words, "--url", f"{kind}://me:canary@{NOWHERE}/", "--timeout", "1")
    unavailable(told, NOWHERE)
    assert "nothing listens there" in told.err or "Connection refused" in told.err


@brokered
def test_a_broker_that_says_nothing(words: Words, wbengine: Command, silent: int) -> None:
    # The others reach theirs as these do.
    kind = "amqp" if words[0] in ("worker", "status") else "redis"
    url = f"{kind}://me:canary@127.0.0.1:{silent}/0"
    told = wbengine(*words, "--url", url, "--timeout", "1")
    unavailable(told, f"127.0.0.1:{silent}")


@brokered
def test_a_broker_that_refuses_the_password(
    words: Words, wbengine: Command, redis_server: servers.Server, redis_url: str
) -> None:
    told = wbengine(*words, "--url", str(redis_url).replace(redis_server.password, "canary"))
    unavailable(told, "user or password" if "--requests" not in words else "invalid")


@pytest.mark.parametrize("words", OF_A_BROKER, ids=name)
def test_a_broker_where_nobody_is(words: Words, wbengine: Command, home: Path) -> None:
    told = wbengine(*words, "--url", f"filesystem://{home}/broker", "--timeout", "0.2")
    assert told.code == OF_A_BROKER[words]
    assert told.out.startswith("broker") if words == ("status",) else told.out == ""
    assert len(told.err.splitlines()) == 1


@pytest.mark.parametrize("state", ["down", "silent", "refuses"])
@pytest.mark.parametrize("command", ["run", "retry"])
def test_a_flow_is_not_begun_without_its_broker(
    command: str,
    state: str,
    wbengine: Command,
    home: Path,
    silent: int,
    request: pytest.FixtureRequest,
) -> None:
    url = DOWN["url"] if state == "down" else f"amqp://me:canary@127.0.0.1:{silent}/"
    if state == "refuses":
        server = request.getfixturevalue("redis_server")
        url = str(request.getfixturevalue("redis_url")).replace(server.password, "canary")
    store = ("--persistence", f"dir://{home}/flows")
    words: Words = ("flow", "run", FACTORY)
    if command == "retry":
        (home / "broken").touch()
        flow = wbengine("flow", "run", "tests.cli.shop:order", "--quiet", *store).json["uuid"]
        words = ("flow", "retry", flow)
    # A port that refuses is not tried for so long.
    timeout = "100" if state == "down" else "1"
    unavailable(wbengine(*words, *store, "--engine", "workers", "--url", url, "--timeout", timeout))
    kept = wbengine("flow", "ls", "--json", *store)
    if command == "run":
        assert kept.code == 69 and "there is no store" in kept.json_error["error"]
    else:
        assert [flow["state"] for flow in kept.json["flows"]] == ["REVERTED"]


@pytest.mark.parametrize(
    ("words", "code"),
    [(("flow", "lss", "--json"), 2), (("--json", "flow", "show", UNKNOWN), 69)],
)
def test_error_is_json_where_json_is_asked_for(
    words: Words, code: int, wbengine: Command, home: Path
) -> None:
    told = wbengine(*words, "--persistence", f"sqlite:///{home}/none")
    assert (told.code, told.out) == (code, "")
    assert told.json_error.keys() == {"schema", "command", "error", "code"}
    assert told.json_error["schema"] == "wbengine/error/1" and told.json_error["code"] == code


@pytest.mark.parametrize("ledger", ["nonsense://x", DOWN["url"], "dir:///dev/null/x"])
def test_a_ledger_that_cannot_be_used(wbengine: Command, home: Path, ledger: str) -> None:
    url = f"filesystem://{home}/broker"
    told = wbengine("queues", "ls", "--requests", "--url", url, "--ledger", ledger)
    assert told.out == "" and "canary" not in told.error
    assert told.code == (2 if ledger.startswith("nonsense") else 69)
    if told.code == 69:
        told = wbengine(*SERVES, "--url", url, "--ledger", ledger, "--quiet")
        assert told.code == 69 and "canary" not in told.error


def test_a_broker_without_a_ledger(wbengine: Command) -> None:
    told = wbengine("queues", "ls", "--requests", "--url", f"amqp://{NOWHERE}//")
    assert told.code == 2 and "has no ledger of its own" in told.error


@pytest.mark.parametrize(
    "url", ["nonsense", "ampq://host", "amqp://host?no=1", "redis://host/zero", "memory://a b"]
)
@pytest.mark.parametrize("words", [("workers", "ls"), SERVES, SHOWS], ids=name)
def test_an_url_that_makes_no_sense(
    words: Words, url: str, wbengine: Command, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = f"sqlite:///{home}/flows.db"
    by_flag = wbengine(*words, "--url", url, "--persistence", store)
    assert (by_flag.code, by_flag.out) == (2, "") and "--url" in by_flag.error
    monkeypatch.delenv("WBENGINE_URL")
    (home / "wbengine.toml").write_text(f'url = "{url}"\n')
    by_file = wbengine(*words, "--persistence", store)
    assert by_file.code == 78 and "wbengine.toml: url" in by_file.error


# Stores. ------------------------------------------------------------------------------------------


@stored
@pytest.mark.parametrize("kind", ["postgresql", "mysql"])
def test_a_store_that_is_down(words: Words, kind: str, wbengine: Command) -> None:
    told = wbengine(*words, "--persistence", f"{kind}://me:canary@{NOWHERE}/flows")
    unavailable(told)
    assert "refused" in told.err


@stored
def test_a_store_that_says_nothing(words: Words, wbengine: Command, silent: int) -> None:
    url = f"mysql://me:canary@127.0.0.1:{silent}/flows"
    told = wbengine(*words, "--persistence", url, "--timeout", "0.3")
    unavailable(told, "error: the store does not answer within 0.3 s")


@pytest.mark.parametrize("words", OF_A_STORE, ids=name)
@pytest.mark.parametrize("kind", ["sqlite", "dir"])
def test_named_store_that_is_not_there_is_an_error_and_is_not_made(
    words: Words, kind: str, wbengine: Command, home: Path
) -> None:
    url = f"{kind}:{'///' if kind == 'sqlite' else '//'}{home}/flows"
    told = wbengine(*words, "--persistence", url)
    assert told.code == OF_NO_STORE.get(words, 69)
    if told.code:
        assert told.out == ""
        assert f"there is no store at {url} yet: `wbengine db upgrade` makes it" in told.error
        assert not (home / "flows").exists()


def test_store_is_asked_once_for_its_layout_and_not_for_all_its_books(
    wbengine: Command, home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever there is in it, a command begins at once."""
    place = f"sqlite:///{home}/kept.db?log_statements=yes"
    assert wbengine("flow", "run", FACTORY, "--persistence", place).code == 0
    caplog.clear()
    with caplog.at_level("DEBUG", "wbengine"):
        assert wbengine("flow", "ls", "--persistence", place).code == 0
    asked = [record.getMessage() for record in caplog.records if "SELECT" in record.getMessage()]
    assert sum("version_num" in text for text in asked) == 1
    assert not [text for text in asked if "FROM wbe_logbooks" in text]


def test_default_store_that_is_not_there_is_empty(
    wbengine: Command, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WBENGINE_PERSISTENCE")
    told = wbengine("flow", "ls", "--json")
    assert (told.code, json.loads(told.out)["flows"]) == (0, [])
    assert "there is no store at dir://" in told.err
    told = wbengine("flow", "resume", UNKNOWN)
    assert told.code == 66 and "the store holds none" in told.error


@stored
def test_a_store_of_a_newer_version(words: Words, wbengine: Command, home: Path) -> None:
    url = f"sqlite:///{home}/flows.db"
    with backends.backend(url):
        pass
    with sqlite3.connect(home / "flows.db") as connection:
        connection.execute(f"UPDATE {tables.VERSION_TABLE} SET version_num = '9999'")
    connection.close()
    told = wbengine(*words, "--persistence", url)
    if words == ("db", "current"):
        assert told.code == 0 and "9999" in told.out
    else:
        unavailable(told, "revision 9999, made by a newer version of wbengine")


@stored
def test_a_store_of_an_older_version(words: Words, wbengine: Command, home: Path) -> None:
    """Who runs flows brings it up to date; who only looks says how to."""
    url = f"sqlite:///{home}/flows.db"
    made = backend.SQLBackend({"connection": url})
    layout.upgrade(made.engine, layout.REVISIONS[0])
    made.close()
    told = wbengine(*words, "--persistence", url)
    if words in OF_ANY_VERSION:
        assert told.code == OF_ANY_VERSION[words]
    else:
        unavailable(told, "wbengine db upgrade")


@stored
def test_a_folder_that_cannot_be(words: Words, wbengine: Command, home: Path) -> None:
    (home / "file").write_text("")
    told = wbengine(*words, "--persistence", f"dir://{home}/file/flows")
    if words == ("flow", "run", FACTORY):
        unavailable(told, f"{home}/file")
    elif words != SHOWS:  # nothing was ever kept there
        assert told.code in (OF_A_STORE[words], 69) and len(told.err.splitlines()) <= 1


@stored
def test_a_damaged_store(words: Words, wbengine: Command, home: Path) -> None:
    (home / "flows.db").write_bytes(b"no database at all" * 1000)
    unavailable(wbengine(*words, "--persistence", f"sqlite:///{home}/flows.db"), "is damaged")


@stored
@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("postgrs://host/db", "did you mean 'postgresql'?"),
        ("sqlite:////tmp/x?max_retries=many", "max_retries"),
        ("dir://host/flows", "written with three slashes"),
    ],
)
def test_a_store_that_makes_no_sense(
    words: Words, url: str, said: str, wbengine: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = wbengine(*words, "--persistence", url)
    assert (told.code, told.out) == (2, "")
    assert "--persistence: " in told.error and said in told.error
    monkeypatch.setenv("WBENGINE_PERSISTENCE", url)
    told = wbengine(*words)
    assert told.code == 78 and "$WBENGINE_PERSISTENCE: " in told.error
