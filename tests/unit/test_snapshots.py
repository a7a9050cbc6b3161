"""Snapshots of workers and requests."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from wbengine.engines.worker_based._discovery import roster, snapshots
from wbengine.engines.worker_based._messages import worker_life


def request(number: int = 1, state: Any = "finished", **more: Any) -> snapshots.RequestSnapshot:
    return snapshots.RequestSnapshot(
        f"id-{number}", "resize", "tasks.Resize", "execute", 1, 1, state, **more
    )


@pytest.mark.parametrize(
    ("started", "ended", "runtime"),
    [(1.0, 3.5, 2.5), (3.0, 1.0, 0.0), (None, 3.0, None), (1.0, None, None)],
)
def test_runtime_of_a_request_is_never_negative(started: Any, ended: Any, runtime: Any) -> None:
    assert request(started=started, ended=ended).runtime == runtime


def test_unknown_request_state_is_rejected_with_a_suggestion() -> None:
    for state in (None, "deferred", "queued", "started", "finished", "failed"):
        snapshots.check_state(state)
    with pytest.raises(ValueError, match="did you mean 'started'"):
        snapshots.check_state("startd")


def topic_worker(topic: str, identity: Any = "w1", **more: Any) -> roster.TopicWorker:
    made = roster.TopicWorker(topic, ["a.B", f"a.{topic}"], identity)
    made.queue = f"{topic}.123"
    for name, value in more.items():
        setattr(made, name, value)
    return made


def test_worker_snapshot_combines_all_topics_of_a_process() -> None:
    alive = worker_life.Life("busy", birth=3.0)
    workers = [
        topic_worker("t", last_seen=10.0, slots=4, running=1),
        topic_worker("u", "w2", last_seen=12.0),
        topic_worker("u", last_seen=11.0, slots=4, running=2, life=alive),
    ]
    first, second = snapshots.of_workers(workers, now=20.0, wall=1000.0)
    assert first == snapshots.WorkerSnapshot(
        "w1", ("t", "u"), ("t.123", "u.123"), ("a.B", "a.t", "a.u"), 4, 2, 991.0, alive
    )
    assert (first.state, second.state, second.identity) == ("busy", "idle", "w2")
    with pytest.raises(dataclasses.FrozenInstanceError):
        first.slots = 5  # type: ignore[misc]


def test_workers_without_identity_have_one_snapshot_per_topic() -> None:
    workers = [topic_worker(name, roster.NO_IDENTITY, running=1) for name in ("t", "u")]
    found = snapshots.of_workers(workers, now=0.0, wall=0.0)
    assert [(one.identity, one.topics, one.state) for one in found] == [
        (None, ("t",), "busy"),
        (None, ("u",), "busy"),
    ]
