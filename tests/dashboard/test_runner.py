"""Starting flows again from a page: what a command says when it cannot."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
from pathlib import Path

import pytest

from tests.dashboard import story
from tests.dashboard.conftest import admitted, client
from tests.dashboard.forms import send, token_in
from tests.dashboard.site import PATIENCE
from wbengine.dashboard import Runner, runner


def test_a_command_that_cannot_begin_is_told(
    kept: story.Kept, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "PATIENCE", PATIENCE)
    caplog.set_level(logging.INFO)
    starter = Runner({"WBENGINE_PERSISTENCE": "nothing-of-that-kind://x"})
    path = f"/flows/{kept.uuids['leaking']}"
    with client(kept, runner=starter, allow_actions=True) as browser:
        page = admitted(browser).get(path).text
        assert ">Retry failed</button>" in page
        answer = send(browser, f"{path}/retry", {"form_token": token_in(page)})
    assert answer.status_code == 502
    assert "nothing-of-that-kind" in answer.text
    assert "retry flow" in caplog.text and "failed" in caplog.text


def commands() -> dict[int, bytes]:
    """The command of each process, as every user of the host can read it."""
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            found[int(pid)] = Path(f"/proc/{pid}/cmdline").read_bytes()
    return found


def test_where_things_are_is_not_in_the_command(
    kept: story.Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "PATIENCE", 0.0)
    path = f"/flows/{kept.uuids['leaking']}"
    with socket.create_server(("127.0.0.1", 0)) as silent:  # a store that does not answer
        place = f"postgresql://wbe:{story.CANARY}@127.0.0.1:{silent.getsockname()[1]}/flows"
        starter = Runner({"WBENGINE_PERSISTENCE": place})
        with client(kept, runner=starter, allow_actions=True) as browser:
            fields = {"form_token": token_in(admitted(browser).get(path).text)}
            answer = send(browser, f"{path}/retry", fields)
        assert answer.status_code == 303  # it did not say that it could not begin
        silent.settimeout(PATIENCE)
        connection, _ = silent.accept()  # it was told where
        seen = commands()
        ours = [pid for pid, words in seen.items() if kept.uuids["leaking"].encode() in words]
        for pid in ours:
            os.kill(pid, signal.SIGKILL)
        connection.close()
    assert len(ours) == 1
    assert not [words for words in seen.values() if story.CANARY.encode() in words]


def test_without_a_runner_nothing_can_be_started(kept: story.Kept) -> None:
    path = f"/flows/{kept.uuids['leaking']}"
    with client(kept, allow_actions=True) as browser:
        page = admitted(browser).get(path).text
        assert "<form" not in page.partition('id="head"')[2].partition("</section>")[0]
