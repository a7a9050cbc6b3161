"""Alert rules, evaluated by a real Prometheus."""

from __future__ import annotations

import contextlib
import importlib.resources
import json
import os
import re
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
import yaml

from tests.support import python, servers
from tests.support.brokers import Place
from tests.support.server_kinds import free_port
from tests.support.waiting import until
from tests.support.workers import REPOSITORY
from tests.telemetry import scraping
from tools import _servers
from wbengine import engines
from wbengine.fleet import client as fleets
from wbengine.persistence import backends
from wbengine.persistence.backends import _sql

FOLDER = importlib.resources.files("wbengine.telemetry") / "files"

TASK = 'task="a.Pay",topic="t"'
#: Alert -> series with one value for each minute, and the minute at which the alert fires. The last
#: value of `_` is repeated.
SERIES: dict[str, tuple[dict[str, str], int]] = {
    "WbengineTasksFail": (
        {
            f'wbengine_tasks_total{{{TASK},state="SUCCESS"}}': "0+8x60",
            f'wbengine_tasks_total{{{TASK},state="FAILURE"}}': "0+1x60",
        },
        25,
    ),
    # The series begins with the first failure.
    "WbengineFlowsCannotBeReverted": (
        {f'wbengine_tasks_total{{{TASK},state="REVERT_FAILURE"}}': "_x5 1x60"},
        7,
    ),
    "WbengineFlowsFail": (
        {
            'wbengine_flows_total{flow="f",state="SUCCESS"}': "0+7x90",
            'wbengine_flows_total{flow="f",state="REVERTED"}': "0+3x90",
        },
        50,
    ),
    "WbengineFlowsWait": ({"wbengine_oldest_pending_flow_timestamp_seconds": "0x60"}, 12),
    "WbengineFlowsWaitForCode": ({'wbengine_flows_waiting_for_code{code="shop:v2"}': "2x60"}, 16),
    "WbengineQueueNotServed": (
        {
            'wbengine_job_queue_flows{queue="q",state="waiting"}': "_x2 2x60",
            'wbengine_job_queue_served{queue="q"}': "1x2 0x60",
        },
        9,
    ),
    "WbengineRetentionStopped": ({"wbengine_retention_last_run_timestamp_seconds": "0x60"}, 17),
    "WbengineNotificationsFail": (
        {
            'wbengine_notifications_total{destination="d",result="failed"}': "0+1x60",
            'wbengine_notifications_total{destination="d",result="sent"}': "7x60",
        },
        17,
    ),
    "WbengineRequestsUnserved": ({'wbengine_requests_unserved{task="a.Pay"}': "2x60"}, 6),
    "WbengineRequestsWait": (
        {
            'wbengine_task_queue_wait_seconds_bucket{topic="t",le="60"}': "0x60",
            'wbengine_task_queue_wait_seconds_bucket{topic="t",le="300"}': "0+5x60",
            'wbengine_task_queue_wait_seconds_bucket{topic="t",le="+Inf"}': "0+5x60",
        },
        25,
    ),
    "WbengineQueueGrows": ({'wbengine_queue_messages{queue="t.0a"}': "101+1x60"}, 35),
    "WbengineNoWorkers": ({'wbengine_queue_messages{queue="t.0a"}': "3x60"}, 6),
    "WbengineWorkerSilent": (
        {'wbengine_worker_last_seen_timestamp_seconds{worker="w"}': "0x60"},
        5,
    ),
    "WbengineFleetFull": (
        {
            'wbengine_worker_slots{worker="w",state="busy"}': "4x60",
            'wbengine_worker_slots{worker="w",state="free"}': "0x60",
        },
        35,
    ),
    "WbengineMessagesAreNotTrusted": ({"wbengine_untrusted_messages_total": "0x5 1x60"}, 7),
}


def program(name: str) -> str:
    """Return the path of a program of Prometheus."""
    path = None if _servers.find("prometheus") is None else shutil.which(name)
    if path is None:
        servers.skip_or_fail(_servers.reason(["prometheus"]))
    assert path is not None
    return path


