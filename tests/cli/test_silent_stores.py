"""A store that goes silent, or is slow, while commands use it."""

from __future__ import annotations

import subprocess
import threading
from pathlib import Path
from typing import IO, Any

import pytest

from tests.cli.conftest import Command, appears
from tests.support import servers, tcp_proxy
from tests.support.workers import until

FLOW = "12345678-1234-4123-8123-123456789012"

#: Seconds that an answer may take: so many that no busy host is taken for a silent store.
PATIENCE = ("--timeout", "6")
#: A lease that is not over while the store is silent, however long a busy host takes over that.
LASTING = "serial://?lease=600"


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """The exit code, and what was said of the end."""
    _, err = process.communicate(timeout=60)
    return process.returncode, err.splitlines()[-1]


class Notes:
    """What a process says on its standard error, line by line, as it comes."""

    def __init__(self, stream: IO[str]) -> None:
        self.lines: list[str] = []
        threading.Thread(target=self._read, args=(stream,), daemon=True).start()

    def _read(self, stream: IO[str]) -> None:
        for line in stream:
            self.lines.append(line.rstrip())

    def last(self) -> str:
        return self.lines[-1] if self.lines else ""


def test_silent_store_ends_watch_and_wait_but_run_goes_on_when_it_answers(
    wbengine: Command,
    home: Path,
    postgresql_server: servers.Server,
    postgresql_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`flow watch` and `flow suspend --wait` end; `flow run` says why nothing happens, and goes on.
    A command that waits for long, of a store that answers, is not ended by that.
    """
    monkeypatch.setenv("WBENGINE_PERSISTENCE", postgresql_url)
    assert wbengine("db", "upgrade").code == 0

    def wish() -> Any:
        return wbengine("flow", "show", FLOW, "--json").json["wish"]

    def through(proxy: tcp_proxy.Proxy) -> tuple[str, ...]:
        url = postgresql_url.replace(f":{postgresql_server.port}/", f":{proxy.port}/")
        return "--persistence", url, *PATIENCE

    with (
        tcp_proxy.threaded(postgresql_server.port) as runs,
        tcp_proxy.threaded(postgresql_server.port) as looks,
    ):
        run = ("flow", "run", "tests.cli.shop:slow", "--flow-id", FLOW, "--engine", LASTING)
        running = wbengine.begin(*run, *through(runs))
        appears(home / "reserve.begun")
        watching = wbengine.begin("flow", "watch", FLOW, *through(looks))
        assert watching.stdout is not None and running.stderr is not None
        assert "RUNNING" in watching.stdout.readline()
        notes = Notes(running.stderr)
        runs.stall()  # now it hears of no wish
        suspend = ("flow", "suspend", FLOW, "--wait")
        asking = wbengine.begin(*suspend, "1m", *through(looks))
        until(wish)
        looks.stall()
        until(lambda: notes.last().startswith("waiting for the store"))
        assert "postgresql://" in notes.last() and ":***@" in notes.last()
        runs.resume()
        until(lambda: notes.last() == "the store answers again")
        patient = wbengine.begin(*suspend, "8", *PATIENCE)
        silent = "the store does not answer within 6 s"
        assert ended(asking) == (69, f"wbengine flow suspend: error: {silent}")
        assert ended(watching) == (69, f"wbengine flow watch: error: {silent}")
        assert ended(patient)[0] == 75
        until(lambda: wish() is None)
        (home / "go").touch()
        assert running.wait(60) == 75
