"""Orders: requests that are delivered with the reply to finished ones."""

from __future__ import annotations

import contextlib
import random
import threading

import pytest

from tests.support import sample_tasks
from tests.support.engine_threads import running
from tests.support.redis_ends import SOON, Both, url_with_port
from tests.support.workers import until, worker_in_thread
from wbengine import engines
from wbengine.patterns import unordered_flow
from wbengine.transports import _ledger
from wbengine.transports._broker import MAX_BATCH_BYTES
from wbengine.transports._redis import redis_broker, redis_scripts
from wbengine.transports._redis.redis_link import LOST

IDS = [f"r{number}" for number in range(8)]


def ids(messages):
    return [message.properties["correlation_id"] for message in messages]


def fill_slots(both, count, *ids):
    """Post requests and receive `count` of them, so that the consumer has no free slot."""
    both.post(*ids)
    both.take(count, prefetch=count)
    with pytest.raises(TimeoutError):
        both.connection.drain_events(timeout=0.01)


def finish_with_order(both, messages):
    """Finish requests, and deliver those that the reply contains."""
    order = both.channel.order(messages)
    assert both.end(*messages, order=order) == [True] * len(messages)
    order.deliver()
    return order


def waiting_ids(whose, server):
    """Return the ids of waiting requests, by whether they are marked as redelivered."""
    prefix = whose.store.place.prefix
    found = {True: set(), False: set()}
    for message in server.zrange(f"{prefix}q:q", 0, -1):
        number, label, _ = message.split(b" ", 2)
        found[number.endswith(b"r")].add(label[1:].decode())
    return found


def test_reply_fetches_as_many_requests_as_it_finishes(both, client):
    fill_slots(both, 3, *IDS)
    assert finish_with_order(both, both.messages[:2]).max_messages == 2
    assert ids(both.messages) == IDS[:5]
    assert [m.claim for m in both.messages[3:]] == [_ledger.Claim("GRANTED", 1, None, "w")] * 2
    both.channel.forget_many(both.messages[:2])
    assert both.channel.order([]) is None, "there is no room"
    assert both.store.size("q") == 3
    finish_with_order(both, both.messages[2:])
    assert ids(both.messages) == IDS
    finish_with_order(both, both.messages[5:])
    assert len(both.messages) == 8
    assert both.left(client) == ([], 0)


