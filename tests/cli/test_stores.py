"""Each command against a store that is down, silent, empty, or of a newer version."""

from __future__ import annotations

import socket
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Command
from wbengine.persistence import backends
from wbengine.persistence.backends.sql import tables

UNKNOWN = "12345678-1234-4123-8123-123456789012"

#: Commands that look for a flow.
OF_A_FLOW = (
    ("flow", "show", UNKNOWN),
    ("flow", "watch", UNKNOWN),
    ("flow", "events", UNKNOWN),
    ("flow", "export", UNKNOWN),
    ("flow", "delete", UNKNOWN, "--yes"),
    ("flow", "resume", UNKNOWN),
    ("flow", "suspend", UNKNOWN),
    ("flow", "cancel", UNKNOWN),
    ("flow", "revert", UNKNOWN, "--yes"),
    ("flow", "retry", UNKNOWN),
    ("graph", "--flow-id", UNKNOWN),
)
COMMANDS = (*OF_A_FLOW, ("flow", "ls"), ("flow", "run", "tests.operations.flows:steps"))


def name(words: tuple[str, ...]) -> str:
    return " ".join(word for word in words[:2] if not word.startswith("--"))


every = pytest.mark.parametrize("words", COMMANDS, ids=name)


@pytest.fixture(autouse=True)
def quickly() -> Iterator[None]:
    began = time.monotonic()
    yield
    assert time.monotonic() - began < 10


@every
def test_down(words: tuple[str, ...], wbengine: Command) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    url = f"postgresql://me:canary@127.0.0.1:{port}/flows"
    told = wbengine(*words, "--persistence", url)
    assert (told.code, told.out) == (69, "")
    assert f"port {port} failed: Connection refused" in told.error
    assert "canary" not in told.err


@pytest.mark.parametrize("kind", ["amqp", "redis"])
@pytest.mark.parametrize("silent", [True, False])
def test_a_broker_that_is_down(kind: str, silent: bool, wbengine: Command) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        if not silent:
            server.close()
        url = f"{kind}://me:canary@127.0.0.1:{port}/"
        told = wbengine("flow", "run", *COMMANDS[-1][2:], "--engine", "workers", "--url", url,
            "--timeout", "1.5")  # fmt: skip
    assert (told.code, told.out) == (69, "")
    assert f"127.0.0.1:{port}" in told.error and "canary" not in told.err
    assert wbengine("flow", "ls", "--json").json["flows"] == []


@every
def test_silent(words: tuple[str, ...], wbengine: Command) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"mysql://me:canary@127.0.0.1:{server.getsockname()[1]}/flows"
        told = wbengine(*words, "--persistence", url, "--timeout", "0.3")
    assert (told.code, told.out) == (69, "")
    assert told.error.endswith("error: the store does not answer within 0.3 s")


@every
def test_a_folder_that_cannot_be(words: tuple[str, ...], wbengine: Command, home: Path) -> None:
    (home / "file").write_text("")
    told = wbengine(*words, "--persistence", f"dir://{home}/file/flows")
    if words[:2] == ("flow", "run"):
        assert told.code == 69 and f"{home}/file" in told.error
    else:  # nothing was ever kept there
        assert told.code in (0, 66, 69)


@every
@pytest.mark.parametrize("kind", ["sqlite", "dir"])
def test_empty(words: tuple[str, ...], kind: str, wbengine: Command, home: Path) -> None:
    slashes = "///" if kind == "sqlite" else "//"
    told = wbengine(*words, "--persistence", f"{kind}:{slashes}{home}/flows")
    if words in OF_A_FLOW:
        assert (told.code, told.out) == (66, "")
        assert told.error.endswith(f"There is no flow '{UNKNOWN}': the store holds none")
    else:
        assert told.code == 0


@every
def test_of_a_newer_version(words: tuple[str, ...], wbengine: Command, home: Path) -> None:
    url = f"sqlite:///{home}/flows.db"
    with backends.backend(url):
        pass
    with sqlite3.connect(home / "flows.db") as connection:
        connection.execute(f"UPDATE {tables.VERSION_TABLE} SET version_num = '9999'")
    told = wbengine(*words, "--persistence", url)
    assert (told.code, told.out) == (69, "")
    assert "revision 9999, made by a newer version of wbengine" in told.error


@every
def test_of_an_older_version(words: tuple[str, ...], wbengine: Command, home: Path) -> None:
    """Who runs flows brings it up to date; who only looks says how to."""
    from wbengine.persistence.backends.sql import backend, layout

    url = f"sqlite:///{home}/flows.db"
    made = backend.SQLBackend({"connection": url})
    layout.upgrade(made.engine, layout.REVISIONS[0])
    made.close()
    told = wbengine(*words, "--persistence", url)
    if words[:2] == ("flow", "run"):
        assert told.code == 0
    elif words[:2] in (("flow", "resume"), ("flow", "retry")):
        assert told.code == 66
    else:
        assert (told.code, told.out) == (69, "")
        assert "wbengine db upgrade" in told.error


@every
@pytest.mark.parametrize(
    ("url", "words_of_error"),
    [
        ("postgrs://host/db", "did you mean 'postgresql'?"),
        ("sqlite:////tmp/x?max_retries=many", "max_retries"),
        ("dir://host/flows", "written with three slashes"),
    ],
)
def test_not_understood(
    words: tuple[str, ...],
    url: str,
    words_of_error: str,
    wbengine: Command,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = wbengine(*words, "--persistence", url)
    assert (told.code, told.out) == (2, "")
    assert "--persistence: " in told.error and words_of_error in told.error
    monkeypatch.setenv("WBENGINE_PERSISTENCE", url)
    told = wbengine(*words)
    assert told.code == 78 and "$WBENGINE_PERSISTENCE: " in told.error
