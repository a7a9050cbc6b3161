"""Engines and workers of TaskFlow together with those of wbengine, over Redis and RabbitMQ."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import kombu
import pytest

from tests.interop import peers, tasks
from tests.interop.flows import ENDS, Run
from tests.support.brokers import KILLED, Brokers, Place
from tests.support.workers import until, worker_in_thread
from wbengine import exceptions as exc
from wbengine import states

PATHS = ("fails", "flaky")

#: Flows with a single task that TaskFlow's worker cannot report or does not survive.
BAD = ("exits", "odd", "limited")

#: TaskFlow's default is to give up a broker after three seconds.
PATIENT = {"retry_options": {"max_retries": 60}}


def store_of(flow: str, folder: Path) -> dict[str, Any]:
    if flow == "adds":
        return {"x": 1, "y": 2}
    if flow == "swaps":
        odd = {1: "one", None: "none"}
        return {"values": tasks.VALUES, "pair": (1, (2, 3)), "odd": odd}
    return {"path": str(folder / flow)} if flow in PATHS else {}


def our_run(url: str, flow: str, store: Mapping[str, Any], **options: Any) -> Run:
    """Start a run of a flow on a wbengine engine."""
    made = options.pop("made", {})
    options = {"topics": [peers.TOPIC], "interop": "taskflow", **options}
    run = Run(flow, store, made, url=str(url), **options)
    run.start()
    return run


def check_ends(ended: Mapping[str, Mapping[str, Any]], folder: Path) -> None:
    """Check the results of all flows."""
    for flow, values in ENDS.items():
        result = ended[flow]
        assert result["state"] == states.SUCCESS, (flow, result)
        assert {name: result["values"][name] for name in values} == values
    steps = ended["steps"]["progress"]
    assert steps == sorted(steps) and {0.25, 0.5, 0.75, 1.0} <= set(steps)
    result = ended["fails"]
    assert result["state"] == states.REVERTED
    failure = result["failures"]["bad"]
    assert failure["types"] == ["ValueError", "Exception"]
    assert (failure["text"], failure["args"]) == ("('no such luck', 7)", ["no such luck", 7])
    assert 'raise ValueError("no such luck", 7) from error' in failure["traceback"]
    assert failure["causes"] == ["'absent'"]
    why = "because of bad: ('no such luck', 7) ValueError True"
    assert (folder / "fails").read_text(encoding="utf-8").splitlines() == [
        "first ran",
        "second ran",
        f"bad undone of a failure: ('no such luck', 7) {why}",
        f"second undone of {{'of': 'second', 'n': [1, 2]}} {why}",
        f"first undone of {{'of': 'first', 'n': [1, 2]}} {why}",
    ]
    again = (folder / "flaky").read_text(encoding="utf-8").splitlines()
    assert again.count("flaky ran") == again.count("note ran") == 3
    assert again.count("flaky undone") == 2


# wbengine engines, TaskFlow workers
# -----------------------------------------------------------------


def test_wbengine_engines_run_flows_on_taskflow_workers(
    taskflow: peers.TaskFlow, url: Place, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The flows run concurrently, and the worker starts after them."""
    names = (*ENDS, "fails")
    runs = {name: our_run(url, name, store_of(name, tmp_path)) for name in names}
    with taskflow.worker(url) as worker:
        ended = {name: run.told() for name, run in runs.items()}
        assert worker.text == ""
    check_ends(ended, tmp_path)
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
    error = runs["fails"].error
    assert isinstance(error, ValueError) and isinstance(error, exc.WrappedFailure)
    assert runs["adds"].attempt("a").worker == peers.TOPIC


def test_missing_dead_and_busy_taskflow_workers_are_distinguished(
    taskflow: peers.TaskFlow, url: Place, tmp_path: Path
) -> None:
    """A busy TaskFlow worker is as silent as a dead one; the engine waits for it."""
    path = tmp_path / "path"
    soon = {"worker_expiry": 1}
    with (
        taskflow.worker(url, "dead") as dead,
        taskflow.worker(url, "busy", threads=1),
    ):
        absent = our_run(url, "adds", {"x": 1, "y": 2}, topics=["nobody"], transition_timeout=0.5)
        lost = our_run(url, "rests", {"seconds": 60, "path": str(path)}, topics=["dead"], **soon)
        busy = our_run(url, "rests", {"seconds": 2.2}, topics=["busy"], **soon)
        until(path.exists)
        dead.kill()
        assert absent.told()["state"] == lost.told()["state"] == states.REVERTED
        assert isinstance(absent.error, exc.NeverStarted)
        assert isinstance(lost.error, exc.WorkerLost)
        assert "was lost while it ran task 'r0'" in str(lost.error)
        assert busy.told()["values"]["p0"] == "r0"


