"""Celery's worker inside a wbengine worker: shared slots, options and settings."""

from __future__ import annotations

import os
import re
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.celery import peers
from tests.celery.conftest import Bed, Ours
from tests.celery.journal import lines
from tests.support import brokers, fresh, python, sample_tasks, workers
from tests.support.brokers import Place
from tests.support.workers import until
from wbengine import engines
from wbengine.patterns import linear_flow

#: Arguments of a worker with one slot that serves a topic and a Celery queue.
WORDS = "--threads", "1", "--topic", "t", "--tasks", "tests.support.sample_tasks"


def test_topic_and_queue_share_slots(own: Bed, ours: Ours, tmp_path: Path) -> None:
    path, gate = tmp_path / "path", tmp_path / "gate"
    flow = linear_flow.Flow("f").add(sample_tasks.Add(inject={"x": 1, "y": 2}))
    with ours(*WORDS) as worker:
        held = own.call("start", f"{peers.NAME}.hold", (str(path), str(gate)))
        until(lambda: lines(path))
        engine = engines.load(flow, engine="worker-based", topics=["t"], url=str(own.url))
        states: list[str] = []
        engine.atom_notifier.register("*", lambda state, details: states.append(state))
        steps = engine.run_iter(timeout=1.0)
        for _ in range(3):
            next(steps)
        assert "SUCCESS" not in states
        gate.touch()
        for _ in steps:
            pass
        assert engine.storage.fetch_all()["sum"] == 3
        assert own.call("wait", held)[0]["state"] == "SUCCESS"
        assert worker.stop() == 0


def test_burst_worker_exits_after_all_tasks_including_delayed_ones(own: Bed, ours: Ours) -> None:
    ids = [own.call("start", f"{peers.NAME}.add", (n, n)) for n in range(5)]
    ids.append(own.call("start", f"{peers.NAME}.add", (5, 5), countdown=4))
    with ours("--burst") as worker:
        assert worker.wait() == 0
    assert [each["value"] for each in own.call("wait", *ids)] == [0, 2, 4, 6, 8, 10]


