"""Ends told in one step: lost answers, and servers that refuse or were wiped."""

from __future__ import annotations

import contextlib

import pytest

from tests.support import brokers
from tests.support.redis_ends import Both, through
from wbengine import exceptions
from wbengine.engines.worker_based.ledger import base
from wbengine.transports import _redis_scripts
from wbengine.transports._redis_link import LOST


@pytest.fixture
def lossy(redis_url, redis_server, eater):
    """One whose next answer to a step is lost: `lose(step)`."""
    with contextlib.closing(Both(through(redis_url, redis_server, eater.port))) as made:
        made.ledger._pool.call("SCRIPT", "LOAD", _redis_scripts.END.text)

        def lose(step):
            eater.eat = step.digest.encode()

        made.lose = lose
        yield made


def test_server_that_refuses_writes_refuses_ends_as_a_whole():
    with brokers.redis() as server, contextlib.closing(Both(server.url())) as both:
        both.post("known")
        both.take(1)
        with server.client() as client:
            client.config_set("maxmemory", client.info("memory")["used_memory"] // 2)
            with pytest.raises(exceptions.LedgerFailure, match="maxmemory"):
                both.post("a")
            assert both.ledger.ids() == {"known"}
            assert both.end(*both.messages) == [1]  # what is under way can end
            assert both.ledger.state("known") == base.Row("known", 1, base.ROW_DONE, None, b"r")
            client.config_set("maxmemory", 0)
            client.config_set("min-replicas-to-write", 1)
            with pytest.raises(exceptions.TransportFailure, match="NOREPLICAS"):
                both.end(*both.messages)
            client.config_set("min-replicas-to-write", 0)
        assert both.answers() == 1
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
    lossy.lose(_redis_scripts.END)
    with pytest.raises(LOST):
        lossy.end(*lossy.messages)
    with lossy.target.open() as answering:
        assert answering.answer_many(lossy.told(lossy.messages)) == [1, 1]
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