def test_local_task_and_own_messages_do_not_reach_taskflow_worker(
    taskflow: peers.TaskFlow, rabbitmq_url: Place
) -> None:
    """No message goes to exchanges or keys of wbengine."""
    with taskflow.worker(rabbitmq_url):
        run = our_run(rabbitmq_url, "where", {}, made={"count": 2}, local_tasks=["w0"])
        values = run.told()["values"]
    assert values["p0"] == [os.getpid(), "wbengine"]
    assert values["p1"][1] == "taskflow"
    assert [left for left in rabbitmq_url.left() if "wbe" in left] == []


def test_control_of_taskflow_workers_is_refused(url: Place) -> None:
    run = Run("adds", {}, {}, url=str(url), topics=["t"], interop="taskflow")
    with pytest.raises(ValueError, match="does not support the command drain"):
        run.engine.executor.control("drain")


def test_cancelled_flow_waits_for_taskflow_worker(
    taskflow: peers.TaskFlow, url: Place, tmp_path: Path
) -> None:
    """The TaskFlow worker receives no message about it, and no unused queue is created."""
    path, go = tmp_path / "path", tmp_path / "go"
    with taskflow.worker(url):
        run = our_run(url, "holds", {"path": str(path), "go": str(go)})
        until(path.exists)
        run.engine.cancel()
        go.touch()
        assert run.told()["state"] == states.REVERTED
        assert isinstance(run.error, exc.Cancelled)
        assert [left for left in url.left() if "wbe" in left] == []


# TaskFlow engines, wbengine workers
# -----------------------------------------------------------------


def test_taskflow_engines_run_flows_on_wbengine_workers(
    taskflow: peers.TaskFlow, url: Place, kind: str, tmp_path: Path
) -> None:
    """The flows run concurrently, the worker starts after them, and a TaskFlow worker joins it."""
    bad = BAD if kind == "redis" else ()
    with contextlib.ExitStack() as stack:
        runs = {
            name: stack.enter_context(taskflow.engine(url, name, store_of(name, tmp_path)))
            for name in (*ENDS, "fails", *bad)
        }
        worker = stack.enter_context(peers.our_worker(tmp_path, url, "--threads", "2"))
        ended = {name: engine.told(what=name) for name, engine in runs.items()}
        check_ends(ended, tmp_path)
        if bad:
            check_bad(ended)
        check_mixed(taskflow, url)
        assert worker.stop() == 0
        lines = [line for line in worker.text.splitlines() if " ERROR " in line or "WARN" in line]
        assert all(" failed after " in line for line in lines), lines


def check_bad(ended: Mapping[str, Mapping[str, Any]]) -> None:
    assert all(ended[name]["state"] == states.REVERTED for name in BAD)
    failures = {name: ended[name]["failures"][name] for name in BAD}
    assert failures["exits"]["types"] == ["SystemExit", "BaseException"]
    assert failures["odd"]["text"].startswith("result['things'][1]: builtin_function")
    assert failures["limited"]["types"][0] == "wbengine.exceptions.SoftTimeLimitExceeded"


def check_mixed(taskflow: peers.TaskFlow, url: Place) -> None:
    """Check that both kinds of workers on one topic receive tasks from both kinds of engines."""
    with taskflow.worker(url):
        until(lambda: len(sides_of(our_run(url, "where", {}, made={"count": 8}).told())) == 2)

        def both_of_theirs() -> bool:
            with taskflow.engine(url, "where", {"seconds": 0.05}, {"count": 16}) as engine:
                return len(sides_of(engine.told())) == 2

        until(both_of_theirs)


def sides_of(result: Mapping[str, Any]) -> set[str]:
    assert result["state"] == states.SUCCESS
    return {value[1] for name, value in result["values"].items() if name.startswith("p")}


def test_taskflow_engine_is_notified_of_lost_wbengine_worker(
    taskflow: peers.TaskFlow, rabbitmq_url: Place, tmp_path: Path
) -> None:
    """RabbitMQ redelivers the request to the next worker, which reports it as lost."""
    path = tmp_path / "path"
    store = {"seconds": 60, "path": str(path)}
    with (
        taskflow.engine(rabbitmq_url, "rests", store) as engine,
        peers.our_worker(tmp_path, rabbitmq_url) as worker,
    ):
        until(path.exists)
        with worker_in_thread(rabbitmq_url, tasks, topic=peers.TOPIC, interop="taskflow") as other:
            worker.signal(signal.SIGKILL)
            result = engine.told()
            assert other.counts["lost"] == 1
    assert result["state"] == states.REVERTED
    failure = result["failures"]["r0"]
    assert failure["types"][0] == "wbengine.exceptions.WorkerLost"
    assert len(path.read_text(encoding="utf-8").splitlines()) == 1


