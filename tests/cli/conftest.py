"""The command, called in this process or in one of its own, in folders of its own."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.waiting import until
from wbengine.cli import app

#: Seconds that a broker or a store may take to answer.
PATIENCE = 50.0

ORDER = "tests.cli.shop:order"
SLOW = "tests.cli.shop:slow"


@dataclasses.dataclass(frozen=True)
class Answer:
    """What a call of the command came to."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def json_error(self) -> Any:
        """What stands on the standard error, as its only line."""
        return json.loads(self.err)

    @property
    def lines(self) -> list[Any]:
        """Of JSON Lines."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def error(self) -> str:
        """The one line of an error; there must be no other."""
        (line,) = self.err.splitlines()
        return line


class Command:
    """Calls `wbengine`; what it keeps goes to `folder`."""

    def __init__(self, folder: Path, capture: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self._capture = capture
        self._begun: list[subprocess.Popen[str]] = []

    def __call__(self, *words: str) -> Answer:
        """In this process."""
        self._capture.readouterr()
        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            code = app.main([str(word) for word in words])
        except SystemExit as error:  # of a worker, which is a command of its own, too
            code = int(str(error.code))
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        out, err = self._capture.readouterr()
        return Answer(code, out, err)

    def begin(self, *words: str, env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        """In a process of its own, which ends with the test."""
        process = subprocess.Popen(
            [sys.executable, "-m", "wbengine", *map(str, words)],
            cwd=self.folder,
            env={**os.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._begun.append(process)
        return process

    def apart(self, *words: str, env: Mapping[str, str] | None = None) -> Answer:
        """As `begin`, to its end."""
        process = self.begin(*words, env=env)
        out, err = process.communicate(timeout=60)
        return Answer(process.returncode, out, err)

    def close(self) -> None:
        """End what was begun."""
        (self.folder / "go").touch()  # what is detached ends as well
        for process in self._begun:
            process.kill()
            with process:  # waits for it, and closes its pipes
                pass


def appears(path: Path) -> None:
    until(path.exists)


def slow_flow(
    wbengine: Command, *words: str, env: Mapping[str, str] | None = None
) -> subprocess.Popen[str]:
    """A flow that runs in a process of its own, and is in its first task until there is `go`."""
    process = wbengine.begin("flow", "run", SLOW, *words, env=env)
    appears(wbengine.folder / "reserve.begun")
    return process


def state(wbengine: Command, flow: str) -> str:
    return str(wbengine("flow", "show", flow, "--json").json["state"])


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to be in, and a user who has set nothing but patience."""
    folder = tmp_path / "here"
    folder.mkdir()
    for name in [name for name in os.environ if name.startswith("WBENGINE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("STATE", "CONFIG"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    # What is there may be slow; who waits for what never comes says for how long.
    monkeypatch.setenv("WBENGINE_TIMEOUT", str(PATIENCE))
    root = str(Path(app.__file__).parents[2])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([root, os.environ.get("PYTHONPATH", "")]))
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    return folder


@pytest.fixture
def quiet_store(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands keep flows in a folder, and remark nothing."""
    monkeypatch.setenv("WBENGINE_PERSISTENCE", f"dir://{home}/flows")
    monkeypatch.setenv("WBENGINE_QUIET", "true")


@pytest.fixture
def wbengine(home: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Command]:
    made = Command(home, capsys)
    yield made
    made.close()
