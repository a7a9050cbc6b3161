"""Commands that a page starts: failures, secrets and command lines."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from tests.dashboard import story
from tests.dashboard.conftest import admitted, client
from tests.dashboard.forms import send, token_in
from tests.dashboard.site import PATIENCE
from tests.support.workers import until
from wbengine import exceptions, operations
from wbengine.dashboard import Runner
from wbengine.persistence import backends


def test_command_that_cannot_start_is_reported(
    kept: story.Kept, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    starter = Runner({"WBENGINE_PERSISTENCE": "nothing-of-that-kind://x"}, PATIENCE)
    path = f"/flows/{kept.uuids['leaking']}"
    with client(kept, runner=starter, allow_actions=True) as browser:
        page = admitted(browser).get(path).text
        assert ">Retry failed</button>" in page
        answer = send(browser, f"{path}/retry", {"form_token": token_in(page)})
    assert answer.status_code == 502
    assert "nothing-of-that-kind" in answer.text
    assert "retry flow" in caplog.text and "failed" in caplog.text


def commands() -> dict[int, bytes]:
    """Return the command line of each process, as every user of the host can read it."""
    command_lines = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            command_lines[int(pid)] = Path(f"/proc/{pid}/cmdline").read_bytes()
    return command_lines


def test_command_line_of_the_child_contains_no_store_url(kept: story.Kept) -> None:
    path = f"/flows/{kept.uuids['leaking']}"
    with socket.create_server(("127.0.0.1", 0)) as silent:  # a store that does not answer
        place = f"postgresql://wbe:{story.CANARY}@127.0.0.1:{silent.getsockname()[1]}/flows"
        starter = Runner({"WBENGINE_PERSISTENCE": place}, patience=0.0)
        with client(kept, runner=starter, allow_actions=True) as browser:
            fields = {"form_token": token_in(admitted(browser).get(path).text)}
            answer = send(browser, f"{path}/retry", fields)
        assert answer.status_code == 303  # the command did not fail at once
        silent.settimeout(PATIENCE)
        connection, _ = silent.accept()  # the child connects to the store
        seen = commands()
        ours = [pid for pid, words in seen.items() if kept.uuids["leaking"].encode() in words]
        for pid in ours:
            os.kill(pid, signal.SIGKILL)
        connection.close()
    assert len(ours) == 1
    assert not [words for words in seen.values() if story.CANARY.encode() in words]


def test_dashboard_without_runner_has_no_start_buttons(kept: story.Kept) -> None:
    path = f"/flows/{kept.uuids['leaking']}"
    with client(kept, allow_actions=True) as browser:
        page = admitted(browser).get(path).text
        assert "<form" not in page.partition('id="head"')[2].partition("</section>")[0]


class Shop:
    """A failed flow in a store of files; it fails again until `mended` exists."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {
            "WBENGINE_PERSISTENCE": f"dir://{folder}/flows",
            "PYTHONPATH": str(Path(__file__).parents[2]),
        }
        self.backend = backends.fetch(self.environment["WBENGINE_PERSISTENCE"])
        with contextlib.closing(self.backend.get_connection()) as connection:
            connection.upgrade()
        engine = operations.start(
            self.backend, "tests.dashboard.printing:flow", store={"api_key": story.CANARY}
        )
        with pytest.raises(ValueError, match="out of paper"):
            engine.run()
        self.uuid = engine.storage.flow_uuid
        self.path = f"/flows/{self.uuid}"

    @contextlib.contextmanager
    def browser(self, patience: float) -> Iterator[TestClient]:
        flows = story.Kept()
        flows.backend = self.backend
        starter = Runner(self.environment, patience)
        with client(flows, runner=starter, allow_actions=True) as browser:
            yield admitted(browser)

    def retry(self, browser: TestClient) -> int:
        token = token_in(browser.get(self.path).text)
        return int(send(browser, f"{self.path}/retry", {"form_token": token}).status_code)


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "go").touch()
    shop = Shop(tmp_path)
    (tmp_path / "begun").unlink()
    yield shop
    (tmp_path / "go").touch()
    shop.backend.close()


