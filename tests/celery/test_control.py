"""`celery inspect`, `celery control` and `celery status` with workers of wbengine."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from tests.celery import peers
from tests.celery.conftest import Bed, Ours

NODE = "ours@here"


def test_inspect_reports_state_of_worker(own: Bed, ours: Ours, tmp_path: Path) -> None:
    words = "--threads", "2", "--celery-name", NODE
    with ours(*words) as worker:
        replies = own.call("answers", str(tmp_path / "path"))
    ids = replies.pop("ids")
    answers = {name: answer[NODE] for name, answer in replies.items()}
    assert answers["ping"] == {"ok": "pong"}
    active = answers["active"]
    assert len(active) == 2 and {each["id"] for each in active} <= set(ids["runs"])
    for each in active:
        assert each["name"] == f"{peers.NAME}.hold" and each["hostname"] == NODE
        assert each["args"] and each["time_start"] and each["worker_pid"]
        assert each["delivery_info"]["routing_key"] == peers.QUEUE
    # The worker prefetches no task without a free slot: waiting tasks are in the queue.
    assert {each["id"] for each in answers["reserved"]} <= set(ids["runs"])
    (scheduled,) = answers["scheduled"]
    assert scheduled["request"]["id"] == ids["later"] and scheduled["eta"]
    assert ids["gone"] in answers["revoked"]
    assert {f"{peers.NAME}.add", f"{peers.NAME}.hold"} <= set(answers["registered"])
    stats = answers["stats"]
    assert stats["pid"] == worker.process.pid and stats["pool"]["max-concurrency"] == 2
    assert stats["total"].get(f"{peers.NAME}.hold", 0) in (0, 2)
    assert stats["broker"]["port"] and "password" not in str(stats["broker"]).lower()
    (queue,) = answers["active_queues"]
    assert queue["name"] == peers.QUEUE and queue["routing_key"] == peers.QUEUE
    assert answers["conf"] and answers["report"]["ok"]
    for secret in (own.url, own.backend):
        assert secret.split("@")[0].rpartition(":")[2] not in str(answers)
    assert answers["query"][ids["later"]][0] == "scheduled"


def test_rate_limit_spreads_tasks(own: Bed, ours: Ours) -> None:
    with ours("--threads", "4", "--celery-name", NODE):
        own.call("inspect", "ping")
        answer = own.call(
            "control", "rate_limit", task_name=f"{peers.NAME}.moment", rate_limit="2/s"
        )
        assert "ok" in answer[0][NODE], answer
        ids = [own.call("start", f"{peers.NAME}.moment") for _ in range(4)]
        moments = sorted(each["value"] for each in own.call("wait", *ids))
    assert moments[-1] - moments[0] >= 1.0, moments


def test_celery_commands_work_with_worker(own: Bed, ours: Ours, celery: peers.Celery) -> None:
    """The commands run in parallel because `celery status` always waits for its whole timeout."""
    words = "--threads", "2", "--celery-name", NODE
    with ours(*words) as worker:
        own.call("inspect", "ping")
        later = own.call("start", f"{peers.NAME}.add", (1, 2), countdown=3600)
        to = "-t", "50", "-d", NODE
        commands = {
            name: ("inspect", *to, name)
            for name in ("ping", "stats", "registered", "report", "active_queues", "conf")
        }
        commands["status"] = ("status", *to)
        commands["revoke"] = ("control", *to, "revoke", later)
        commands["rate_limit"] = ("control", *to, "rate_limit", f"{peers.NAME}.add", "1/m")
        with contextlib.ExitStack() as stack:
            started = {
                name: stack.enter_context(celery.command(own.url, *each))
                for name, each in commands.items()
            }
            codes = {name: peer.wait() for name, peer in started.items()}
            texts = {name: peer.text for name, peer in started.items()}
        for name, text in texts.items():
            assert codes[name] == 0, (name, text)
            if name not in ("revoke", "rate_limit"):
                assert NODE in text and "1 node online" in text, (name, text)
        assert f"{peers.NAME}.add" in texts["registered"]
        assert "pong" in texts["ping"]
        assert "new rate limit set" in texts["rate_limit"], texts["rate_limit"]
        assert own.call("wait", later)[0]["state"] == "REVOKED"
        with celery.command(own.url, "control", "-d", NODE, "shutdown"):
            assert worker.wait() == 0
        assert os.path.exists(worker.log)
