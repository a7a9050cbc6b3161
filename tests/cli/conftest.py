"""The command, called in this process or in a separate one, in private folders."""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from tests.support import python
from tests.support.waiting import until
from wbengine._cli import app
from wbengine._concurrency import fork_signals
from wbengine.persistence import backends, base

#: Timeout in seconds for a broker or a store.
PATIENCE = 50.0

Words = tuple[str, ...]

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

    def __init__(
        self, folder: Path, capture: pytest.CaptureFixture[str], patch: pytest.MonkeyPatch
    ) -> None:
        self.folder = folder
        self._capture = capture
        self._patch = patch
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

    def setenv(self, name: str, value: str) -> None:
        """Set a variable until the end of the test."""
        self._patch.setenv(name, value)

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

    def fails(self, code: int, message: str, *words: str) -> None:
        """Run a command that must print one line with this message, and have this exit code."""
        answer = self(*words)
        assert (answer.code, answer.out) == (code, ""), answer
        assert message in answer.error

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
def store_url(home: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Store flows in a database, and return its URL."""
    url = f"sqlite:///{home}/flows.db"
    monkeypatch.setenv("WBENGINE_PERSISTENCE", url)
    return url


@pytest.fixture
def store(store_url: str) -> Iterator[base.Backend]:
    """Open the database in which commands store flows."""
    with backends.backend(store_url) as opened:
        yield opened


@pytest.fixture
def words(home: Path, store_url: str) -> Words:
    """Return the option for the place of large values."""
    return "--payloads", str(home / "payloads")


def opened(words: Words) -> AbstractContextManager[base.Backend]:
    """Open the store of the commands, with the place of large values."""
    url = os.environ["WBENGINE_PERSISTENCE"]
    return backends.backend({"connection": url, "payloads": words[1]})


@pytest.fixture
def edited_code(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Delete imported modules of the current folder at the end."""
    # An edited file may have the size and the time of the file before it.
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield
    for path in home.glob("*.py"):
        sys.modules.pop(path.stem, None)


def write_module(name: str, text: str | None) -> None:
    """Write a module in the current folder, which is imported again; None deletes it."""
    path = Path(f"{name}.py")
    if text is None:
        path.unlink()
    else:
        path.write_text(text, encoding="utf-8")
    sys.modules.pop(name, None)
    importlib.invalidate_caches()


@pytest.fixture
def wbengine(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Command]:
    command = Command(home, capsys, monkeypatch)
    yield command
    command.close()
