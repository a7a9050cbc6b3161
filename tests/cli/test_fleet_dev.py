"""`wbengine dev` and `wbengine dashboard`: services, options and clean end at Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.cli.conftest import Command
from tests.support.workers import until
from wbengine._cli import dev_fleet
from wbengine._security import keys

WARES = """
from wbengine import task
from wbengine.patterns import linear_flow

class Price(task.Task):
    default_provides = "price"

    def execute(self):
        return 7

def order():
    return linear_flow.Flow("order").add(Price())
"""


@pytest.fixture
def wares(home: Path) -> Path:
    (home / "wares.py").write_text(WARES)
    return home


def page(address: str) -> int:
    try:
        # The redirect needs the cookie of the login.
        browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        with browser.open(address, timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def shown(wbengine: Command, uuid: str, *where: str) -> dict[str, object]:
    data: dict[str, object] = wbengine("flow", "show", uuid, "--json", *where).json
    return data


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    return process.returncode, err


def test_dev_runs_flows_in_one_database(
    wbengine: Command, wares: Path, postgresql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("dev", "wares", "--no-dashboard")
    process = wbengine.begin(*words, env={"WBENGINE_DEV_POSTGRESQL": postgresql_url})
    assert process.stdout is not None
    data = dict(process.stdout.readline().split() for _ in range(2))
    assert data["broker"] == data["persistence"]
    assert data["broker"].partition("@")[2] == postgresql_url.partition("@")[2]
    assert ":***@" in data["broker"]
    monkeypatch.setenv("WBENGINE_PERSISTENCE", postgresql_url)
    ran = wbengine("flow", "run", "wares:order", "--engine", "workers", "--json")
    assert ran.code == 0 and ran.json["results"]["price"] == 7, ran
    submitted = wbengine("flow", "submit", "wares:order", "--json").json["uuid"]
    until(lambda: shown(wbengine, submitted)["state"] == "SUCCESS")
    code, err = ended(process)
    assert code == 0
    assert "export WBENGINE_PERSISTENCE=URL  # the URL of --postgresql" in err and "***" not in err


def test_dev_refuses_other_database_and_folder_with_it(wbengine: Command, wares: Path) -> None:
    answer = wbengine("dev", "wares", "--postgresql", "mysql://db/flows")
    assert answer.code == 2 and answer.error.count("--postgresql") == 1, answer
    answer = wbengine("dev", "wares", "--postgresql", "redis://queues/0")
    assert answer.code == 2 and "must be the URL of a PostgreSQL database" in answer.error
    answer = wbengine("dev", "wares", "--folder", "x", "--postgresql", "postgresql:///flows")
    assert answer.code == 2 and "at most one of --folder and --postgresql" in answer.error


def test_dev_runs_flows_with_worker_conductor_and_dashboard(wbengine: Command, wares: Path) -> None:
    process = wbengine.begin("dev", "wares", "--port", "0", "--json")
    try:
        assert process.stdout is not None
        data = json.loads(process.stdout.readline())
        assert data["schema"] == "wbengine/dev/1"
        assert page(data["dashboard"]) == 200
        assert page(data["dashboard"].partition("?")[0]) in (401, 403)
        where = ("--url", data["broker"], "--persistence", data["persistence"])
        ran = wbengine("flow", "run", "wares:order", "--engine", "workers", "--json", *where)
        assert ran.code == 0 and ran.json["results"]["price"] == 7, ran

        submitted = wbengine("flow", "submit", "wares:order", "--json", *where).json["uuid"]
        until(lambda: shown(wbengine, submitted, *where)["state"] == "SUCCESS")

        def succeeded() -> int:
            (workers,) = wbengine("workers", "list", "--json", *where).json["workers"]
            assert workers["name"] == data["worker"]
            return int(workers["succeeded"])

        until(lambda: succeeded() == 2)
        folder = Path(data["broker"].partition("://")[2]).parent
        assert folder.is_dir()
    finally:
        code, err = ended(process)
    assert code == 0, err
    assert not folder.exists()


def test_dev_keeps_a_given_folder(wares: Path, home: Path) -> None:
    folder = str(home / "kept")
    with dev_fleet.DevServer("wares", folder=folder, port=None, concurrency=1) as shop:
        assert shop.login_url is None
        until(lambda: shop.worker.life.state == "idle")  # set with its first NOTIFY
    assert shop.worker.life.state == "dead"
    assert os.path.isdir(folder)


def test_dev_signs_with_configured_keys(
    wbengine: Command, wares: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine in another process with the same keys trusts the worker of `dev`."""
    file = wares / "keys.json"
    keys.write(file, keys.new()[keys.ANY])
    monkeypatch.setenv(keys.VARIABLE, str(file))
    monkeypatch.syspath_prepend(str(wares))
    with dev_fleet.DevServer("wares", port=None) as server:
        where = ("--url", server.url, "--persistence", server.persistence)
        ran = wbengine("flow", "run", "wares:order", "--engine", "workers", "--json", *where)
        assert ran.json["results"]["price"] == 7 and server.keys == str(file)


def test_dev_does_not_sign_with_keys_of_one_role(wares: Path) -> None:
    for role, content in keys.new(per_role=True).items():
        keys.write(wares / role, content)
    with dev_fleet.DevServer("wares", port=None, keys=wares / keys.ENGINE) as server:
        assert server.keys == keys.NONE


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("no_such_module",), 2, "no_such_module"),
        (("json",), 2, "json"),
        ((), 2, "MODULE"),
    ],
)
def test_dev_without_valid_module_is_refused(
    wbengine: Command, home: Path, words: tuple[str, ...], code: int, message: str
) -> None:
    answer = wbengine("dev", *words, "--no-dashboard")
    assert (answer.code, answer.out) == (code, "")
    assert message in answer.error


def test_port_in_use_is_reported(wbengine: Command, wares: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        answer = wbengine("dev", "wares", "--port", port)
        assert answer.code == 69 and port in answer.error
        other = wbengine("dashboard", "--port", port)
        assert other.code == 69 and port in other.error


def test_dashboard_serves_with_token_from_file(wbengine: Command, home: Path) -> None:
    (home / "token").write_text("a-token-that-is-long-enough-0123456789\n")
    process = wbengine.begin(
        "dashboard", "--port", "0", "--token-file", "token",
        "--url", f"filesystem://{home}/broker", "--persistence", f"sqlite:///{home}/flows.db",
    )  # fmt: skip
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        assert line.startswith("Dashboard: http://127.0.0.1:")
        address = line.split()[1]
        assert address.endswith("?token=a-token-that-is-long-enough-0123456789")
        assert page(address) == 200
        assert page(address.partition("?")[0]) in (401, 403)
    finally:
        code, err = ended(process)
    assert code == 0, err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("--token", "x", "--token-file", "y"),
            "at most one of --no-auth, --token, --token-file and --users can be used",
        ),
        (("--users", "users"), "users: line 1: must have a name, a role and a token, got 2 words"),
        (("--token", "x", "--no-auth"), "at most one of --no-auth, --token"),
        (("--token-file", "nothing"), "cannot read nothing"),
        (("--host", "0.0.0.0", "--no-auth"), "0.0.0.0"),
        (("--port", "70000"), "--port"),
    ],
)
def test_wrong_dashboard_command_is_refused(
    wbengine: Command, home: Path, words: tuple[str, ...], message: str
) -> None:
    (home / "users").write_text("ann admin\n")
    answer = wbengine("dashboard", *words)
    assert (answer.code, answer.out) == (2, "")
    assert message in answer.error
