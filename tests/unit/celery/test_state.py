"""What events tell of a cluster, compared with the picture that Celery makes of them."""

from __future__ import annotations

import random
from typing import Any

import pytest

from wbengine.interop.celery.monitoring import events, state


def event(kind: str, when: float = 1.0, hostname: str = "w@h", **fields: Any) -> events.Event:
    clock = fields.pop("clock", 1)
    return events.Event(kind, hostname, clock, when, 0, 7, fields)


def told(*all_of_them: events.Event, **options: Any) -> state.State:
    made = state.State(**options)
    for number, each in enumerate(all_of_them):
        made.on(each, 1000.0 + number)
    return made


def test_the_life_of_a_task() -> None:
    found = told(
        event("task-sent", 1, "client@h", uuid="u", name="add", args="(1,)", queue="q"),
        event("task-received", 2, uuid="u", name="add", args="(1,)", kwargs="{}", retries=0),
        event("task-started", 3, uuid="u"),
        event("task-succeeded", 4, uuid="u", result="2", runtime=0.5, clock=9),
    )
    task = found.task("u")
    assert task is not None
    assert (task.state, task.has_ended, task.timestamp, task.clock) == ("SUCCESS", True, 4, 9)
    assert (task.name, task.args, task.kwargs, task.retries) == ("add", "(1,)", "{}", 0)
    assert (task.result, task.runtime, task.queue) == ("2", 0.5, "q")
    assert (task.client, task.worker) == ("client@h", "w@h")
    assert task.times == {"sent": 1, "received": 2, "started": 3, "succeeded": 4}
    assert found.counts == {"task": 4}
    assert found.tasks(name="add") == found.tasks(worker="w@h") == found.tasks() == [task]
    assert found.tasks(state="FAILURE") == found.tasks(name="x") == found.tasks(worker="x") == []
    # A task's events are a sign of life of who runs it, and none of who sent it.
    assert [worker.hostname for worker in found.workers()] == ["w@h"]


@pytest.mark.parametrize(
    ("actions", "expected"),
    [
        (["started", "received"], "STARTED"),
        (["succeeded", "received", "started"], "SUCCESS"),
        (["retried", "received"], "RECEIVED"),
        (["received", "started", "retried", "received", "started", "failed"], "FAILURE"),
        (["started", "retried"], "RETRY"),
        (["received", "revoked"], "REVOKED"),
        (["received", "rejected"], "RECEIVED"),
        (["rejected"], "REJECTED"),
        (["started", "paused"], "PAUSED"),
    ],
)
def test_what_comes_late_changes_nothing(actions: list[str], expected: str) -> None:
    found = told(*(event(f"task-{action}", n, uuid="u") for n, action in enumerate(actions)))
    task = found.task("u")
    assert task is not None
    assert task.state == expected


def test_the_same_states_as_in_celerys_own_picture() -> None:
    from celery.events import state as celery_state

    dice = random.Random(11)
    actions = [*state.STATES, "progress"]
    for _ in range(300):
        ours, theirs = state.State(), celery_state.State()
        for number in range(dice.randint(1, 12)):
            uuid, action = dice.choice("abc"), dice.choice(actions)
            fields: dict[str, Any] = {"uuid": uuid}
            if action in ("sent", "received"):
                fields |= {"name": dice.choice("xy"), "args": str(number), "retries": number}
            if action == "succeeded":
                fields |= {"result": str(number), "runtime": number / 8}
            one = event(f"task-{action}", float(number), dice.choice(["w1", "w2"]), **fields)
            ours.on(one, 1000.0)
            theirs.event({**one.as_dict(), "local_received": 1000.0})
        assert {task.uuid for task in ours.tasks()} == set(theirs.tasks)
        for uuid, known in theirs.tasks.items():
            task = ours.task(uuid)
            assert task is not None
            assert task.state == known.state
            for name in ("name", "args", "retries", "result", "runtime", "client"):
                assert getattr(task, name) == getattr(known, name), name
            assert task.worker == (known.worker and known.worker.hostname)
            assert {a: getattr(known, a) for a in state.STATES if getattr(known, a)} == {
                a: when for a, when in task.times.items() if when and a in state.STATES
            }