def test_order_stops_at_byte_limit_of_batch(both):
    fill_slots(both, 2, "a", "b")
    both.ledger.open_many([("c", 1), ("d", 1)])
    for id in "c", "d":
        both.send(id, body="x" * (MAX_BATCH_BYTES * 2 // 3))
    assert finish_with_order(both, both.messages[:2]).max_messages == 2
    assert ids(both.messages) == ["a", "b", "c"]
    both.connection.drain_events(timeout=SOON)
    assert ids(both.messages) == ["a", "b", "c", "d"]


def test_consumer_does_not_take_requests_for_slots_of_pending_order(both):
    fill_slots(both, 2, *IDS)
    order = both.channel.order(both.messages[:1])
    with pytest.raises(TimeoutError):
        both.connection.drain_events(timeout=0.1)
    assert ids(both.messages) == IDS[:2]
    both.end(both.messages[0], order=order)
    order.deliver()
    assert ids(both.messages) == IDS[:3]


def test_consumer_with_free_slots_takes_requests_without_order(both):
    both.post("a")
    both.take(1, prefetch=3)
    with pytest.raises(TimeoutError):
        both.connection.drain_events(timeout=0.01)
    assert both.channel.order(both.messages) is None
    both.post("b")
    both.connection.drain_events(timeout=SOON)
    assert ids(both.messages) == ["a", "b"]


def test_consumer_takes_requests_again_after_empty_order(both):
    """Otherwise the consumer would stop polling."""
    fill_slots(both, 1, "a")
    order = both.channel.order(both.messages)
    with pytest.raises(TimeoutError):  # no free slot
        both.connection.drain_events(timeout=0.05)
    assert both.end(both.messages[0], order=order) == [True]
    order.deliver()
    both.post("b")
    both.connection.drain_events(timeout=SOON)
    assert ids(both.messages) == ["a", "b"]


def test_requests_of_order_with_lost_reply_are_requeued_unmarked(
    redis_url, redis_server, dropper, both, client
):
    with contextlib.closing(Both(url_with_port(redis_url, redis_server, dropper.port))) as lossy:
        lossy.ledger._pool.call("SCRIPT", "LOAD", redis_scripts.SCRIPTS["finish_requests"].text)
        fill_slots(both, 2, *IDS)
        order = both.channel.order(both.messages)
        dropper.drop_reply_to = redis_scripts.SCRIPTS["finish_requests"].digest.encode()
        with pytest.raises(LOST):
            lossy.store.finish(both.finished(both.messages), order)
    assert both.ledger.state("r2").state == _ledger.ROW_CLAIMED
    with pytest.raises(LOST, match="was lost"):
        both.connection.drain_events(timeout=SOON)
    both.connection.release()
    with contextlib.closing(Both(redis_url)) as other:
        assert waiting_ids(other, client) == {True: set(), False: set(IDS[2:])}
        assert {other.ledger.state(id).state for id in IDS[2:]} == {_ledger.ROW_OPEN}
        assert other.store.finish(other.finished(both.messages)) == [True, True]
        assert [claim.verdict for claim in other.take(6)] == ["GRANTED"] * 6


def test_consumer_closed_during_order_requeues_ordered_requests(both, redis_url, client):
    with contextlib.closing(Both(redis_url, holder="other")) as other:
        fill_slots(both, 2, *IDS)
        order = both.channel.order(both.messages)
        told = both.finished(both.messages)
        other.store.finish(told, order)
        both.connection.release()
        order.deliver()
        assert ids(both.messages) == IDS[:2]
        assert waiting_ids(other, client) == {True: set(), False: set(IDS[2:])}
        assert [claim.verdict for claim in other.take(6)] == ["GRANTED"] * 6


def test_cancelled_consumer_requeues_ordered_requests(both, client):
    fill_slots(both, 2, *IDS)
    order = both.channel.order(both.messages)
    both.channel.stop("q")
    both.end(*both.messages, order=order)
    order.deliver()
    assert ids(both.messages) == IDS[:2]
    assert waiting_ids(both, client) == {True: set(), False: set(IDS[2:])}
    assert {both.ledger.state(id).state for id in IDS[2:]} == {_ledger.ROW_OPEN}
    assert both.channel.order([]) is None


def test_cancelled_consumer_that_lost_connection_requeues_requests(both, client):
    fill_slots(both, 2, *IDS)
    order = both.channel.order(both.messages)
    both.channel.stop("q")
    with contextlib.closing(Both(both.url)) as other:
        assert other.store.finish(both.finished(both.messages), order) == [True, True]
        client.client_kill_filter(_type="normal", skipme=True)
        order.deliver()
        both.connection.release()
    with contextlib.closing(Both(both.url)) as other:
        assert waiting_ids(other, client) == {True: set(), False: set(IDS[2:])}
        assert [claim.verdict for claim in other.take(6)] == ["GRANTED"] * 6


def test_connection_lost_before_large_bodies_arrive_requeues_whole_order(both, redis_url, client):
    """A body that arrived whole was not delivered to the callback either."""
    fill_slots(both, 2, "a", "b", "small")
    both.ledger.open_many([("large", 1)])
    both.send("large", body="large" * 20_000)
    order = both.channel.order(both.messages)
    with contextlib.closing(Both(redis_url)) as other:
        assert other.store.finish(both.finished(both.messages), order) == [True, True]
        assert {both.ledger.state(id).state for id in ("small", "large")} == {_ledger.ROW_CLAIMED}
        client.client_kill_filter(_type="normal", skipme=True)
        order.deliver()
        both.connection.release()
    assert ids(both.messages) == ["a", "b"]
    with contextlib.closing(Both(redis_url)) as other:
        assert [claim.verdict for claim in other.take(2)] == ["GRANTED"] * 2


def test_requeue_of_undelivered_copy_keeps_claim_of_another_worker(both, client):
    both.post("a")
    both.take(1, prefetch=1)
    with contextlib.closing(Both(both.url, holder="other")) as other:
        other.post("a")
        (taken,) = other.store.take_many([(1, ["q"])])
        assert taken[1].claim.verdict == "HELD"
        other.store.requeue(taken[1], delivered=False)
        assert waiting_ids(other, client) == {True: set(), False: {"a"}}
        assert other.ledger.state("a") == _ledger.Row("a", 1, _ledger.ROW_CLAIMED, "w")


def test_waiting_consumer_fails_at_once_when_reply_of_order_is_lost(both):
    fill_slots(both, 2, *IDS)
    order = both.channel.order(both.messages)
    failed = []

    def drain():
        try:
            both.connection.drain_events(timeout=2 * SOON)
        except LOST as error:
            failed.append(error)

    waiting = threading.Thread(target=drain)
    waiting.start()
    both.channel.miss(order)
    waiting.join(SOON)
    assert failed


def test_order_reports_heartbeat_of_consumer_and_worker(both, client):
    fill_slots(both, 2, *IDS)
    prefix = both.store.place.prefix
    client.zadd(f"{prefix}c", {both.store._consumer_name: 1})
    client.zadd(f"{prefix}beats", {"w": 1})
    both.end(*both.messages, order=both.channel.order(both.messages))
    assert client.zscore(f"{prefix}c", both.store._consumer_name) > 1
    assert client.zscore(f"{prefix}beats", "w") > 1


def test_busy_worker_fetches_requests_with_replies(redis_url, client, tmp_path, monkeypatch):
    fetched = []
    finish = redis_broker.RedisBroker._finish

    def count_fetched(broker, batch, order):
        finished, messages = finish(broker, batch, order)
        fetched.append(len(messages))
        return finished, messages

    monkeypatch.setattr(redis_broker.RedisBroker, "_finish", count_fetched)
    release = tmp_path / "release"
    first = [
        sample_tasks.WaitFor(
            f"w{i}", inject={"started": str(tmp_path / f"w{i}"), "release": str(release)}
        )
        for i in range(2)
    ]
    rest = [sample_tasks.Nothing(name=f"n{i}") for i in range(58)]
    flow = unordered_flow.Flow("f").add(*first, *rest)
    engine = engines.load(flow, engine="worker-based", url=str(redis_url))
    with worker_in_thread(str(redis_url), sample_tasks, threads_count=2) as worker:
        (queue,) = worker.queues.values()
        with running(engine), contextlib.ExitStack() as stack:
            stack.callback(release.touch)
            until(lambda: len(list(tmp_path.iterdir())) == 2)  # both tasks run,
            name = f"wbe:{{default}}:q:{queue}"  # and the others wait
            until(lambda: client.zcard(name) + worker.counts.get("SUCCESS", 0) == len(rest))
    # The worker itself takes messages only before its tasks are done, and after an empty queue.
    assert sum(fetched) > 0.8 * len(rest)


def test_unregistered_consumer_receives_nothing_by_order_and_registers(both, client):
    fill_slots(both, 1, *IDS[:3])
    client.delete(f"{both.store.place.prefix}c")
    finish_with_order(both, both.messages)
    assert len(both.messages) == 1
    both.connection.drain_events(timeout=SOON)
    assert ids(both.messages) == IDS[:2]


def test_refused_order_delivers_nothing_and_consumer_recovers(both, client):
    fill_slots(both, 1, *IDS[:3])
    order = both.channel.order(both.messages)
    client.config_set("min-replicas-to-write", 1)
    try:
        with pytest.raises(Exception, match="NOREPLICAS"):
            both.end(*both.messages, order=order)
    finally:
        client.config_set("min-replicas-to-write", 0)
    assert both.channel.order(both.messages) is None
    assert both.end(*both.messages) == [True]
    both.connection.drain_events(timeout=SOON)
    assert ids(both.messages) == IDS[:2]


def test_exception_in_callback_requeues_undelivered_requests_of_order(both, client, caplog):
    """The connection is closed, and requests that no callback received are requeued."""
    fill_slots(both, 2, *IDS[:6])
    both.channel.stop("q")
    seen: list[object] = []

    def consume(message):
        seen.append(message)
        raise ValueError("what is this?")

    both.channel.subscribe("q", consume)
    order = both.channel.order(both.messages)
    both.end(*both.messages, order=order)
    order.deliver()
    assert ids(seen) == ["r2"]
    assert "what is this?" in caplog.text
    with pytest.raises(LOST):
        both.connection.drain_events(timeout=SOON)
    both.connection.release()
    assert waiting_ids(both, client) == {True: {"r2"}, False: {"r3", "r4", "r5"}}
    states = [both.ledger.state(id).state for id in IDS[2:6]]
    assert states == [_ledger.ROW_CLAIMED, *[_ledger.ROW_OPEN] * 3]


def test_concurrent_orders_never_exceed_slots(redis_url, frequent_thread_switches):
    """One thread drains; four threads finish one or two requests at a time."""
    slots, count = 4, 600
    chance = random.Random(7)
    with contextlib.closing(Both(redis_url)) as both:
        held, seen, most = set(), [], []
        lock, found = threading.Lock(), threading.Semaphore(0)
        waiting = []

        def begin(message):
            with lock:
                held.add(message.delivery_tag)
                seen.append(message.properties["correlation_id"])
                most.append(len(held))
                waiting.append(message)
            found.release()

        def work():
            with both.target.open() as answering:
                while found.acquire(timeout=2 * SOON):
                    with lock:
                        if not waiting:
                            return
                        some = [waiting.pop()]
                        if waiting and chance.random() < 0.3 and found.acquire(blocking=False):
                            some.append(waiting.pop())
                    told = both.finished(some)
                    with lock:
                        held.difference_update(m.delivery_tag for m in some)
                    order = both.channel.order(some)
                    answering.finish(told, order)
                    if order is not None:
                        order.deliver()
                    both.channel.forget_many(some)

        names = [f"n{number}" for number in range(count)]
        for start in range(0, count, 50):
            both.post(*names[start : start + 50])
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        both.channel.limit(slots)
        both.channel.subscribe("q", begin)
        while both.answers() < count:
            with contextlib.suppress(TimeoutError):
                both.connection.drain_events(timeout=0.05)
        for _ in threads:
            found.release()
        for thread in threads:
            thread.join()
        assert sorted(seen) == sorted(names), "each once"
        assert max(most) <= slots
        until(lambda: not both.channel.credit.unsettled)
