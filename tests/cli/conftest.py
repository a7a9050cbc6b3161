"""The command, called in this process or in a separate one, in private folders."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support import python
from tests.support.waiting import until
from wbengine._cli import app
from wbengine._concurrency import fork_signals

#: Timeout in seconds for a broker or a store.
PATIENCE = 50.0

ORDER = "tests.cli.shop:order"
SLOW = "tests.cli.shop:slow"


@dataclasses.dataclass(frozen=True)
class Answer:
    """Exit code and output of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def json_error(self) -> Any:
        """The only line on standard error, parsed."""
        return json.loads(self.err)

    @property
    def lines(self) -> list[Any]:
        """Standard output, parsed as JSON Lines."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def error(self) -> str:
        """The only line on standard error."""
        (line,) = self.err.splitlines()
        return line


class Command:
    """Caller of `wbengine` whose files are in `folder`."""

    def __init__(self, folder: Path, capture: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self._capture = capture
        self._begun: list[subprocess.Popen[str]] = []

    def __call__(self, *words: str) -> Answer:
        """Run in this process."""
        self._capture.readouterr()
        before = {number: signal.getsignal(number) for number in fork_signals.NUMBERS}
        try:
            code = app.main([str(word) for word in words])
        except SystemExit as error:  # the worker is also a separate program
            code = int(str(error.code))
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        out, err = self._capture.readouterr()
        return Answer(code, out, err)

    def begin(
        self, *words: str, env: Mapping[str, str] | None = None, real: bool = False
    ) -> subprocess.Popen[str]:
        """Start in a separate process that ends with the test."""
        process = python.start(
            ["-m", "wbengine", *map(str, words)],
            real=real,
            cwd=self.folder,
            env={**os.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._begun.append(process)
        return process

    def apart(
        self, *words: str, env: Mapping[str, str] | None = None, real: bool = False
    ) -> Answer:
        """Run in a separate process."""
        process = self.begin(*words, env=env, real=real)
        out, err = process.communicate(timeout=60)
        return Answer(process.returncode, out, err)

    def close(self) -> None:
        """End the started processes."""
        (self.folder / "go").touch()  # detached flows end as well
        for process in self._begun:
            process.kill()
            with process:  # waits for it, and closes its pipes
                pass


def appears(path: Path) -> None:
    until(path.exists)


def slow_flow(
    wbengine: Command, *words: str, env: Mapping[str, str] | None = None
) -> subprocess.Popen[str]:
    """Start a flow in a separate process; its first task runs until `go` exists."""
    process = wbengine.begin("flow", "run", SLOW, *words, env=env)
    appears(wbengine.folder / "reserve.begun")
    return process


def state(wbengine: Command, flow: str) -> str:
    return str(wbengine("flow", "show", flow, "--json").json["state"])


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Enter an empty folder as a user without settings, except for a long timeout."""
    folder = tmp_path / "here"
    folder.mkdir()
    for name in [name for name in os.environ if name.startswith("WBENGINE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("STATE", "CONFIG"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    # The host may be slow. A test that waits for a timeout sets a shorter one.
    monkeypatch.setenv("WBENGINE_TIMEOUT", str(PATIENCE))
    root = str(Path(app.__file__).parents[2])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([root, os.environ.get("PYTHONPATH", "")]))
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    return folder


@pytest.fixture
def quiet_store(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Store flows in a folder and suppress notes."""
    monkeypatch.setenv("WBENGINE_PERSISTENCE", f"dir://{home}/flows")
    monkeypatch.setenv("WBENGINE_QUIET", "true")


@pytest.fixture
def wbengine(home: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Command]:
    command = Command(home, capsys)
    yield command
    command.close()