@pytest.mark.slow
def test_taskflow_engine_keeps_busy_wbengine_worker(
    taskflow: peers.TaskFlow, url: Place, tmp_path: Path
) -> None:
    """The engine sends a notification every five seconds.  A busy TaskFlow worker replies only when
    it
    has a free slot.
    """
    with (
        peers.our_worker(tmp_path, url, "--threads", "1"),
        taskflow.engine(url, "rests", {"seconds": 14.0}, worker_expiry=7) as long,
    ):
        with taskflow.engine(url, "rests", {"seconds": 0.1}, transition_timeout=20) as short:
            assert long.told()["values"]["p0"] == short.told()["values"]["p0"] == "r0"
        assert "Removed worker" not in long.text


def test_running_reply_precedes_success_reply(url: Place) -> None:
    """A SUCCESS without RUNNING would end the reader thread of TaskFlow's engine."""
    exchange = kombu.Exchange("default", durable=False, auto_delete=True)
    requests, answers = (
        kombu.Queue(f"default_{key}", exchange, key, durable=False, auto_delete=True)
        for key in (peers.TOPIC, "me")
    )
    body = {"task_cls": f"{tasks.__name__}.Add", "task_name": "a", "task_version": [1, 0],
            "action": "execute", "arguments": {"x": 1, "y": 2}}  # fmt: skip
    states_by_task: dict[str, list[str]] = {}
    with (
        worker_in_thread(url, tasks, topic=peers.TOPIC, interop="taskflow"),
        kombu.Connection(str(url)) as connection,
        connection.channel() as channel,
    ):
        replies = answers(channel)
        replies.declare()
        producer = connection.Producer()
        for number in range(100):
            producer.publish(
                body, routing_key=peers.TOPIC, exchange=exchange, declare=[requests],
                type="REQUEST", reply_to="me", correlation_id=f"id-{number}",
            )  # fmt: skip

        def hear() -> bool:
            while (message := replies.get(no_ack=True)) is not None:
                state = message.payload["state"]
                states_by_task.setdefault(message.properties["correlation_id"], []).append(state)
            return len(states_by_task) == 100 and all(
                "SUCCESS" in heard for heard in states_by_task.values()
            )

        until(hear)
    assert {tuple(dict.fromkeys(heard)) for heard in states_by_task.values()} == {
        ("RUNNING", "SUCCESS")
    }


# Broker restarts
# ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KILLED)
def test_tasks_end_after_broker_is_killed_and_restarted(
    taskflow: peers.TaskFlow, url: Place, kind: str, broker_servers: Brokers, tmp_path: Path
) -> None:
    """Running tasks complete on both sides if TaskFlow's retry options allow for the restart."""
    server = broker_servers[kind]
    seconds = 0.6 if kind == "redis" else 6.0
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    with (
        taskflow.worker(url, "theirs", **PATIENT),
        peers.our_worker(tmp_path, url, topic="ours"),
        taskflow.engine(
            url, "rests", {"seconds": seconds, "path": str(ours)}, topics=["ours"], **PATIENT
        ) as engine,
    ):
        run = our_run(url, "rests", {"seconds": seconds, "path": str(theirs)}, topics=["theirs"])
        until(lambda: ours.exists() and theirs.exists())
        server.kill()
        server.start()
        assert engine.told(60)["values"]["p0"] == "r0"
        assert run.told(60)["values"]["p0"] == "r0"


# Wrong usage
# ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({}, "requires topics"),
        ({"topics": ["video.*"]}, "requires exact topics"),
        ({"topics": ["t"], "ledger": "sqlite:////tmp/l.db"}, "does not support a ledger"),
    ],
)
def test_unsupported_option_with_taskflow_workers_is_refused(
    options: dict[str, Any], why: str
) -> None:
    with pytest.raises(ValueError, match=why):
        Run("adds", {}, {}, url="memory://no", interop="taskflow", **options)


def test_taskflow_compatible_worker_refuses_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="does not support a ledger"):
        worker_in_thread("memory://no", tasks, interop="taskflow", ledger="memory://x").__enter__()
    monkeypatch.setenv("WBENGINE_LEDGER", "memory://x")  # a setting for other workers
    with worker_in_thread("memory://no", tasks, interop="taskflow"):
        assert threading.active_count() > 1
