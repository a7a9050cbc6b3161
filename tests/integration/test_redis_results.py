"""Results that Redis stores, sends and acknowledges in one step."""

from __future__ import annotations

import contextlib

import pytest

from tests.seams import transports
from tests.support import brokers
from tests.support.redis_ends import SOON, Both, url_with_port
from tests.support.waiting import until
from wbengine import exceptions
from wbengine.transports import _ledger
from wbengine.transports._redis import redis_broker, redis_scripts
from wbengine.transports._redis.redis_link import LOST


@pytest.fixture
def lossy(redis_url, redis_server, dropper):
    """Client whose next reply to a step is lost after `lose(step)`."""
    with contextlib.closing(Both(url_with_port(redis_url, redis_server, dropper.port))) as made:
        made.ledger._pool.call("SCRIPT", "LOAD", redis_scripts.SCRIPTS["finish_requests"].text)

        def lose(step):
            dropper.drop_reply_to = step.digest.encode()

        made.lose = lose
        yield made


def take_new(both, *ids):
    """Post requests and take them."""
    both.post(*ids)
    both.take(len(ids))


def requeue_as_of_dead_worker(both, client):
    client.delete(f"{both.store.place.prefix}c")
    both.store._run(redis_scripts.leave(both.store._consumer_name, ()))


