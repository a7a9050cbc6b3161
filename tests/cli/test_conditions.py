"""Each command with a broker or store that is down, silent, empty or of another version.

Each prints one line and ends soon with the documented exit code. Services that a command does not
need are unreachable, so that an attempt to connect fails.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import socket
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from tests.cli.commands import ALL, UNKNOWN, generated
from tests.cli.conftest import Answer, Command
from tests.support import servers
from tests.support.later_layout import later_release
from wbengine.persistence import backends
from wbengine.persistence.backends._sql import schema_revisions, tables

FACTORY = "tests.operations.flows:steps"

Words = tuple[str, ...]

#: Commands that need a broker, with their exit code for a broker without workers.
OF_A_BROKER: dict[Words, int] = {
    ("workers", "list"): 69,
    ("workers", "show", "w"): 66,
    ("workers", "ping"): 69,
    ("workers", "drain", "w"): 66,
    ("workers", "stop", "w"): 66,
    ("workers", "suspend", "--all"): 69,
    ("workers", "resume", "--all"): 69,
    ("status",): 69,
    ("queues", "list"): 0,
    ("queues", "list", "--requests"): 0,
    ("queues", "purge", "q", "--yes"): 66,
}
#: A worker, which would not end.
SERVES: Words = ("worker", "t", "--tasks", "tests.support.worker_tasks")

#: Commands that need a store, with their exit code for an empty store.
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
    ("flow", "get", UNKNOWN): 66,
    ("flow", "debug", UNKNOWN): 66,
    ("flow", "record", UNKNOWN): 66,
    ("flow", "diff", UNKNOWN, UNKNOWN): 66,
    ("deploy", "check"): 0,
    ("flow", "assign", "--from-code", "v43", "--to-code", "v42", "--yes"): 2,
    ("graph", "--flow-id", UNKNOWN): 66,
    ("flow", "list"): 0,
    ("flow", "run", FACTORY): 0,
    ("db", "create"): 0,
    ("db", "upgrade"): 0,
    ("db", "current"): 0,
    ("db", "check"): 69,
    ("flow", "prune", "--older-than", "30d", "--yes"): 0,
    ("schedule", "list"): 0,
    ("limits",): 0,
    ("limits", "list"): 0,
    ("limits", "set", "shop.charge", "5/s"): 0,
    ("limits", "unset", "shop.charge"): 66,
    ("jobs",): 0,
    ("jobs", "list"): 0,
    ("jobs", "keys", "default"): 0,
    ("jobs", "pause", "reports"): 0,
    ("jobs", "resume", "reports"): 66,
    ("bulk", "list"): 0,
    ("bulk", "show", UNKNOWN): 66,
    ("bulk", "resume", UNKNOWN): 66,
    ("bulk", "cancel", UNKNOWN): 66,
    ("tasks", "list"): 0,
    ("tasks", "pause", "shop.charge"): 0,
    ("tasks", "resume", "shop.charge"): 66,
    ("access", "new", "ci"): 0,
    ("access", "list"): 0,
    ("access", "show", "ci"): 66,
    ("access", "rotate", "ci"): 66,
    ("access", "revoke", "ci"): 66,
    ("schedule", "pause", "s"): 66,
    ("schedule", "resume", "s"): 66,
    ("schedule", "run", "s"): 66,
    ("schedule", "backfill", "s", "--from", "1h"): 66,
    ("schedule", "delete", "s"): 66,
}
#: Generated commands of flows need no line.
OF_A_STORE |= {
    words: 66
    for words in generated("flow")
    if not any(words[:2] == listed[:2] for listed in OF_A_STORE)
}
#: Commands that create a missing store, or report it as missing.
OF_NO_STORE: set[Words] = {
    ("flow", "run", FACTORY),
    ("db", "create"),
    ("db", "upgrade"),
    ("db", "current"),
    ("tasks", "pause", "shop.charge"),
    ("limits", "set", "shop.charge", "5/s"),
    ("jobs", "pause", "reports"),
    ("access", "new", "ci"),
}
#: Commands that upgrade a store or only print its version, and so accept an older one.
OF_ANY_VERSION = OF_NO_STORE | {("flow", "resume", UNKNOWN), ("flow", "retry", UNKNOWN)}
#: The dashboard, which would not end.
SHOWS: Words = ("dashboard", "--port", "0")

#: Commands that need neither.
OF_NOBODY: tuple[Words, ...] = (
    ("graph", FACTORY),
    ("flow", "schema", FACTORY),
    ("plugins", "list"),
    ("config", "show"),
    ("config", "path"),
    ("config", "schema"),
    ("completion", "bash"),
)
#: Commands with separate tests.
ELSEWHERE: tuple[Words, ...] = (
    ("doctor",), ("dev",), ("serve",), ("db", "move"), ("flow", "import"), ("flow", "submit"),
    ("queues", "retry"), ("schedule", "add"), ("keys", "new"), ("keys", "show"), ("keys", "rotate"),
    ("mcp",), ("notify", "test"), ("db", "sweep"), ("db", "reencrypt"),
)  # fmt: skip

NOWHERE = "127.0.0.1:1"
DOWN = {"url": f"redis://me:canary@{NOWHERE}/0", "store": f"mysql://me:canary@{NOWHERE}/flows"}


def name(words: Words) -> str:
    return " ".join(word for word in words[:3] if not word.startswith("-") and word != UNKNOWN)


brokered = pytest.mark.parametrize("words", [*OF_A_BROKER, SERVES], ids=name)
stored = pytest.mark.parametrize("words", [*OF_A_STORE, SHOWS], ids=name)


@pytest.fixture(scope="module", autouse=True)
def loaded() -> None:
    """Import slow modules once."""
    for module in ("_message_queues", "_ledgers"):
        importlib.import_module(f"wbengine.fleet.{module}")
    for module in ("worker", "dashboard", "diagnosis._examining"):
        importlib.import_module(f"wbengine.{module}")
    for module in ("redis", "pymysql", "alembic.command", "psycopg"):
        importlib.import_module(module)


@pytest.fixture(autouse=True)
def quickly(loaded: None) -> Iterator[None]:
    """Fail a test that takes 45 s: a hang takes longer, a timeout on a busy host does not."""
    began = time.monotonic()
    yield
    assert time.monotonic() - began < 45


@pytest.fixture(autouse=True)
def down(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Configure an unreachable broker and store."""
    monkeypatch.setenv("WBENGINE_URL", DOWN["url"])
    monkeypatch.setenv("WBENGINE_PERSISTENCE", DOWN["store"])