@pytest.mark.slow
def test_exit_code_1_is_shown_on_the_page_and_logged(
    shop: Shop, caplog: pytest.LogCaptureFixture, audit: Callable[[], list[str]]
) -> None:
    caplog.set_level(logging.INFO)
    with shop.browser(PATIENCE) as browser:
        page = browser.get(shop.path).text
        answer = send(browser, f"{shop.path}/retry", {"form_token": token_in(page)})
        assert answer.status_code == 502
        later = browser.get(f"{shop.path}?done=retry").text
    assert "retry` failed with exit code 1: " in answer.text
    assert "<strong>Retry failed</strong> with exit code 1" in later
    assert "The failed tasks are being retried." not in later
    for shown in (answer.text, later):
        assert "the key is ***" in shown and "details: wbengine flow show" in shown
        assert story.CANARY not in shown
    (line,) = audit()
    assert line.startswith(f"retry flow {shop.uuid} failed, from 192.0.2.5: ")
    assert "exit code 1" in line and "\n" not in line
    (logged,) = [r for r in caplog.records if r.name == "wbengine.dashboard._runner"]
    assert logged.levelno == logging.ERROR
    assert logged.getMessage().startswith(f"flow retry {shop.uuid}: exit code 1: ")
    assert story.CANARY not in caplog.text


@pytest.mark.slow
def test_late_failure_is_shown_on_the_page_and_audited(
    shop: Shop, caplog: pytest.LogCaptureFixture, audit: Callable[[], list[str]]
) -> None:
    caplog.set_level(logging.INFO)
    (shop.folder / "go").unlink()
    with shop.browser(patience=0.0) as browser:
        assert shop.retry(browser) == 303
        page = browser.get(f"{shop.path}?done=retry").text
        assert "The failed tasks are being retried." in page and "exit code" not in page
        assert len(audit()) == 1
        (shop.folder / "go").touch()
        until(lambda: len(audit()) == 2)
        page = browser.get(f"{shop.path}?part=head").text
        assert "<strong>Retry failed</strong> with exit code 1" in page
        assert "the key is ***" in page and story.CANARY not in page
        begun = f"retry flow {shop.uuid} failed, from 192.0.2.5: exit code 1: "
        assert audit()[1].startswith(begun)
        assert story.CANARY not in caplog.text

        (shop.folder / "mended").touch()
        assert shop.retry(browser) == 303
        until(lambda: "SUCCESS" in browser.get(f"{shop.path}?part=head").text)
        assert "Retry failed" not in browser.get(shop.path).text


@pytest.mark.slow
def test_history_contains_user_of_page_that_retried_and_reverted_flow(shop: Shop) -> None:
    (shop.folder / "mended").touch()
    with shop.browser(patience=0.0) as browser:
        for verb, state in (("retry", "state-SUCCESS"), ("revert", "state-REVERTED")):
            token = token_in(browser.get(shop.path).text)
            answer = send(browser, f"{shop.path}/{verb}", {"form_token": token})
            assert answer.status_code == 303
            until(lambda state=state: state in browser.get(f"{shop.path}?part=head").text)
    with contextlib.closing(shop.backend.get_connection()) as connection:
        history = connection.get_flow_details(shop.uuid, lazy=True).history
    reasons = [change.why for change in history if change.why is not None]
    assert [each.count("requested by dashboard (192.0.2.5)") for each in reasons[-2:]] == [1, 1]


@pytest.mark.slow
def test_partial_secret_at_the_cut_of_the_output_is_masked(shop: Shop) -> None:
    """Only the end of a long output is shown; the cut may be inside a secret."""
    (shop.folder / "chatty").touch()
    with shop.browser(PATIENCE) as browser:
        assert shop.retry(browser) == 502
        page = browser.get(shop.path).text
    assert "details: wbengine flow show" in page
    assert story.CANARY[-6:] not in page


@pytest.mark.slow
def test_secrets_are_masked_even_if_the_store_is_unusable(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    (shop.folder / "go").unlink()
    with shop.browser(patience=0.0) as browser:
        assert shop.retry(browser) == 303
        until((shop.folder / "begun").exists)
        (shop.folder / "flows").rename(shop.folder / "elsewhere")
        (shop.folder / "flows").touch()
        (shop.folder / "go").touch()
        until(lambda: "exit code" in caplog.text)
        assert "the key is ***" in caplog.text and story.CANARY not in caplog.text


def test_flow_id_that_resembles_an_option_is_only_an_id(tmp_path: Path) -> None:
    """A program that writes to the store chooses the ids of flows."""
    starter = Runner({"WBENGINE_PERSISTENCE": f"dir://{tmp_path}/flows"}, PATIENCE)
    with pytest.raises(exceptions.ExecutionFailure, match="exit code 69"):
        starter.start("resume", "--help", str)
