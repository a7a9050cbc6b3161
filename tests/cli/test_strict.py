"""Files with secrets that other users can read: reported, and refused with `--strict`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.cli.conftest import Command
from wbengine._security import keys

URL = "redis://flows:nightingale@127.0.0.1:1/0"


def plant(what: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create a file with secrets that the command uses and that others can read."""
    path = home / "secret"
    path.write_text("sqlite:///flows.db" if what == "store" else URL)
    settings = home / "wbengine.toml"
    if what == "settings":
        path = settings
        settings.write_text(f'ledger = "{URL}"\n')
    elif what == "variable":
        monkeypatch.setenv("WBENGINE_LEDGER_FILE", str(path))
    elif what == "token":
        monkeypatch.setenv("WBENGINE_DASHBOARD_TOKEN_FILE", str(path))
    elif what == "notify":
        to = f'{{x = {{type = "slack", url_file = "{path}"}}}}'
        settings.write_text(f"notify = {{to = {to}}}\n")
    elif what == "oidc":
        settings.write_text(f'oidc = {{client_secret_file = "{path}"}}\n')
    elif what == "users":
        settings.write_text(f'[dashboard]\nusers = "{path}"\n')
    elif what == "keys":
        path.unlink()
        (content,) = keys.new().values()
        keys.write(path, content)
        monkeypatch.setenv(keys.VARIABLE, str(path))
    else:
        path = home / "flows.db"
        path.touch()
        monkeypatch.setenv("WBENGINE_PERSISTENCE", f"sqlite:///{path}")
    path.chmod(0o644)
    return path


KINDS = ("settings", "variable", "token", "users", "notify", "oidc", "keys", "store")
COMMANDS = {
    "worker": ("worker", "t", "--tasks", "tests.support.worker_tasks", "--burst"),
    "serve": ("serve",),
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("kind", KINDS)
def test_strict_command_refuses_secret_files_that_others_can_read(
    kind: str, command: str, wbengine: Command, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = plant(kind, home, monkeypatch)
    answer = wbengine(*COMMANDS[command], "--strict", "--url", f"filesystem://{home}/broker")
    assert answer.code == 78
    assert (
        f"--strict: other users can read {path}, " in answer.error and "(mode 0644)" in answer.error
    )
    assert f"chmod go-rwx {path}" in answer.error
    assert "nightingale" not in answer.error


@pytest.mark.parametrize("kind", KINDS)
def test_doctor_reports_secret_files_and_fails_only_with_strict(
    kind: str, wbengine: Command, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = plant(kind, home, monkeypatch)
    words = ("doctor", "--json", "--url", f"filesystem://{home}/broker", "--timeout", "1")
    for strict, good in (((), None), (("--strict",), False)):
        findings = wbengine(*words, *strict).json["findings"]
        (file_findings,) = [one for one in findings if one["check"] == "files"]
        assert (file_findings["good"], file_findings["fix"]) == (good, f"chmod go-rwx {path}")
        assert str(path) in file_findings["text"]
    assert os.stat(path).st_mode & 0o777 == 0o644  # the mode is not changed
    path.chmod(0o600)
    findings = wbengine(*words, "--strict").json["findings"]
    assert not [one for one in findings if one["check"] == "files"]


def test_strict_accepts_readable_files_without_secrets(wbengine: Command, home: Path) -> None:
    (home / "wbengine.toml").write_text('url = "redis://queues/0"\ninclude = []\n')
    (home / "wbengine.toml").chmod(0o644)
    answer = wbengine("worker", "t", "--tasks", "tests.support.worker_tasks", "--burst", "--strict",
                    "--url", f"filesystem://{home}/broker")  # fmt: skip
    assert answer.code == 0, answer


def test_strict_worker_starts_with_private_files(
    wbengine: Command, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant("token", home, monkeypatch).chmod(0o600)
    answer = wbengine("worker", "t", "--tasks", "tests.support.worker_tasks", "--burst", "--strict",
                    "--url", f"filesystem://{home}/broker")  # fmt: skip
    assert answer.code == 0, answer


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of others")
def test_secret_file_that_others_can_change_is_reported(
    wbengine: Command, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = plant("token", home, monkeypatch)
    path.chmod(0o620)
    answer = wbengine("worker", "t", "--tasks", "x", "--strict", "--url", f"filesystem://{home}/b")
    assert f"other users can change {path}" in answer.error
