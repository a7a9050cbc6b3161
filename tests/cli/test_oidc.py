"""The table [oidc] in the settings of `wbengine dashboard`."""

from __future__ import annotations

import json
import signal
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.cli.conftest import Command

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
    answer = wbengine("dashboard", "--no-auth")
    assert answer.code == 2 and "no_auth cannot be used with oidc" in answer.error


def test_variable_contains_the_table(
    wbengine: Command, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WBENGINE_OIDC", json.dumps({**TABLE, "session": "never"}))
    answer = wbengine("dashboard", "--port", "0")
    assert answer.code == 78 and "$WBENGINE_OIDC: session must be a" in answer.error


def test_schema_describes_the_table(wbengine: Command) -> None:
    schema = wbengine("config", "schema").json["properties"]["oidc"]
    assert set(TABLE) < set(schema["properties"])
    assert "secret" not in json.dumps(wbengine("config", "show", "--json").json)