@pytest.mark.parametrize("kind", ["redis"])
@pytest.mark.parametrize("setting", [{}, {"broker_read_url": "redis://127.0.0.1:1"}])
def test_command_line_overrides_variables_and_settings(
    setting: dict[str, str], own: Bed, ours: Ours, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("BROKER_URL", "BROKER_READ_URL", "BROKER_WRITE_URL", "RESULT_BACKEND"):
        monkeypatch.setenv(f"CELERY_{name}", "redis://127.0.0.1:1")
    words = "--celery-broker", str(own.url), "--celery-result-backend", str(own.backend)
    with ours(*words, **setting) as worker:
        task_id = own.call("start", f"{peers.NAME}.add", (1, 2))
        assert own.call("wait", task_id)[0]["value"] == 3
        assert worker.stop() == 0


@pytest.mark.parametrize("kind", ["redis"])
def test_worker_exits_after_max_tasks(own: Bed, ours: Ours) -> None:
    ids = [own.call("start", f"{peers.NAME}.add", (n, n)) for n in range(5)]
    with ours("--max-tasks", "3") as worker:
        assert worker.wait() == 0
    states = [own.call("state", each) for each in ids]
    assert sorted(states) == ["PENDING"] * 2 + ["SUCCESS"] * 3
    assert own.call("depth", peers.QUEUE) == 2


@pytest.mark.parametrize("kind", ["rabbitmq"])
def test_worker_warns_about_rabbitmq_without_ledger(own: Bed, ours: Ours) -> None:
    with ours() as worker:
        assert own.run("add", 1, 2)["value"] == 3
        assert "without a ledger (--ledger) a task may run twice" in worker.text


def test_rate_limit_in_celery_settings_is_applied(own: Bed, ours: Ours) -> None:
    name = f"{peers.NAME}.moment"
    with ours("--threads", "4", task_annotations={name: {"rate_limit": "2/s"}}):
        own.call("inspect", "ping")
        ids = [own.call("start", name) for _ in range(4)]
        moments = sorted(each["value"] for each in own.call("wait", *ids))
    assert moments[-1] - moments[0] >= 1.0, moments


@pytest.mark.parametrize("kind", ["redis"])
def test_malformed_message_is_rejected_and_worker_continues(own: Bed, ours: Ours) -> None:
    """Celery's event loop and worker end if Celery's code or the pool raises an exception."""
    odd: list[tuple[str, Any]] = [
        ("retries", "abc"), ("replaced_task_nesting", "x"), ("retries", -1), ("timelimit", 5),
        ("timelimit", ["5", "never"]), ("timelimit", [1, 2, 3]), ("id", ["x"]),
    ]  # fmt: skip
    name = f"{peers.NAME}.add"
    with ours("--threads", "1") as worker:
        for header, value in [*odd, ("task", ["a list"]), ("task", {})]:
            own.call("start", name, (1, 2), headers={header: value})
        task_id = own.call("start", name, (1, 2), headers={"timelimit": ["30", "20"]})
        assert own.call("wait", task_id)[0]["value"] == 3
        for header, value in odd:
            reason = f"{header} must be .*, got {re.escape(repr(value))}\n"
            assert re.search(reason, worker.text), header
        assert worker.text.count("rejected a message that is not a Celery task: ") == 2
        assert worker.stop() == 0
    assert own.call("depth", peers.QUEUE) == 0


@pytest.mark.parametrize("kind", ["redis"])
def test_worker_exits_with_error_if_celery_worker_fails(own: Bed, tmp_path: Path) -> None:
    """The exit code tells the supervisor to restart the process."""
    with (
        brokers.redis() as server,
        peers.wbengine_worker(
            tmp_path, server.url(), backend=own.backend, broker_connection_retry=False
        ) as worker,
    ):
        until(lambda: "all alone" in worker.text)  # before this line Celery retries without limit
        server.kill()
        assert worker.wait() == 1
        assert "ERROR wbengine.celery: the Celery worker failed" in worker.text


@pytest.mark.parametrize("kind", ["redis"])
def test_worker_suspended_during_its_start_receives_no_task(own: Bed, tmp_path: Path) -> None:
    """Suspend the worker while Celery's broker delays its consumer."""
    word = f"{uuid.uuid4().hex[:8]}"
    fleet = ["-m", "wbengine", "--url", str(own.url), "workers"]

    def order(what: str) -> None:
        completed = python.run(
            [*fleet, what, word],
            cwd=workers.REPOSITORY,
            text=True,
            capture_output=True,
        )
        assert completed.returncode == 0, completed.stdout + completed.stderr

    with (
        brokers.redis() as server,
        peers.wbengine_worker(
            tmp_path, str(own.url), "--topic", "t", "--name", word, "--celery-name", "ours@here",
            "--celery-broker", server.url(), backend=own.backend,
        ) as worker,
    ):  # fmt: skip
        until(lambda: "searching for neighbors" in worker.text)
        server.pause()
        order("suspend")
        server.resume()
        bed = replace(own, url=server.url())
        until(lambda: bed.call("inspect", "active_queues") == {"ours@here": []})
        task_id = bed.call("start", f"{peers.NAME}.add", (1, 2))
        bed.call("inspect", "ping")
        assert bed.call("depth", peers.QUEUE) == 1
        order("resume")
        assert bed.call("wait", task_id)[0]["value"] == 3


HERE = "--url", "redis://127.0.0.1:1/0"


def last_words(folder: Path, *words: str, settings: str = "", code: int = 2) -> str:
    """Run a worker that exits at once with these settings and return its last line."""
    (folder / "settings_of_test.py").write_text(settings)
    options = "--celery-queue", "q", "--celery-config", "settings_of_test"
    options += "--tasks", "tests.support.sample_tasks"
    completed = python.run(
        workers.command(*options, *words, warnings="default"),
        cwd=workers.REPOSITORY, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(folder)},
    )  # fmt: skip
    assert (completed.returncode, "Traceback" in completed.stderr) == (code, False), (
        completed.stderr
    )
    return completed.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--url", "filesystem:///x"), "The broker of Celery is missing"),
        (("--celery-queue", ""), "the name of a Celery queue must not be empty"),
        (("--celery-config", "no_such_module"), "no_such_module"),
        (("--celery-name", "a b"), "--celery-name must be like name@host, got 'a b'"),
        (("--celery-accept", ","), "--celery-accept must contain"),
        (("--celery-task", "x"), "A Celery task must be 'name=module:task', got 'x'"),
        (("--celery-accept", "xml"), "accept_content ['xml'] cannot"),
        (
            ("--celery-accept", "application/x-yam"),
            "unknown serializer 'application/x-yam' (did you mean 'application/x-yaml'?)",
        ),
        (("--celery-result-backend", "foo://u:pw@x"), "foo://u:***@x/' cannot"),
        (("--celery-broker", "nope://x"), "broker_read_url 'nope://x/' can"),
    ],
)
def test_invalid_option_is_reported(words: tuple[str, ...], message: str, tmp_path: Path) -> None:
    assert message in last_words(tmp_path, *HERE, *words)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("broker_transport_options", None),
        ("broker_transport_options", {"visibility_timeout": "abc"}),
        ("accept_content", None),
        ("accept_content", ["application/x-foo"]),
        ("result_serializer", "xml"),
        ("result_expires", "abc"),
    ],
)
def test_invalid_setting_is_reported(setting: str, value: Any, tmp_path: Path) -> None:
    last = last_words(tmp_path, *HERE, settings=f"{setting} = {value!r}\n")
    assert f"error: {setting} {value!r} cannot be used (" in last and "); use " in last


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            "task_time_limit = '30'",
            "time_limit of Celery task '{}' must be 0 or more seconds, got '30'",
        ),
        (
            "task_annotations = {{'{}': {{'soft_time_limit': -1}}}}",
            "soft_time_limit of Celery task '{}' must be 0 or more seconds, got -1",
        ),
    ],
)
def test_invalid_time_limit_in_settings_is_reported(
    settings: str, message: str, tmp_path: Path
) -> None:
    name = "tests.support.sample_tasks.Add"
    first = "--celery-task", f"{name}={name}"  # this task is checked first
    last = last_words(tmp_path, *HERE, *first, settings=settings.format(name))
    assert message.format(name) in last


