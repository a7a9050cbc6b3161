"""A store that goes silent, or is slow, while commands use it."""

from __future__ import annotations

import contextlib
import os
import subprocess
from pathlib import Path
from typing import IO, Any

import pytest

from tests.cli.conftest import Command, appears
from tests.support import servers, tcp_proxy
from tests.support.workers import until

FLOW = "12345678-1234-4123-8123-123456789012"

#: Seconds that an answer may take: so many that no busy host is taken for a silent store.
PATIENCE = ("--timeout", "6")


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """The exit code, and what was said of the end."""
    _, err = process.communicate(timeout=60)
    return process.returncode, err.splitlines()[-1]


def forget(stream: IO[str]) -> None:
    """What has come by now: on a busy host, the store may have been slow before."""
    os.set_blocking(stream.fileno(), False)
    with contextlib.suppress(BlockingIOError):
        os.read(stream.fileno(), 65_536)
    os.set_blocking(stream.fileno(), True)


def test_silent_in_the_middle(
    wbengine: Command,
    home: Path,
    postgresql_server: servers.Server,
    postgresql_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever waits for a flow, or watches it, ends; whoever runs it says why nothing happens, and
    goes on.  Whoever takes long, of a store that answers, is not ended by that.
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
        run = ("flow", "run", "tests.cli.shop:slow", "--flow-id", FLOW)
        running = wbengine.begin(*run, *through(runs))
        appears(home / "reserve.begun")
        watching = wbengine.begin("flow", "watch", FLOW, *through(looks))
        assert watching.stdout is not None and running.stderr is not None
        assert "RUNNING" in watching.stdout.readline()
        forget(running.stderr)
        runs.stall()  # now it hears of no wish
        suspend = ("flow", "suspend", FLOW, "--wait")
        asking = wbengine.begin(*suspend, "1m", *through(looks))
        until(wish)
        looks.stall()
        said = running.stderr.readline()
        assert said.startswith("waiting for the store: postgresql://") and ":***@" in said
        runs.resume()
        assert running.stderr.readline() == "the store answers again\n"
        patient = wbengine.begin(*suspend, "8", *PATIENCE)
        silent = "the store does not answer within 6 s"
        assert ended(asking) == (69, f"wbengine flow suspend: error: {silent}")
        assert ended(watching) == (69, f"wbengine flow watch: error: {silent}")
        assert ended(patient)[0] == 75
        until(lambda: wish() is None)
        (home / "go").touch()
        assert ended(running)[0] == 75