def test_flows_that_are_undone_on_request_raise_no_alert(tmp_path: Path) -> None:
    shutil.copy(str(FOLDER / "alerts.yml"), tmp_path)
    series = {
        'wbengine_flows_total{flow="f",state="REVERTED"}': "0+10x90",
        'wbengine_flows_undone_total{flow="f",outcome="complete"}': "0+10x90",
    }
    inputs = [{"series": name, "values": values} for name, values in series.items()]
    query = {"expr": "ALERTS", "eval_time": "80m", "exp_samples": []}
    tests = [{"interval": "1m", "input_series": inputs, "promql_expr_test": [query]}]
    content = {"rule_files": ["alerts.yml"], "evaluation_interval": "1m", "tests": tests}
    (tmp_path / "tests.yml").write_text(yaml.safe_dump(content))
    command = [program("promtool"), "test", "rules", "tests.yml"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.slow
def test_each_rule_fires_at_its_threshold_and_not_before(tmp_path: Path) -> None:
    promtool = program("promtool")
    groups = yaml.safe_load((FOLDER / "alerts.yml").read_text(encoding="utf-8"))["groups"]
    assert SERIES.keys() == {rule["alert"] for group in groups for rule in group["rules"]}
    shutil.copy(str(FOLDER / "alerts.yml"), tmp_path)
    tested = []
    for alert, (series, minute) in SERIES.items():
        inputs = [{"series": name, "values": values} for name, values in series.items()]
        query = (
            f'sum by (alertname, alertstate) (ALERTS{{alertname="{alert}",alertstate="firing"}})'
        )
        sample = f'{{alertname="{alert}", alertstate="firing"}}'
        tests = [
            {"expr": query, "eval_time": "0m", "exp_samples": []},
            {
                "expr": query,
                "eval_time": f"{minute}m",
                "exp_samples": [{"labels": sample, "value": 1}],
            },
        ]
        tested.append({"interval": "1m", "input_series": inputs, "promql_expr_test": tests})
    content = {"rule_files": ["alerts.yml"], "evaluation_interval": "1m", "tests": tested}
    (tmp_path / "tests.yml").write_text(yaml.safe_dump(content))
    subprocess.run([promtool, "check", "rules", "alerts.yml"], cwd=tmp_path, check=True)
    result = subprocess.run(
        [promtool, "test", "rules", "tests.yml"], cwd=tmp_path, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stdout + result.stderr


class Deployment:
    """A conductor, a worker and a dashboard whose metrics a Prometheus scrapes.

    Its minutes take 0.4 seconds.
    """

    def __init__(self, folder: Path, redis: Place, until_end: contextlib.ExitStack) -> None:
        self.folder, self._until_end = folder, until_end
        self.store = f"sqlite:///{folder}/flows.db"
        self._url = str(redis)
        self._environment = {
            **{name: value for name, value in os.environ.items() if "WBENGINE" not in name},
            "WBENGINE_PERSISTENCE": self.store,
            "WBENGINE_URL": self._url,
            "WBENGINE_KEYS": str(folder / "keys.json"),
            "HOME": str(folder),
        }
        self.run("keys", "new", str(folder / "keys.json"))
        metrics = ("--metrics-addr", "127.0.0.1:0")
        self.serve = self.start(
            "serve", "--engine", "workers", "--max-simultaneous", "80", *metrics
        )
        tasks = [f"tests.telemetry.alerting:{name}" for name in ("fail", "stuck", "hold")]
        offered = [word for name in tasks for word in ("--tasks", name)]
        self.worker = self.start("worker", "t", *offered, "--threads", "2", *metrics)
        port = free_port()
        self.start("dashboard", "--no-auth", "--port", str(port))
        places = [self.metrics_of(self.serve), self.metrics_of(self.worker), f"127.0.0.1:{port}"]
        self._address = f"http://127.0.0.1:{free_port()}"
        self._run_prometheus(places)
        self.backend = until_end.enter_context(backends.backend(self.store))

    def run(self, *words: str) -> None:
        self.start(*words).wait(60)

    def start(self, *words: str) -> Any:
        log = self.folder / f"{words[0]}.log"
        with log.open("wb") as stream:
            process = python.start(
                ["-m", "wbengine", *words], stdout=stream, stderr=stream, cwd=REPOSITORY,
                env=self._environment,
            )  # fmt: skip
        self._until_end.callback(process.wait)
        self._until_end.callback(process.kill)
        return process

    def metrics_of(self, process: Any) -> str:
        name = "serve" if process is self.serve else "worker"
        log = self.folder / f"{name}.log"
        pattern = r"serving /metrics on http://(\S+)"
        until(lambda: re.search(pattern, log.read_text()))
        match = re.search(pattern, log.read_text())
        assert match is not None
        return match[1]

    def _run_prometheus(self, places: list[str]) -> None:
        text = (FOLDER / "alerts.yml").read_text(encoding="utf-8")
        text = re.sub(r"\b([0-9]+)m\b", lambda match: f"{int(match[1]) * 400}ms", text)
        # Workers receive a message from their broker at least every 10 seconds.
        for scaled, threshold in (("> 12", "seconds) > 60"), ("> 1", "> 60"), ("> 2", "> 300")):
            text = text.replace(
                threshold, threshold.replace(threshold[threshold.index(">") :], scaled)
            )
        (self.folder / "alerts.yml").write_text(text.replace("> 100", "> 10"))
        intervals = {"scrape_interval": "200ms", "scrape_timeout": "200ms"}
        # The dashboard waits half a second for the reply of a worker that has died.
        slow_intervals = {"scrape_interval": "1s", "scrape_timeout": "1s"}
        configuration = {
            "global": {**intervals, "evaluation_interval": "200ms"},
            "rule_files": ["alerts.yml"],
            "scrape_configs": [
                {"job_name": "processes", "static_configs": [{"targets": places[:2]}]},
                {
                    "job_name": "dashboard",
                    "static_configs": [{"targets": places[2:]}],
                    **slow_intervals,
                },
            ],
        }
        (self.folder / "prometheus.yml").write_text(yaml.safe_dump(configuration))
        with (self.folder / "prometheus.log").open("wb") as stream:
            process = subprocess.Popen(
                [
                    program("prometheus"), "--config.file=prometheus.yml",
                    "--storage.tsdb.path=data", "--query.lookback-delta=3s",
                    f"--web.listen-address={self._address.partition('//')[2]}",
                ],
                stdout=stream, stderr=stream, cwd=self.folder,
            )  # fmt: skip
        self._until_end.callback(process.wait)
        self._until_end.callback(process.kill)
        until(lambda: self._is_ready())

    def _is_ready(self) -> bool:
        with contextlib.suppress(OSError):
            return scraping.get(f"{self._address}/-/ready")[0] == 200
        return False

    def firing(self) -> set[str]:
        """Return the names of the alerts that fire."""
        _, text = scraping.get(f"{self._address}/api/v1/alerts")
        alerts: list[Any] = json.loads(text)["data"]["alerts"]
        return {each["labels"]["alertname"] for each in alerts if each["state"] == "firing"}

    def submit(self, factory: str, *args: Any) -> None:
        engines.submit(f"tests.telemetry.alerting:{factory}", args, backend=self.backend)

    def forget_conductors(self, version: str) -> None:
        """Let all flows need this version, and the reports of conductors be old."""
        with contextlib.closing(self.backend.get_connection()) as connection:
            connection.add_codes(version, ["tests"])
        assert isinstance(self.backend, _sql.SQLBackend)
        with self.backend.engine.begin() as raw:
            raw.execute(sa.text(f"UPDATE wbe_flowdetails SET code = 'tests:{version}'"))
            raw.execute(sa.text("UPDATE wbe_codes SET seen = 0"))

    def interrupt_worker(self) -> None:
        """End the worker, at the second signal without waiting for its tasks."""
        self.worker.send_signal(signal.SIGTERM)

    def send_untrusted(self) -> None:
        """Send a request without a signature to the worker."""
        with fleets.Fleet(url=self._url, keys="none") as fleet:
            fleet.ping(timeout=1.0)

    @contextlib.contextmanager
    def submitting(self, factory: str, *args: Any) -> Iterator[None]:
        """Submit flows at intervals, while a `with` block runs."""
        over = threading.Event()

        def repeat() -> None:
            while not over.wait(0.4):
                self.submit(factory, *args)

        thread = threading.Thread(target=repeat)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def fires(self, *alerts: str) -> None:
        until(lambda: set(alerts) <= self.firing(), within=6)


@pytest.mark.slow
def test_each_alert_fires_in_a_deployment_in_which_its_condition_is_true(
    tmp_path: Path, redis_server: Any, redis_url: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    program("prometheus")
    monkeypatch.setenv("WBENGINE_KEYS", str(tmp_path / "keys.json"))  # for submissions
    with contextlib.ExitStack() as until_end:
        deployment = Deployment(tmp_path, redis_url, until_end)
        assert deployment.firing() == set()
        with deployment.submitting("failing"):
            deployment.fires(
                "WbengineTasksFail", "WbengineFlowsCannotBeReverted", "WbengineFlowsFail"
            )
        deployment.submit("unserved")
        deployment.send_untrusted()
        deployment.fires("WbengineRequestsUnserved", "WbengineMessagesAreNotTrusted")
        with deployment.submitting("holding", str(tmp_path)):
            deployment.fires("WbengineFleetFull", "WbengineQueueGrows")
        others = {"WbengineFlowsWait", "WbengineFlowsWaitForCode", "WbengineNoWorkers"}
        assert not others & deployment.firing()
        (tmp_path / "go").touch()
        deployment.fires("WbengineRequestsWait")
        redis_server.pause()
        deployment.fires("WbengineWorkerSilent")
        redis_server.resume()
        (tmp_path / "go").unlink()
        deployment.submit("holding", str(tmp_path))
        until(lambda: "WbengineFleetFull" in deployment.firing(), within=30)
        deployment.serve.kill()
        deployment.submit("failing")
        # The dashboard forgets a killed worker only after a minute.
        until(lambda: deployment.worker.poll() is not None or deployment.interrupt_worker())
        deployment.forget_conductors("v43")
        deployment.fires("WbengineFlowsWait", "WbengineFlowsWaitForCode", "WbengineNoWorkers")
