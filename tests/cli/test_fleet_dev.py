"""`wbengine dev` and `dashboard`: services, options, sign-in and clean end at Ctrl-C."""

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


def test_port_in_use_is_reported(wbengine: Command, wares: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        wbengine.fails(69, port, "dev", "wares", "--port", port)
        wbengine.fails(69, port, "dashboard", "--port", port)


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


TABLE = {
    "issuer": "https://login.example.com",
    "client_id": "wbengine",
    "client_secret_file": "secret",
    "dashboard_url": "https://flows.example.com",
    "default_role": "viewer",
}


@pytest.fixture(autouse=True)
def secret(home: Path) -> None:
    (home / "secret").write_text("nightingale-nightingale\n")
    (home / "secret").chmod(0o600)


def write(home: Path, **changes: object) -> None:
    table = {**TABLE, **changes}
    lines = (f"{name} = {json.dumps(value)}" for name, value in table.items() if value is not None)
    (home / "wbengine.toml").write_text("\n".join(["[oidc]", *lines, ""]))


def test_dashboard_with_a_provider_prints_no_token(wbengine: Command, home: Path) -> None:
    write(home)
    process = wbengine.begin("dashboard", "--port", "0", "--persistence", f"sqlite:///{home}/f.db",
                             "--url", f"filesystem://{home}/broker")  # fmt: skip
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        assert line.startswith("Dashboard: http://127.0.0.1:") and "token" not in line
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(line.split()[1], timeout=60)
        with refused.value:
            assert refused.value.code == 401
            assert b"Sign in with login.example.com" in refused.value.read()
    finally:
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"issuer": None}, "oidc: Option issuer must be a non-empty string"),
        ({"issuer": "http://login.example.com"}, "issuer must be a URL of https"),
        ({"client_secret_file": None}, "client_secret_file or client_secret_variable is required"),
        ({"client_secret_file": "none"}, "cannot read 'none': No such file"),
        ({"client_secret": "x"}, "unknown key 'client_secret' (did you mean"),
        ({"default_role": "viewr"}, "(did you mean 'viewer'?)"),
        ({"default_role": None}, "roles or default_role is required"),
        ({"roles": [7]}, "oidc.roles.0: 7 is not of type 'object'"),
        ({"session": "1y"}, "session must be a duration"),
    ],
)
def test_invalid_settings_are_reported(
    wbengine: Command, home: Path, changes: dict[str, object], reason: str
) -> None:
    write(home, **changes)
    answer = wbengine("dashboard", "--port", "0")
    assert answer.code == 78 and "wbengine.toml: oidc" in answer.error, answer
    assert reason in answer.error and "nightingale" not in answer.err


def test_no_auth_cannot_be_used_with_a_provider(wbengine: Command, home: Path) -> None:
    write(home)
    wbengine.fails(2, "no_auth cannot be used with oidc", "dashboard", "--no-auth")


def test_variable_contains_the_table(wbengine: Command) -> None:
    wbengine.setenv("WBENGINE_OIDC", json.dumps({**TABLE, "session": "never"}))
    wbengine.fails(78, "$WBENGINE_OIDC: session must be a", "dashboard", "--port", "0")


def test_schema_describes_the_table(wbengine: Command) -> None:
    schema = wbengine("config", "schema").json["properties"]["oidc"]
    assert set(TABLE) < set(schema["properties"])
    assert "secret" not in json.dumps(wbengine("config", "show", "--json").json)
