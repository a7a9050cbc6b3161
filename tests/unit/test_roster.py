"""Totals of the workers of a queue."""

from __future__ import annotations

import random

import pytest

from wbengine.engines.worker_based._discovery import roster as rosters
from wbengine.engines.worker_based._discovery.roster import Roster, TopicWorker
from wbengine.engines.worker_based._messages import worker_life as lives


def after(moments: tuple[float, float], since: float) -> int:
    return (moments[0] > since) + (moments[1] > since)


def join(roster: Roster, name: str, now: float, tasks: tuple[str, ...] = ("a",)) -> TopicWorker:
    worker = TopicWorker("t", tasks, name)
    worker.queue = "q"
    worker.joined = worker.last_seen = now
    roster.add(worker)
    return worker


@pytest.mark.parametrize("seed", range(20))
def test_queue_totals_match_a_scan_of_all_workers(seed: int) -> None:
    luck = random.Random(seed)
    roster, now = Roster(), 100.0
    join(roster, "w0", now)
    for step in range(1, 150):
        now += luck.choice((0.0, 0.1, 2.5, 5.0))
        workers = list(roster)
        if luck.random() < 0.1:
            join(roster, f"w{step}", now)
        elif len(workers) > 1 and luck.random() < 0.1:
            roster.remove(luck.choice(workers))
        else:
            worker = luck.choice(workers)
            slots, running = luck.choice((1, 4)), luck.choice((0, 0, 0, 1, 4, 9))
            worker.last_seen = now
            roster.update(worker, slots, running)
            worker.report(now, 5.0, running < slots)
        queue, since = roster.queues["q"], now - luck.choice((0.0, 1.0, 5.0, 12.0, 60.0))
        members = queue.members.values()
        assert queue.free_of(since) == sum(w.free for w in members if w.last_seen >= since)
        there = [after(w.last_reports, since) for w in members if w.joined <= since]
        assert queue.report_rounds(since) == min(there, default=2)
        with_free_slot = [after(w.last_free_reports, since) for w in members]
        assert queue.free_slot_rounds(since) == min(with_free_slot)


def test_workers_of_a_queue_share_one_tuple_of_task_names() -> None:
    roster = Roster()
    one, two = (join(roster, name, 1.0, ("".join(["a", "b"]),)) for name in ("one", "two"))
    other = join(roster, "three", 1.0, ("c",))
    assert one.tasks is two.tasks == ("ab",)
    assert other.tasks == ("c",)


def test_full_roster_describes_a_worker_that_needs_no_more_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    roster = Roster()
    worker = join(roster, "w", 1.0)
    roster.describe(worker, lives.Life(current=(("1", "a"),)))
    monkeypatch.setattr(rosters, "MAX_NAME_BYTES", 0)
    same, more = lives.Life(current=(("2", "a"),)), lives.Life(current=(("2", "a"), ("3", "a")))
    roster.describe(worker, same)
    assert worker.life is same
    roster.describe(worker, more)
    assert worker.life is same


def test_roster_finds_workers_by_process_name() -> None:
    roster = Roster()
    workers = [join(roster, name, 1.0) for name in ("one", "two")]
    assert roster.topics_of("two") == workers[1:]
    assert roster.topics_of("three") == []