def test_server_that_refuses_writes_rejects_results_as_a_whole():
    with brokers.redis() as server, contextlib.closing(Both(server.url())) as both:
        take_new(both, "known")
        with server.client() as client:
            client.config_set("maxmemory", client.info("memory")["used_memory"] // 2)
            with pytest.raises(exceptions.LedgerFailure, match="maxmemory"):
                both.post("a")
            assert both.ledger.ids() == {"known"}
            assert both.end(*both.messages) == [True]  # claimed requests can finish
            assert (
                both.ledger.state("known").state == _ledger.ROW_DONE and both.kept("known") == b"r"
            )
            client.config_set("maxmemory", 0)
            client.config_set("min-replicas-to-write", 1)
            with pytest.raises(exceptions.TransportFailure, match="NOREPLICAS"):
                both.end(*both.messages)
            client.config_set("min-replicas-to-write", 0)
        assert both.answers() == 1
        both.ledger.drop("known")


@pytest.mark.parametrize("lost", ["all", "routes"])
def test_identity_of_ledger_is_restored_on_wiped_server(both, client, lost):
    take_new(both, "a")
    if lost == "all":
        client.flushdb()
        assert both.post("b") == [0]
        assert both.ledger.ids() == {"b"}
    else:
        client.delete(*client.keys("*}:m"))
    assert client.hget(f"{both.store.place.prefix}server", "ledger").decode() == both.ledger.digest
    with contextlib.suppress(TimeoutError):
        both.connection.drain_events(timeout=0.1)
    both.store._redeclare_after_loss()
    assert both.post("c") == [1]
    assert both.take(2)[1].granted


# -- results


def test_results_are_stored_replied_and_acknowledged(both, client):
    take_new(both, "a", "b", "c")
    assert both.end(*both.messages) == [True] * 3
    assert [both.ledger.state(id).state for id in "abc"] == [_ledger.ROW_DONE] * 3
    assert both.left(client) == ([], 0)
    assert both.answers() == 3
    assert not client.exists(f"{both.store.place.prefix}held:w")
    assert both.channel.forget_many(both.messages)


def test_result_resent_after_lost_reply_leaves_no_message(lossy, client):
    take_new(lossy, "a", "b")
    lossy.lose(redis_scripts.SCRIPTS["finish_requests"])
    with pytest.raises(LOST):
        lossy.end(*lossy.messages)
    with lossy.target.open() as answering:
        assert answering.finish(lossy.finished(lossy.messages)) == [True, True]
    assert lossy.left(client) == ([], 0)
    assert lossy.ledger.state("a").state == _ledger.ROW_DONE and lossy.kept("a") == b"r"


def test_reply_without_bound_queue_finishes_its_row(both, client):
    take_new(both, "a")
    assert both.end(*both.messages, key="nobody") == [True]
    assert both.ledger.state("a").state == _ledger.ROW_DONE
    assert both.left(client) == ([], 0)


def test_worker_taken_for_dead_finishes_its_request(both, client):
    """The request was requeued; its result is returned when it is received again."""
    take_new(both, "a")
    requeue_as_of_dead_worker(both, client)
    assert both.store.size("q") == 1
    assert both.end(*both.messages) == [True]
    claim = both.take(2)[1]
    assert claim == _ledger.Claim("DONE", 1, both.ledger.state("a").result)
    both.messages[1].ack()
    assert both.left(client) == ([], 0)


@pytest.mark.parametrize("size", [1, 20])
def test_results_of_several_megabytes_are_sent_in_one_step(both, client, size):
    take_new(both, "a", "b")
    result = b"x" * (size << 20)
    assert both.end(*both.messages, result=result) == [True, True]
    assert both.kept("b") == result
    assert both.left(client) == ([], 0)


# -- bodies stored outside scripts

LARGE = "large" * 20_000


def bodies(client):
    return client.keys("*}:b:*")


def test_large_body_is_sent_to_redis_once(both, client):
    """Neither the script that delivers it, nor the row, nor the reply contains a copy."""
    both.post("first")  # loads the scripts
    both.take(1)
    both.end(*both.messages)
    before = client.info()["total_net_input_bytes"]
    both.channel.publish(LARGE)
    both.post("a")
    both.take(3)
    assert transports.body(both.messages[1]) == LARGE
    assert both.end(both.messages[2], result=LARGE.encode()) == [True]
    assert len(bodies(client)) == 2
    assert all(client.pttl(key) > 7 * 24 * 3600 * 1000 - 60_000 for key in bodies(client))
    assert client.info()["total_net_input_bytes"] - before < 2.2 * len(LARGE)
    assert max(client.memory_usage(key) for key in client.keys("*}:[dr]:*")) < len(LARGE) / 10
    both.messages[1].ack()
    assert len(bodies(client)) == 1
    assert both.kept("a") == LARGE.encode()
    assert client.pttl(bodies(client)[0]) == pytest.approx(client.pttl("wbe:{ex}:r:a"), abs=1000)
    both.take_answers(2)
    assert both.messages[4].body == LARGE.encode()
    both.messages[4].ack()
    both.ledger.drop("a")
    assert bodies(client) == []


def test_large_result_is_returned_by_claim_delivery_and_reopen(both, client):
    take_new(both, "a")
    requeue_as_of_dead_worker(both, client)
    both.end(*both.messages, result=LARGE.encode())
    whole = both.ledger.state("a").result
    assert whole.endswith(LARGE.encode())
    asked = [lambda: both.ledger.claim("a", 1, "v").result, lambda: both.ledger.reopen("a", 2)]
    assert [both.take(2)[1].result, *(ask() for ask in asked)] == [whole] * 3
    client.delete(*bodies(client))  # as eviction does
    assert [ask() for ask in asked] == [b"", b""] and both.ledger.state("a").result == b""


def test_large_message_is_delivered_from_both_of_its_queues(both, client):
    transports.declare(both.channel, "other", "k")
    both.channel.publish(LARGE)
    both.take(1)
    both.messages[0].ack()
    both.channel.subscribe("other", both.messages.append)
    both.connection.drain_events(timeout=SOON)
    assert transports.body(both.messages[1]) == LARGE


ENDS = ["settled", "refused", "purged", "dropped", "dropped while held", "buried and purged"]


@pytest.mark.parametrize("end", ENDS)
def test_body_of_large_message_is_deleted_with_its_message(both, client, end):
    both.channel.publish(LARGE)
    if end not in ("purged", "dropped"):
        both.take(1)
    if end == "settled":
        both.messages[0].ack()
    elif end == "refused":
        both.messages[0].reject()
    elif end == "purged":
        assert both.store.purge("q") == 1
    elif end == "dropped":
        assert both.store.delete_queue("q") == 1
    elif end == "dropped while held":
        both.store.delete_queue("q")
        both.messages[0].requeue()
    else:
        requeue_as_of_dead_worker(both, client)
        both.take(2)
        assert transports.body(both.messages[1]) == LARGE
        assert both.messages[1].delivery_info["redelivered"]
        both.messages[1].requeue()
        assert bodies(client)
        assert both.store.purge("q") == 1
    assert bodies(client) == []


def test_resent_large_result_leaves_no_body(lossy, both, client):
    take_new(lossy, "a")
    lossy.lose(redis_scripts.SCRIPTS["finish_requests"])
    told = lossy.finished(lossy.messages, result=LARGE.encode())
    with pytest.raises(LOST):
        lossy.store.finish(told)
    with lossy.target.open() as answering:
        assert answering.finish(told) == [True]
    both.take_answers(2)
    assert [message.body for message in both.messages] == [LARGE.encode()] * 2
    for message in both.messages:
        message.ack()
    both.ledger.drop("a")
    assert bodies(client) == []


def test_reply_without_body_of_dropped_row_is_not_delivered(both, client, caplog):
    """The engine read and dropped the row before it received the reply."""
    take_new(both, "a")
    assert both.end(*both.messages, result=LARGE.encode()) == [True]
    both.ledger.drop("a")
    with pytest.raises(TimeoutError):
        both.take_answers(timeout=0.1)
    assert both.left(client) == ([], 0) and both.answers() == 0
    assert caplog.text == ""


def test_result_with_zero_ttl_is_still_sent_to_engine(redis_url, client):
    with contextlib.closing(Both(redis_url, result_ttl=0)) as both:
        take_new(both, "a")
        assert both.end(*both.messages, result=LARGE.encode()) == [True]
        assert both.ledger.state("a") is None
        both.take_answers()
        assert both.messages[1].body == LARGE.encode()
        both.messages[1].ack()
        assert bodies(client) == []


def test_reply_outlives_its_row(redis_url, client):
    """An engine that pauses that long receives a large result like a small one."""
    with contextlib.closing(Both(redis_url, result_ttl=0.05)) as both:
        take_new(both, "a")
        assert both.end(*both.messages, result=LARGE.encode()) == [True]
        until(lambda: both.ledger.state("a") is None)
        both.take_answers()
        assert both.messages[1].body == LARGE.encode()
        both.messages[1].ack()
        assert all(0 < client.pttl(key) <= 600_000 for key in bodies(client))


def test_body_is_swept_with_its_row(redis_url, client):
    with contextlib.closing(Both(redis_url, result_ttl=None)) as both:
        take_new(both, "a")
        both.end(*both.messages, result=LARGE.encode())
        assert [client.pttl(key) for key in bodies(client)] == [-1]
        assert both.ledger.sweep(-1, True) == 1
        assert bodies(client) == []


def test_body_that_expired_before_its_script_is_sent_inline(both, client, monkeypatch):
    """Either there was no memory for the body, or it expired before its script ran."""
    monkeypatch.setattr(redis_broker, "_UNUSED_BODY_MILLISECONDS", 1)
    run = both.store._run

    def late(step, after=()):
        for command in after:
            both.store._link.call(*command)
        until(lambda: not bodies(client))
        return run(step)

    monkeypatch.setattr(both.store, "_run", late)
    both.channel.publish(LARGE)
    both.post("a")
    both.take(2)
    assert transports.body(both.messages[0]) == LARGE
    assert both.end(both.messages[1], result=LARGE.encode()) == [True]
    assert both.kept("a") == LARGE.encode()
    assert bodies(client) == []


def test_server_without_memory_accepts_large_results():
    with brokers.redis() as server, contextlib.closing(Both(server.url())) as both:
        take_new(both, "known")
        with server.client() as client:
            client.config_set("maxmemory", client.info("memory")["used_memory"] // 2)
            with pytest.raises(exceptions.TransportFailure, match="maxmemory"):
                both.channel.publish(LARGE)
            assert both.end(*both.messages, result=LARGE.encode()) == [True]
            client.config_set("maxmemory", 0)
        assert both.kept("known") == LARGE.encode()
        both.ledger.drop("known")
