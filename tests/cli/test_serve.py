"""`wbengine flow submit` and `wbengine serve`."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.cli import shop
from tests.cli.conftest import Command, appears, slow_flow, state
from tests.support.brokers import Place
from tests.support.server_kinds import free_port
from tests.support.waiting import until
from tests.telemetry import scraping
from wbengine.views import _formatting

FACTORIES = "tests.cli.shop"


pytestmark = pytest.mark.usefixtures("store_url")


def submit(wbengine: Command, factory: str, *words: str) -> str:
    answer = wbengine("flow", "submit", f"{FACTORIES}:{factory}", *words)
    assert answer.code == 0, answer
    return answer.out.strip()


def done(home: Path) -> list[str]:
    path = home / "done"
    return path.read_text().split() if path.exists() else []


def ending(process: subprocess.Popen[str], number: int) -> None:
    """Send a signal and wait until the process reports it."""
    process.send_signal(number)
    assert process.stderr is not None
    assert any("stopping after the running tasks" in line for line in process.stderr)


def stopped(process: subprocess.Popen[str], *signals: int) -> tuple[int, str]:
    for number in signals:
        process.send_signal(number)
    _, err = process.communicate(timeout=60)
    return process.returncode, err


@pytest.mark.slow
def test_submitted_flows_are_run_by_serve(wbengine: Command, home: Path) -> None:
    uuid = submit(wbengine, "order", "--name", "mine", "--tag", "team=billing")
    answer = wbengine(
        "flow", "submit", f"{FACTORIES}:halves", "--inputs", '{"numbers": [2]}', "--json"
    )
    assert answer.json["schema"] == "wbengine/flow-submit/1" and answer.json["state"] == "PENDING"
    [row] = wbengine("flow", "list", "--tag", "team=billing", "--json").json["flows"]
    assert (row["uuid"], row["name"], row["state"]) == (uuid, "mine", "PENDING")
    process = wbengine.begin("serve")
    for each in (uuid, answer.json["uuid"]):
        until(lambda each=each: state(wbengine, each) == "SUCCESS")
    assert done(home) == list(shop.STEPS)
    code, err = stopped(process, signal.SIGTERM)
    assert code == 0 and "runs flows submitted to" in err, err


def test_watch_of_a_flow_that_waits_for_a_signal_ends_with_the_flow(wbengine: Command) -> None:
    """The conductor suspends the flow while it waits."""
    uuid = wbengine("flow", "submit", "tests.support.signalled:flow").out.strip()
    process = wbengine.begin("serve")
    until(lambda: state(wbengine, uuid) == "SUSPENDED")
    assert wbengine("flow", "show", uuid, "--json").json["shown_state"] == "WAITING"
    watch = wbengine.begin("flow", "watch", uuid)
    assert watch.stdout is not None
    assert any("SUSPENDED  flow signalled" in line for line in watch.stdout)
    assert wbengine("flow", "signal", uuid, "approved").code == 0
    out, _ = watch.communicate(timeout=60)
    assert watch.returncode == 0 and "SUCCESS  flow signalled" in out
    assert "attempt 2" not in out
    assert stopped(process, signal.SIGTERM)[0] == 0


def test_flow_on_a_redis_board_is_run_by_serve(wbengine: Command, redis_url: Place) -> None:
    uuid = submit(wbengine, "order", "--board", redis_url)
    assert redis_url.left()
    process = wbengine.begin("serve", "--board", redis_url)
    until(lambda: state(wbengine, uuid) == "SUCCESS")
    code, err = stopped(process, signal.SIGTERM)
    # The output contains no password.
    assert code == 0 and "runs flows submitted to Redis namespace 'default'" in err, err


@pytest.mark.skipif(shutil.which("redis-server") is None, reason="no redis-server")
def test_serve_waits_for_an_unreachable_board(wbengine: Command, home: Path) -> None:
    port = free_port()
    process = wbengine.begin(
        "serve", "--board", f"redis://127.0.0.1:{port}/0", "--health-addr", "127.0.0.1:0"
    )
    assert process.stderr is not None
    lines: list[str] = []
    for line in process.stderr:
        lines.append(line)
        if "waiting for the job board" in line:
            break
    address = next(match[1] for each in lines if (match := re.search(r"on (http://\S+)", each)))
    assert (_status(f"{address}/livez"), _status(f"{address}/readyz")) == (200, 503)
    assert not any("runs flows submitted" in line for line in lines)
    server = subprocess.Popen(
        ["redis-server", "--port", str(port), "--save", ""], stdout=subprocess.DEVNULL, cwd=home
    )
    try:
        assert any("runs flows submitted" in line for line in process.stderr)
        code, _ = stopped(process, signal.SIGTERM)
        assert code == 0
    finally:
        server.terminate()
        server.wait()


def test_serve_that_waits_for_its_board_ends_on_sigterm(wbengine: Command) -> None:
    process = wbengine.begin("serve", "--board", "redis://127.0.0.1:1/0")
    assert process.stderr is not None
    assert any("waiting for the job board" in line for line in process.stderr)
    code, err = stopped(process, signal.SIGTERM)
    assert code == 0 and "Traceback" not in err, err


def test_same_unique_key_returns_the_same_flow(wbengine: Command) -> None:
    first = submit(wbengine, "order", "--unique", "k")
    assert submit(wbengine, "order", "--unique", "k") == first
    assert submit(wbengine, "order", "--unique", "l") != first


@pytest.mark.slow
def test_sigterm_suspends_flows_for_another_serve(wbengine: Command, home: Path) -> None:
    uuid = submit(wbengine, "slow")
    process = wbengine.begin("serve")
    appears(home / "reserve.begun")
    ending(process, signal.SIGTERM)
    (home / "go").touch()
    code, err = stopped(process)
    assert code == 0, err
    assert state(wbengine, uuid) == "SUSPENDED" and done(home) == ["reserve"]
    wbengine.begin("serve")
    until(lambda: state(wbengine, uuid) == "SUCCESS")
    assert done(home) == list(shop.STEPS)


def test_second_signal_stops_running_flows_immediately(wbengine: Command, home: Path) -> None:
    submit(wbengine, "slow")
    process = wbengine.begin("serve")
    appears(home / "reserve.begun")
    ending(process, signal.SIGINT)
    # Signals in quick succession count as one.
    until(lambda: process.poll() is not None or process.send_signal(signal.SIGINT))
    assert process.returncode == 1 and not done(home)


@pytest.mark.slow
def test_flow_of_a_killed_engine_is_resumed_by_one_serve(wbengine: Command, home: Path) -> None:
    process = slow_flow(wbengine)
    [row] = wbengine("flow", "list", "--json").json["flows"]
    serving = [wbengine.begin("serve", "--max-simultaneous", "1") for _ in range(2)]
    process.kill()
    process.wait()
    (home / "go").touch()
    until(lambda: state(wbengine, row["uuid"]) == "SUCCESS", within=60)
    # A task that runs when its engine is killed runs again; here it had not written yet.
    assert done(home) == list(shop.STEPS)
    assert sum("lost its engine" in stopped(one, signal.SIGTERM)[1] for one in serving) == 1
    submit(wbengine, "order")
    resent = wbengine("flow", "list", "--incident", "resent", "--json").json["flows"]
    assert [each["uuid"] for each in resent] == [row["uuid"]]


def test_serve_reports_metrics_and_json_log_with_fields(wbengine: Command, store_url: str) -> None:
    slow, order = submit(wbengine, "slow"), submit(wbengine, "order")
    process = wbengine.begin(
        *("serve", "--max-simultaneous", "1", "--metrics-addr", "127.0.0.1:0"),
        *("--log-format", "json", "--retention", "success=7d", "--retention", "max_flows=100"),
    )
    assert process.stderr is not None
    lines = [json.loads(next(process.stderr)) for _ in range(2)]
    address = lines[0]["message"].rpartition(" ")[2]
    assert lines[1].items() >= {"engine": "serial", "store": store_url}.items()
    assert lines[1]["conductor"].endswith(f":{process.pid}")

    def metrics() -> scraping.Samples:
        return scraping.read(scraping.get(f"{address}/metrics")[1])

    appears(wbengine.folder / "reserve.begun")
    found = metrics()
    assert scraping.value(found, "wbengine_flows_pending") == 1
    oldest = scraping.value(found, "wbengine_oldest_pending_flow_timestamp_seconds")
    [row] = wbengine("flow", "list", "--state", "PENDING", "--json").json["flows"]
    assert _formatting.iso(oldest) == row["created"]
    assert scraping.value(found, "wbengine_oldest_flow_timestamp_seconds") <= oldest
    assert scraping.value(found, "wbengine_flows_deleted_total") == 0
    retry = (("operation", "flow retry"),)
    assert found["wbengine_bulks_running", retry] == found["wbengine_bulk_errors_total", retry] == 0
    last_run = "wbengine_retention_last_run_timestamp_seconds"
    until(lambda: scraping.value(metrics(), last_run) >= oldest)
    assert scraping.value(found, "wbengine_flows_running", flow="slow") == 1
    assert wbengine("flow", "cancel", slow, "--reason", "no stock").code == 0
    assert any("is being cancelled" in line for line in process.stderr)
    (wbengine.folder / "go").touch()
    until(lambda: state(wbengine, order) == "SUCCESS")
    until(lambda: scraping.value(metrics(), "wbengine_flows_total", flow="order") == 1)
    found = metrics()
    assert scraping.value(found, "wbengine_flows_pending") == 0
    assert scraping.value(found, "wbengine_flows_total", flow="slow", state="REVERTED") == 1
    code, err = stopped(process, signal.SIGTERM)
    lines = [json.loads(line) for line in err.splitlines()]
    assert code == 0 and lines[-1]["message"].startswith("stopping after the running tasks")
    (cancelled,) = [line for line in lines if "was cancelled" in line["message"]]
    assert (cancelled["level"], cancelled["flow"]) == ("INFO", slow)
    assert not any("traceback" in line or line["level"] == "WARNING" for line in lines)
    assert [line["flow"] for line in lines if "ended in SUCCESS" in line["message"]] == [order]


def test_serve_answers_probes(wbengine: Command) -> None:
    process = wbengine.begin("serve", "--health-addr", "127.0.0.1:0")
    assert process.stderr is not None
    match = (re.search(r"on (http://[0-9.:]+)", line) for line in process.stderr)
    address = next(each[1] for each in match if each is not None)
    for path in ("livez", "readyz"):
        until(lambda path=path: _status(f"{address}/{path}") == 200)


def _status(address: str) -> int:
    try:
        with urllib.request.urlopen(address, timeout=30) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
