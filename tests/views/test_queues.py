"""What waits in queues and ledgers, and what becomes of flows when queues are emptied."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from tests.support import worker_tasks as tasks
from tests.support.workers import until, worker_in_thread
from wbengine import engines, exceptions, transports
from wbengine.patterns import unordered_flow
from wbengine.views import fleet as fleets
from wbengine.views import ledgers, queues


def begun(place: dict[str, Any], count: int) -> tuple[Any, threading.Thread]:
    """An engine with tasks that nobody runs yet, and the thread that waits for them."""
    flow = unordered_flow.Flow("f")
    flow.add(*(tasks.Where(name=f"t{n}", provides=f"w{n}") for n in range(count)))
    made = engines.load(
        flow,
        store={"rest": 0.0},
        engine="worker-based",
        transition_timeout=None,
        worker_expiry=2,  # who is asked often is missed soon
        **place,
    )
    thread = threading.Thread(target=made.run)
    thread.start()
    return made, thread


def test_purged_requests_are_sent_again(place: dict[str, Any], looking: fleets.Fleet) -> None:
    ledger = place.get("ledger")
    with worker_in_thread(place["url"], tasks, ledger=ledger, threads_count=2) as one:
        (queue,) = one.queues.values()
        one.suspend()
        made, thread = begun(place, 5)

        def waiting() -> int:
            (found,) = queues.look(looking, [queue])
            assert (found.kind, found.topic, found.workers) == ("requests", "t", (one.identity,))
            return found.messages

        until(lambda: waiting() == 5)
        with ledgers.opened(ledger, transports.resolve(place["url"], exchange="default")) as rows:
            assert rows is not None
            found = ledgers.rows(rows)
            assert [row.state for row in found.rows] == ["open"] * 5
            some = ledgers.rows(rows, 3)
            assert len(some.rows) == 3 and some.after is not None
            assert ledgers.rows(rows, state="claimed").rows == ()
        kinds = {each.name: each.kind for each in queues.look(looking)}
        assert kinds[one.identity] == "worker"
        if queues.tells_all(looking):
            assert sorted(kinds.values()) == ["engine", "requests", "worker"]
        assert queues.purge(looking, queues.look(looking, [queue])) == {queue: 5}
        assert waiting() == 0
        one.resume()
        thread.join(60)
        assert not thread.is_alive()
        assert made.storage.get_flow_state() == "SUCCESS"
        assert one.life.successes == 5


def test_names(place: dict[str, Any], looking: fleets.Fleet) -> None:
    with worker_in_thread(place["url"], tasks, ledger=place.get("ledger")) as one:
        (queue,) = one.queues.values()
        if queues.tells_all(looking):  # others are asked for what is named
            assert [each.name for each in queues.look(looking, ["t."], wait=30)] == [queue]
        with pytest.raises(exceptions.NotFound, match=f"no queue 'x{queue}' .did you mean"):
            queues.look(looking, [f"x{queue}"], wait=30)


def test_nothing_is_there(place: dict[str, Any], looking: fleets.Fleet) -> None:
    assert queues.look(looking, wait=0.1) == []
    with pytest.raises(exceptions.NotFound, match="there is no queue 'q'"):
        queues.look(looking, ["q"], wait=0.1)


def test_no_such_rows(tmp_path: Path) -> None:
    target = transports.resolve("amqp://localhost")
    with ledgers.opened(None, target) as none:
        assert none is None
    with ledgers.opened(f"dir://{tmp_path}/ledger", target) as found:
        assert found is not None
        assert ledgers.rows(found) == ledgers.RowPage((), None)
        with pytest.raises(ValueError, match=r"'opened' is no state of a row .did you mean 'open'"):
            ledgers.rows(found, state="opened")
        with pytest.raises(ValueError, match="1 to 1000"):
            ledgers.rows(found, 0)
        found.open_many([(f"row{number:03}", 1) for number in range(250)])
        for number in range(200, 250):
            assert found.claim(f"row{number}", 1, "w").granted
        page = ledgers.rows(found, 40, state="claimed")
        assert [row.id for row in page.rows] == [f"row{number}" for number in range(200, 240)]
        rest = ledgers.rows(found, 40, page.after, "claimed")
        assert ([row.id for row in rest.rows], rest.after) == (
            [f"row{number}" for number in range(240, 250)],
            None,
        )
