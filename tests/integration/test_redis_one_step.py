"""Rows made with the publishing of their requests, and ends told in one step: lost answers, fences,
and servers that refuse or come late."""

from __future__ import annotations

import contextlib

import pytest
from redis import exceptions as errors

from tests.support import brokers, tcp_proxy
from tests.support.redis_ends import Both, hurry, through
from tests.support.workers import until
from wbengine import exceptions
from wbengine.engines.worker_based.ledger import base
from wbengine.transports import _redis_puts, _redis_scripts
from wbengine.transports._redis_link import LOST


@pytest.fixture
def lossy(redis_url, redis_server, eater):
    """One whose next answer to a step is lost: `lose(step)`."""
    with contextlib.closing(Both(through(redis_url, redis_server, eater.port))) as made:
        for step in (_redis_puts.POST, _redis_puts.END):
            made.ledger._pool.call("SCRIPT", "LOAD", step.text)

        def lose(step):
            eater.eat = step.digest.encode()

        made.lose = lose
        yield made


# -- beginnings


def test_rows_are_made_with_their_requests(both):
    assert both.post("a", "b") == [1, 1]
    assert both.post("c", key="nobody") == [0]
    assert both.ledger.ids() == {"a", "b", "c"}
    assert both.take(2) == [base.Claim("GRANTED", 1, None, "w")] * 2
    assert both.post("a") == [1]  # it changes no row
    assert both.take(3)[2] == base.Claim("HELD", 1, None, "w")


def test_a_beginning_whose_answer_was_lost_can_be_made_again(lossy, both):
    lossy.post("a", key="nobody")
    both.ledger.drop("a")
    lossy.lose(_redis_puts.POST)
    with pytest.raises(LOST):
        lossy.post("a")
    assert both.ledger.state("a") == base.Row("a", 1, base.ROW_OPEN)
    assert both.post("a") == [1]
    assert [claim.verdict for claim in both.take(2)] == ["GRANTED", "HELD"]


def test_late_command_does_not_begin_a_withdrawn_request(redis_url, redis_server, client):
    """It is in the network, or the server has not read it, when its connection is given up."""
    with tcp_proxy.threaded(redis_server.port) as proxy:
        url = through(redis_url, redis_server, proxy.port)
        with contextlib.closing(Both(url)) as late, contextlib.closing(Both(redis_url)) as other:
            late.post("first")
            other.take(1)
            late.openings.doubt = other.ledger.doubt  # that of an engine has another connection
            proxy.stall()
            hurry(late.store._client._link, 0.3)
            with pytest.raises(errors.TimeoutError):
                late.post("a")
            assert other.ledger.revoke("a", 1) is False
            before = asked(client)
            proxy.resume()
            until(lambda: asked(client) > before)
            assert other.ledger.state("a") is None
            assert other.store.size("q") == 0
            assert other.post("a") == [1]  # who lives is told of it, and goes on
            assert other.take(2)[1].granted


def asked(client):
    return client.info("commandstats")["cmdstat_evalsha"]["calls"]


def test_a_beginning_is_refused_as_a_whole():
    with brokers.redis() as server, contextlib.closing(Both(server.url())) as both:
        both.post("known")
        both.take(1)
        with server.client() as client:
            client.config_set("maxmemory", client.info("memory")["used_memory"] // 2)
            for id in ("a", "known"):
                with pytest.raises(exceptions.TransportFailure, match="maxmemory"):
                    both.post(id)
            assert both.ledger._doubts == 0  # it is known that nothing was done
            assert both.ledger.ids() == {"known"}
            assert both.store.size("q") == 0
            assert both.end(*both.messages) == [1]  # what is under way can end
            assert both.ledger.state("known") == base.Row("known", 1, base.ROW_DONE, None, b"r")
            client.config_set("maxmemory", 0)
            client.config_set("min-replicas-to-write", 1)
            for step in (lambda: both.post("a"), lambda: both.end(*both.messages)):
                with pytest.raises(exceptions.TransportFailure, match="NOREPLICAS"):
                    step()
            client.config_set("min-replicas-to-write", 0)
        assert both.ledger.ids() == {"known"}
        both.ledger.drop("known")


@pytest.mark.parametrize("lost", ["all", "routes"])
def test_a_wiped_server_is_told_of_the_ledger(both, client, lost):
    both.post("a")
    both.take(1)
    if lost == "all":
        client.flushdb()
        assert both.post("b") == [0]
        assert both.ledger.ids() == {"b"}
    else:
        client.delete(*client.keys("*}:m"))
    assert client.get(f"{both.store.place.prefix}ledger").decode() == both.ledger.digest
    with contextlib.suppress(TimeoutError):
        both.connection.drain_events(timeout=0.1)
    both.store._declare_again()
    assert both.post("c") == [1]
    assert both.take(2)[1].granted


# -- ends


def test_ends_are_stored_answered_and_acknowledged(both, client):
    both.post("a", "b", "c")
    both.take(3)
    assert both.end(*both.messages) == [1, 1, 1]
    assert [both.ledger.state(id).state for id in "abc"] == [base.ROW_DONE] * 3
    assert both.left(client) == ([], 0)
    assert both.answers() == 3
    assert not client.exists(f"{both.store.place.prefix}held:w")
    assert both.channel.forget_many(both.messages)


def test_an_end_whose_answer_was_lost_is_told_again_and_leaves_nothing(lossy, client):
    lossy.post("a", "b")
    lossy.take(2)
    lossy.lose(_redis_puts.END)
    with pytest.raises(LOST):
        lossy.end(*lossy.messages)
    with contextlib.closing(lossy.target.connect()) as connection:
        channel = connection.channel()
        assert channel.end_many(lossy.told(lossy.messages)) == [1, 1]
    assert lossy.left(client) == ([], 0)
    assert lossy.ledger.state("a") == base.Row("a", 1, base.ROW_DONE, None, b"r")


def test_answer_to_a_request_of_another_owner_is_not_sent(both, client):
    both.post("taken", "removed", "kept")
    both.take(3)
    both.ledger.reopen("taken", 2)
    both.ledger.drop("removed")
    assert both.end(*both.messages) == [-1, 1, 1]
    assert both.answers() == 2
    assert both.ledger.state("taken") == base.Row("taken", 2, base.ROW_OPEN)
    assert both.ledger.state("removed") is None
    assert both.left(client) == ([], 0)


def test_answer_without_a_listener_finishes_its_row(both, client):
    both.post("a")
    both.take(1)
    assert both.end(*both.messages, key="nobody") == [0]
    assert both.ledger.state("a").state == base.ROW_DONE
    assert both.left(client) == ([], 0)


def test_worker_taken_for_dead_finishes_its_request(both, client):
    """It went back to its queue, and is answered when it is taken again."""
    both.post("a")
    both.take(1)
    client.delete(f"{both.store.place.prefix}c")  # nobody is known: as if he had been buried
    both.store._run(_redis_scripts.LEAVE, both.store._who, "")
    assert both.store.size("q") == 1
    assert both.end(*both.messages) == [1]
    assert both.take(2)[1] == base.Claim("DONE", 1, b"r")
    both.messages[1].ack()
    assert both.left(client) == ([], 0)


@pytest.mark.parametrize("size", [1, 20])
def test_results_of_megabytes_are_answered_in_one_step(both, client, size):
    """In megabytes."""
    both.post("a", "b")
    both.take(2)
    result = b"x" * (size << 20)
    assert both.end(*both.messages, result=result) == [1, 1]
    assert both.ledger.state("b").result == result
    assert both.left(client) == ([], 0)