def test_workers_live_by_their_heartbeats() -> None:
    found = state.State()
    facts = {"freq": 2.0, "active": 1, "processed": 9, "loadavg": [0.1, 0.2, 0.3]}
    software = {"sw_ident": "py-celery", "sw_ver": "5", "sw_sys": "Linux"}
    found.on(event("worker-online", **facts, **software), 100.0)
    (worker,) = found.alive(103.9)
    assert (worker.pid, worker.active, worker.processed) == (7, 1, 9)
    assert worker.loadavg == (0.1, 0.2, 0.3)
    assert (worker.sw_ident, worker.sw_ver, worker.sw_sys) == ("py-celery", "5", "Linux")
    assert found.alive(104.0) == []
    found.on(event("worker-heartbeat"), 104.0)
    (worker,) = found.alive(107.0)
    assert (worker.freq, worker.active) == (2.0, 1)  # what is not said stays
    found.on(event("worker-offline"), 105.0)
    assert found.alive(105.0) == []
    known = found.worker("w@h")
    assert known is not None
    assert not known.is_alive()
    assert found.worker("other") is None


def test_who_did_not_say_how_often_it_beats() -> None:
    found = told(event("task-started", uuid="u"))
    assert [each.hostname for each in found.alive(1119.0)] == ["w@h"]
    assert found.alive(1120.0) == []


def test_no_more_than_so_many_are_remembered() -> None:
    found = state.State(max_tasks=3, max_workers=2)
    for number in range(10):
        found.on(event("task-received", uuid=f"u{number}", hostname=f"w{number}"))
        found.on(event("task-started", uuid="u0", hostname="w0"))
    assert [task.uuid for task in found.tasks()] == ["u0", "u9", "u8"]
    assert [worker.hostname for worker in found.workers()] == ["w0", "w9"]
    found.on(event("task-failed", uuid="u8"))
    found.on(event("task-received", uuid="new"))  # those go that were told of longest ago
    assert [task.uuid for task in found.tasks()] == ["new", "u8", "u0"]
    found.clear()
    assert (found.tasks(), found.workers(), found.counts) == ([], [], {})


def test_no_more_of_a_text_than_so_much() -> None:
    found = told(
        event("task-failed", uuid="u", exception="e" * 9999, traceback=f"{'t' * 99999}the end"),
        *(event(f"task-x{number}", uuid="u") for number in range(100)),
    )
    task = found.task("u")
    assert task is not None
    assert len(task.exception or "") == 1024
    assert len(task.traceback or "") == 8192
    assert (task.traceback or "").endswith("the end")
    assert len(task.times) == 16


@pytest.mark.parametrize("odd", [None, 7, -1, 1e300, "x", [], {}, [1, "x"], True, 2**80])
def test_whatever_is_in_an_event(odd: Any) -> None:
    names = {f.name for kind in events.CATALOGUE.values() for f in kind.fields}
    found = state.State()
    for kind in (*events.CATALOGUE, "task-", "task", "worker", "x", "-"):
        found.on(event(kind, **dict.fromkeys(names, odd)))
        found.on(event(kind, **{**dict.fromkeys(names, odd), "uuid": "u"}))
    for worker in found.workers():
        assert worker.is_alive(worker.heard) == (worker.heard > 0)
    task = found.task("u")
    assert task is not None
    for name in ("args", "kwargs", "name", "result"):
        assert isinstance(getattr(task, name), str | None)


def test_what_is_given_out_stays_as_it_was() -> None:
    found = told(event("task-received", uuid="u"))
    before = found.task("u")
    found.on(event("task-started", uuid="u"))
    assert before is not None
    assert before.state == "RECEIVED"
    assert "started" not in before.times