@pytest.fixture
def silent() -> Iterator[int]:
    """Yield the port of a server that accepts connections and sends nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def unavailable(answer: Answer, *texts: str) -> None:
    assert (answer.code, answer.out) == (69, "")
    for words in texts:
        assert words in answer.error
    assert "canary" not in answer.err


def test_every_command_is_covered() -> None:
    asked = {*OF_A_BROKER, SERVES, *OF_A_STORE, SHOWS, *OF_NOBODY, *ELSEWHERE}
    leaves = [path for path, command in ALL.items() if not isinstance(command, click.Group)]
    assert [path for path in leaves if not any(words[: len(path)] == path for words in asked)] == []


@pytest.mark.parametrize("words", OF_NOBODY, ids=name)
def test_command_without_store_or_broker_contacts_neither(words: Words, wbengine: Command) -> None:
    answer = wbengine(*words, "--quiet")
    assert (answer.code, answer.err) == (0, "") and "canary" not in answer.out


# Brokers. -----------------------------------------------------------------------------------------


@brokered
@pytest.mark.parametrize("kind", ["amqp", "redis"])
def test_unreachable_broker_is_reported(words: Words, kind: str, wbengine: Command) -> None:
    if kind == "amqp" and "--requests" in words:
        words = ("queues", "list", "some")  # without a ledger
    answer = wbengine(*words, "--url", f"{kind}://me:canary@{NOWHERE}/", "--timeout", "1")
    unavailable(answer, NOWHERE)
    assert "nothing listens there" in answer.err or "Connection refused" in answer.err


@brokered
def test_silent_broker_is_reported_after_the_timeout(
    words: Words, wbengine: Command, silent: int
) -> None:
    # The other commands connect in the same way.
    kind = "amqp" if words[0] in ("worker", "status") else "redis"
    url = f"{kind}://me:canary@127.0.0.1:{silent}/0"
    answer = wbengine(*words, "--url", url, "--timeout", "1")
    unavailable(answer, f"127.0.0.1:{silent}")


@brokered
def test_rejected_broker_password_is_reported(
    words: Words, wbengine: Command, redis_server: servers.Server, redis_url: str
) -> None:
    answer = wbengine(*words, "--url", str(redis_url).replace(redis_server.password, "canary"))
    unavailable(answer, "user or password" if "--requests" not in words else "invalid")


@pytest.mark.parametrize("words", OF_A_BROKER, ids=name)
def test_empty_broker_has_the_documented_exit_code(words: Words, wbengine: Command) -> None:
    answer = wbengine(*words, "--url", f"filesystem://{wbengine.folder}/broker", "--timeout", "0.2")
    assert answer.code == OF_A_BROKER[words]
    # `status` also reads the store, which is down.
    is_status = words == ("status",)
    assert answer.out.startswith("broker") if is_status else answer.out == ""
    lines = answer.err.splitlines()
    assert len([line for line in lines if "cannot read the store" not in line]) == 1


@pytest.mark.parametrize("state", ["down", "silent", "refuses"])
@pytest.mark.parametrize("command", ["run", "retry"])
def test_flow_does_not_start_without_its_broker(
    command: str, state: str, wbengine: Command, silent: int, request: pytest.FixtureRequest
) -> None:
    url = DOWN["url"] if state == "down" else f"amqp://me:canary@127.0.0.1:{silent}/"
    if state == "refuses":
        server = request.getfixturevalue("redis_server")
        url = str(request.getfixturevalue("redis_url")).replace(server.password, "canary")
    store = ("--persistence", f"dir://{wbengine.folder}/flows")
    words: Words = ("flow", "run", FACTORY)
    if command == "retry":
        (wbengine.folder / "broken").touch()
        flow = wbengine("flow", "run", "tests.cli.shop:order", "--quiet", *store).json["uuid"]
        words = ("flow", "retry", flow)
    # A port that refuses connections fails fast, even with a long timeout.
    timeout = "100" if state == "down" else "1"
    unavailable(wbengine(*words, *store, "--engine", "workers", "--url", url, "--timeout", timeout))
    answer = wbengine("flow", "list", "--json", *store)
    if command == "run":
        assert answer.code == 69 and "no store exists" in answer.json_error["error"]
    else:
        assert [flow["state"] for flow in answer.json["flows"]] == ["REVERTED"]


@pytest.mark.parametrize(
    ("words", "code"),
    [(("flow", "lss", "--json"), 2), (("--json", "flow", "show", UNKNOWN), 69)],
)
def test_error_is_json_with_the_json_option(words: Words, code: int, wbengine: Command) -> None:
    answer = wbengine(*words, "--persistence", f"sqlite:///{wbengine.folder}/none")
    assert (answer.code, answer.out) == (code, "")
    assert answer.json_error.keys() == {"schema", "command", "error", "code"}
    assert answer.json_error["schema"] == "wbengine/error/1" and answer.json_error["code"] == code


@pytest.mark.parametrize("ledger", ["nonsense://x", DOWN["url"], "dir:///dev/null/x"])
def test_unusable_ledger_is_reported(wbengine: Command, rowless_url: str, ledger: str) -> None:
    url = rowless_url
    answer = wbengine("queues", "list", "--requests", "--url", url, "--ledger", ledger)
    assert answer.out == "" and "canary" not in answer.error
    assert answer.code == (2 if ledger.startswith("nonsense") else 69)
    if answer.code == 69:
        answer = wbengine(*SERVES, "--url", url, "--ledger", ledger, "--quiet")
        assert answer.code == 69 and "canary" not in answer.error


@pytest.mark.parametrize(
    "words",
    [
        SERVES,
        ("queues", "list", "--requests"),
        ("db", "create"),
        ("flow", "run", FACTORY, "--engine", "worker-based"),
    ],
    ids=name,
)
def test_ledger_that_the_broker_does_not_use_is_refused(
    words: Words, wbengine: Command, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = "--url", f"filesystem://{home}/broker", "--persistence", f"sqlite:///{home}/flows.db"
    text = "uses only its own ledger, got "
    for ledger in ("none", f"dir://{home}/other"):
        wbengine.fails(2, f"{text}{ledger!r}", *words, *where, "--ledger", ledger)
    monkeypatch.setenv("WBENGINE_LEDGER", f"sqlite:///{home}/ledger.db")
    answer = wbengine(*words, *where)
    assert answer.code in (2, 78) and text in answer.error, answer


def test_broker_without_ledger_is_reported(wbengine: Command) -> None:
    answer = wbengine("queues", "list", "--requests", "--url", f"amqp://{NOWHERE}//")
    assert answer.code == 2 and "has no ledger; pass the URL" in answer.error


@pytest.mark.parametrize(
    "url", ["nonsense", "ampq://host", "amqp://host?no=1", "redis://host/zero", "memory://a b"]
)
@pytest.mark.parametrize("words", [("workers", "list"), SERVES, SHOWS], ids=name)
def test_invalid_url_is_refused(
    words: Words, url: str, wbengine: Command, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = f"sqlite:///{home}/flows.db"
    wbengine.fails(2, "--url", *words, "--url", url, "--persistence", store)
    monkeypatch.delenv("WBENGINE_URL")
    (home / "wbengine.toml").write_text(f'url = "{url}"\n')
    wbengine.fails(78, "wbengine.toml: url", *words, "--persistence", store)


# Stores. ------------------------------------------------------------------------------------------


@stored
@pytest.mark.parametrize("kind", ["postgresql", "mysql"])
def test_unreachable_store_is_reported(words: Words, kind: str, wbengine: Command) -> None:
    answer = wbengine(*words, "--persistence", f"{kind}://me:canary@{NOWHERE}/flows")
    unavailable(answer)
    assert "refused" in answer.err


@stored
def test_silent_store_is_reported_after_the_timeout(
    words: Words, wbengine: Command, silent: int
) -> None:
    url = f"mysql://me:canary@127.0.0.1:{silent}/flows"
    answer = wbengine(*words, "--persistence", url, "--timeout", "0.3")
    unavailable(answer, "error: the store did not answer within 0.3 s")


@pytest.mark.parametrize("words", OF_A_STORE, ids=name)
@pytest.mark.parametrize("kind", ["sqlite", "dir"])
def test_missing_named_store_is_an_error_and_is_not_created(
    words: Words, kind: str, wbengine: Command, home: Path
) -> None:
    url = f"{kind}:{'///' if kind == 'sqlite' else '//'}{home}/flows"
    answer = wbengine(*words, "--persistence", url)
    assert answer.code == (OF_A_STORE[words] if words in OF_NO_STORE else 69)
    if answer.code:
        assert answer.out == ""
        assert f"no store exists at {url}; create it with `wbengine db upgrade`" in answer.error
        assert not (home / "flows").exists()


def test_schema_version_is_read_once_and_logbooks_not_at_all(
    wbengine: Command, home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A command starts fast regardless of the size of the store."""
    place = f"sqlite:///{home}/kept.db?log_statements=yes"
    assert wbengine("flow", "run", FACTORY, "--persistence", place).code == 0
    caplog.clear()
    with caplog.at_level("DEBUG", "wbengine"):
        assert wbengine("flow", "list", "--persistence", place).code == 0
    asked = [record.getMessage() for record in caplog.records if "SELECT" in record.getMessage()]
    assert sum(f"FROM {tables.VERSION_TABLE}" in text for text in asked) == 1
    assert not [text for text in asked if "FROM wbe_logbooks" in text]