@pytest.mark.parametrize(
    ("broker", "code", "message"),
    [
        (["redis://127.0.0.1:1/3", "redis://127.0.0.1:2"], 69, "127.0.0.1:1/3"),
        ("rediss://127.0.0.1:1?ssl_check_hostname=perhaps", 2, "ssl_check_hostname"),
    ],
)
def test_broker_url_is_read_from_settings(
    broker: Any, code: int, message: str, tmp_path: Path
) -> None:
    """The setting may be a list, and its TLS options also apply to the ledger."""
    assert message in last_words(tmp_path, settings=f"broker_url = {broker!r}\n", code=code)


def test_unreachable_celery_broker_is_reported(tmp_path: Path) -> None:
    last = last_words(tmp_path, *HERE, code=69)
    assert "the broker of Celery at redis://" in last and "Connection refused" in last


def test_missing_celery_package_is_reported() -> None:
    script = (
        "import sys; sys.modules['celery'] = None; from wbengine import worker;"
        " sys.exit(worker.main(sys.argv[1:]))"
    )
    words = "--tasks", "tests.support.sample_tasks", "--celery-queue", "q"
    completed = fresh.run(script, *words, code=2)
    assert re.search(r"--celery-queue needs Celery: .*pip install .*\[celery\]'", completed.stderr)


def test_celery_monitor_shows_worker_and_requests_of_flows(
    url: Place, celery: peers.Celery, tmp_path: Path
) -> None:
    """The worker serves no Celery queue."""
    words = "--topic", "t", "--tasks", "tests.support.sample_tasks", "--url", str(url)
    flow = linear_flow.Flow("f").add(sample_tasks.Add(inject={"x": 1, "y": 2}))
    with (
        celery.command(url, "events", "--dump") as dump,
        workers.workers(
            tmp_path, *words, "--events", "celery", "--celery-name", "ours@here", warnings="default"
        ) as (worker,),
    ):
        until(lambda: "heartbeat" in dump.text)
        engines.run(flow, engine="worker-based", topics=["t"], url=str(url))
        until(lambda: "task succeeded" in dump.text)
        assert "tests.support.sample_tasks.Add" in dump.text and "ours@here" in dump.text
        assert worker.stop() == 0
        until(lambda: "shutdown" in dump.text)


@pytest.mark.parametrize("kind", ["redis"])
def test_events_are_sent_again_after_broker_restarts(
    url: Place, celery: peers.Celery, tmp_path: Path
) -> None:
    words = "--topic", "t", "--tasks", "tests.support.sample_tasks", "--url", str(url)
    with (
        brokers.redis() as server,
        workers.workers(
            tmp_path, *words, "--events", "celery", "--celery-broker", server.url(),
            warnings="default",
        ) as (worker,),
    ):  # fmt: skip
        with celery.command(server.url(), "events", "--dump") as dump:
            until(lambda: "heartbeat" in dump.text)
        server.kill()
        until(lambda: "the broker of Celery for events at redis://" in worker.text)
        server.start()
        with celery.command(server.url(), "events", "--dump") as dump:
            until(lambda: "heartbeat" in dump.text)
        assert "can be reached again" in worker.text
        assert worker.stop() == 0


@pytest.mark.parametrize("kind", ["redis"])
def test_celery_worker_restarts_if_redis_is_lost_during_a_task(own: Bed, tmp_path: Path) -> None:
    path, gate = tmp_path / "path", tmp_path / "gate"
    with (
        brokers.redis() as server,
        peers.wbengine_worker(tmp_path, server.url(), backend=own.backend) as worker,
    ):
        bed = replace(own, url=server.url())
        bed.call("start", f"{peers.NAME}.hold", (str(path), str(gate)))
        until(lambda: lines(path))
        server.kill()
        until(lambda: "the Celery worker failed (its error is above): it starts" in worker.text)
        server.start()
        assert bed.run("add", 1, 2)["value"] == 3
        gate.touch()
        until(lambda: "task 'tests.celery.tasks.hold' of request" in worker.text)
        assert worker.stop() == 0
