"""Queues, ledger rows and purged requests."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from tests.support import worker_tasks as tasks
from tests.support.workers import until, worker_in_thread
from wbengine import engines, exceptions, transports
from wbengine.fleet import _ledgers, _message_queues
from wbengine.fleet import client as fleets
from wbengine.patterns import unordered_flow


def begun(place: dict[str, Any], count: int) -> tuple[Any, threading.Thread]:
    """Run an engine whose tasks no worker executes yet; return it and its thread."""
    flow = unordered_flow.Flow("f")
    flow.add(*(tasks.Where(name=f"t{n}", provides=f"w{n}") for n in range(count)))
    made = engines.load(
        flow,
        store={"rest": 0.0},
        engine="worker-based",
        transition_timeout=None,
        worker_expiry=2,  # short, so that purged requests are noticed soon
        **place,
    )
    thread = threading.Thread(target=made.run)
    thread.start()
    return made, thread


def test_purged_requests_are_resent(place: dict[str, Any], looking: fleets.Fleet) -> None:
    ledger = place.get("ledger")
    with worker_in_thread(place["url"], tasks, ledger=ledger, threads_count=2) as one:
        (queue,) = one.queues.values()
        one.suspend()
        made, thread = begun(place, 5)

        def waiting() -> int:
            (found,) = _message_queues.list_queues(looking, [queue])
            assert (found.kind, found.topic, found.workers) == ("requests", "t", (one.identity,))
            return found.messages

        until(lambda: waiting() == 5)
        with _ledgers.open_ledger(
            ledger, transports.resolve(place["url"], exchange="default")
        ) as rows:
            assert rows is not None
            found = _ledgers.rows(rows)
            assert [row.state for row in found.rows] == ["open"] * 5
            some = _ledgers.rows(rows, 3)
            assert len(some.rows) == 3 and some.after is not None
            assert _ledgers.rows(rows, state="claimed").rows == ()
        kinds = {each.name: each.kind for each in _message_queues.list_queues(looking)}
        assert kinds[one.identity] == "worker"
        if _message_queues.can_list(looking):
            assert sorted(kinds.values()) == ["engine", "requests", "worker"]
        assert _message_queues.purge(looking, _message_queues.list_queues(looking, [queue])) == {
            queue: 5
        }
        assert waiting() == 0
        one.resume()
        thread.join(60)
        assert not thread.is_alive()
        assert made.storage.get_flow_state() == "SUCCESS"
        assert one.life.successes == 5


def test_queue_is_found_by_prefix_and_unknown_name_gets_a_suggestion(
    place: dict[str, Any], looking: fleets.Fleet
) -> None:
    with worker_in_thread(place["url"], tasks, ledger=place.get("ledger")) as one:
        (queue,) = one.queues.values()
        if _message_queues.can_list(looking):  # other brokers need exact names
            assert [
                each.name for each in _message_queues.list_queues(looking, ["t."], wait=30)
            ] == [queue]
        with pytest.raises(exceptions.NotFound, match=f"unknown queue 'x{queue}' .did you mean"):
            _message_queues.list_queues(looking, [f"x{queue}"], wait=30)


def test_empty_broker_has_no_queues(place: dict[str, Any], looking: fleets.Fleet) -> None:
    assert _message_queues.list_queues(looking, wait=0.1) == []
    with pytest.raises(exceptions.NotFound, match="unknown queue 'q'"):
        _message_queues.list_queues(looking, ["q"], wait=0.1)


def test_ledger_rows_are_listed_by_state_in_pages(tmp_path: Path) -> None:
    target = transports.resolve("amqp://localhost")
    with _ledgers.open_ledger(None, target) as none:
        assert none is None
    with _ledgers.open_ledger(f"dir://{tmp_path}/ledger", target) as found:
        assert found is not None
        assert _ledgers.rows(found) == _ledgers.RowPage((), None)
        with pytest.raises(ValueError, match=r"got 'opened' .did you mean 'open'"):
            _ledgers.rows(found, state="opened")
        with pytest.raises(ValueError, match="1 to 1000"):
            _ledgers.rows(found, 0)
        found.open_many([(f"row{number:03}", 1) for number in range(250)])
        for number in range(200, 250):
            assert found.claim(f"row{number}", 1, "w").granted
        page = _ledgers.rows(found, 40, state="claimed")
        assert [row.id for row in page.rows] == [f"row{number}" for number in range(200, 240)]
        rest = _ledgers.rows(found, 40, page.after, "claimed")
        assert ([row.id for row in rest.rows], rest.after) == (
            [f"row{number}" for number in range(240, 250)],
            None,
        )