def test_missing_default_store_is_empty(wbengine: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WBENGINE_PERSISTENCE")
    answer = wbengine("flow", "list", "--json")
    assert (answer.code, json.loads(answer.out)["flows"]) == (0, [])
    assert "no store exists at dir://" in answer.err
    wbengine.fails(66, "the store contains no flows", "flow", "resume", UNKNOWN)


def newer_store(home: Path, oldest: str) -> str:
    """Return the URL of a store whose layout has a newer revision."""
    url = f"sqlite:///{home}/flows.db"
    with backends.backend(url):
        pass
    with contextlib.closing(sqlite3.connect(home / "flows.db")) as connection, connection:
        connection.execute(
            f"UPDATE {tables.VERSION_TABLE} SET version_num = '9999', oldest = ?", (oldest,)
        )
    return url


@stored
def test_incompatible_store_of_a_newer_version_is_refused(words: Words, wbengine: Command) -> None:
    answer = wbengine(*words, "--persistence", newer_store(wbengine.folder, oldest="9999"))
    if words == ("db", "current"):
        assert answer.code == 0 and "9999" in answer.out
    else:
        unavailable(answer, "revision 9999, and wbengine", ": use a newer version of wbengine")


@pytest.mark.parametrize("words", OF_A_STORE, ids=name)
def test_compatible_store_of_a_newer_version_is_used(
    words: Words, wbengine: Command, home: Path
) -> None:
    answer = wbengine(*words, "--persistence", newer_store(home, oldest=schema_revisions.HEAD))
    assert answer.code == (0 if words == ("db", "check") else OF_A_STORE[words])
    assert "9999" not in answer.err


@stored
def test_store_of_an_older_version_is_upgraded_or_refused_with_a_hint(
    words: Words, wbengine: Command, home: Path, tmp_path: Path
) -> None:
    """Commands that run flows upgrade the store; other commands print the upgrade command."""
    url = f"sqlite:///{home}/flows.db"
    with backends.backend(url):
        pass
    with later_release(tmp_path):
        answer = wbengine(*words, "--persistence", url)
    if words in OF_ANY_VERSION:
        assert answer.code == OF_A_STORE[words]
    else:
        unavailable(answer, "wbengine db upgrade")


@stored
def test_impossible_folder_is_reported(words: Words, wbengine: Command, home: Path) -> None:
    (home / "file").write_text("")
    answer = wbengine(*words, "--persistence", f"dir://{home}/file/flows")
    if words == ("flow", "run", FACTORY):
        unavailable(answer, f"{home}/file")
    elif words != SHOWS:  # the folder has never existed
        assert answer.code in (OF_A_STORE[words], 69) and len(answer.err.splitlines()) <= 1


@stored
def test_damaged_store_is_reported(words: Words, wbengine: Command, home: Path) -> None:
    (home / "flows.db").write_bytes(b"no database at all" * 1000)
    unavailable(wbengine(*words, "--persistence", f"sqlite:///{home}/flows.db"), "is damaged")


@stored
@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("postgrs://host/db", "did you mean 'postgresql'?"),
        ("sqlite:////tmp/x?max_retries=many", "max_retries"),
        ("dir://host/flows", "a folder with three slashes"),
    ],
)
def test_invalid_store_url_is_refused(
    words: Words, url: str, message: str, wbengine: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = wbengine(*words, "--persistence", url)
    assert (answer.code, answer.out) == (2, "")
    assert "--persistence: " in answer.error and message in answer.error
    monkeypatch.setenv("WBENGINE_PERSISTENCE", url)
    wbengine.fails(78, "$WBENGINE_PERSISTENCE: ", *words)
