"""A store that goes silent, or is slow, while a command reads it."""

from __future__ import annotations

from pathlib import Path

from tests import servers, tcp_proxy
from tests.cli.conftest import Command, appears

FLOW = "12345678-1234-4123-8123-123456789012"


def test_silent_in_the_middle(
    wbengine: Command, home: Path, postgresql_server: servers.Server, postgresql_url: str
) -> None:
    """Of one that answers nothing any more, while a command waits for a flow to end."""
    running = wbengine.begin("flow", "run", "tests.cli.shop:slow", "--flow-id", FLOW,
        "--persistence", postgresql_url)  # fmt: skip
    with tcp_proxy.threaded(postgresql_server.port) as proxy:
        url = postgresql_url.replace(f":{postgresql_server.port}/", f":{proxy.port}/")
        appears(home / "reserve.begun")
        asking = wbengine.begin("flow", "suspend", FLOW, "--wait", "1m", "--persistence", url,
            "--timeout", "1")  # fmt: skip
        asked = ("flow", "show", FLOW, "--json", "--persistence", postgresql_url)
        while not (told := wbengine(*asked).json)["wish"] and told["state"] != "SUSPENDING":
            assert asking.poll() is None
        proxy.stall()
        out, err = asking.communicate(timeout=10)
        assert (asking.returncode, out) == (69, "")
        assert err == "wbengine flow suspend: error: the store does not answer within 1 s\n"
    (home / "go").touch()
    running.communicate(timeout=30)
    assert running.returncode == 75


def test_silent_while_a_flow_runs(
    wbengine: Command, home: Path, postgresql_server: servers.Server, postgresql_url: str
) -> None:
    """Whoever watches it ends; whoever runs it says why nothing happens, and goes on."""
    with tcp_proxy.threaded(postgresql_server.port) as proxy:
        url = postgresql_url.replace(f":{postgresql_server.port}/", f":{proxy.port}/")
        words = ("--persistence", url, "--timeout", "2.5")
        running = wbengine.begin("flow", "run", "tests.cli.shop:slow", "--flow-id", FLOW, *words)
        appears(home / "reserve.begun")
        watching = wbengine.begin("flow", "watch", FLOW, *words)
        assert watching.stdout is not None and running.stderr is not None
        assert "RUNNING" in watching.stdout.readline()
        proxy.stall()
        _, err = watching.communicate(timeout=10)
        said, last = err.splitlines()
        assert said.startswith("waiting for the store: postgresql://") and ":***@" in said
        assert last == "wbengine flow watch: error: the store does not answer within 2.5 s"
        assert watching.returncode == 69
        assert running.stderr.readline() == f"{said}\n"
        proxy.resume()
        assert running.stderr.readline() == "the store answers again\n"
        (home / "go").touch()
        running.communicate(timeout=30)
        assert running.returncode == 0


def test_slow_is_not_silent(wbengine: Command, home: Path) -> None:
    """A command that takes longer than an answer may, of a store that answers."""
    flow = wbengine.begin("flow", "run", "tests.cli.shop:slow", "--flow-id", FLOW)
    appears(home / "reserve.begun")
    told = wbengine.apart("flow", "suspend", FLOW, "--wait", "3", "--timeout", "1")
    assert told.code == 75 and "has not ended within 3 s" in told.error
    (home / "go").touch()
    flow.communicate(timeout=30)
