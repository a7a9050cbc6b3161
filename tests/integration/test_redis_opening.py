"""Rows that are created in one step with publishing their requests."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from tests.seams import ledgers
from tests.support import brokers, reply_dropper, tcp_proxy
from tests.support.redis_ends import Both, hurry, url_with_port
from tests.support.waiting import until
from wbengine import exceptions
from wbengine.transports import _ledger
from wbengine.transports._redis import redis_scripts
from wbengine.transports._redis.redis_link import LOST

STEP = redis_scripts.SCRIPTS["open_and_publish"]


class Engine(Both):
    """Engine that publishes requests with their rows, and reconnects after a lost connection."""

    def __init__(self, url: str, **options: Any) -> None:
        super().__init__(url, **options)
        self.publishing = self.target.open()
        with contextlib.suppress(exceptions.LedgerFailure):
            self.ledger._pool.call("SCRIPT", "LOAD", STEP.text)

    def row(self, id: str = "a") -> _ledger.Opening:
        return _ledger.Opening(id, 1)

    def publish(self, *rows: _ledger.Opening) -> Sequence[int]:
        headers = {"wbe-ledger": self.ledger.digest, "wbe-epoch": 1}
        messages = [self.message("k", row.id, **headers) for row in rows]
        return self.publishing.open_and_publish(rows, messages)

    def reconnect(self) -> None:
        self.publishing.release()
        self.publishing = self.target.open()

    def fail(self, *rows: _ledger.Opening) -> None:
        with pytest.raises(LOST):
            self.publish(*rows)
        self.reconnect()

    def close(self) -> None:
        self.publishing.release()
        super().close()


Reach = Callable[..., Engine]
Dropper = reply_dropper.ReplyDropper
Late = tuple[Engine, tcp_proxy.Proxy]


@pytest.fixture
def reach() -> Iterator[Reach]:
    """Factory of engines, which are closed after the test."""
    with contextlib.ExitStack() as stack:

        def make(url: str, **options: Any) -> Engine:
            return stack.enter_context(contextlib.closing(Engine(url, **options)))

        yield make


@pytest.fixture
def engine(redis_url: str, redis_server: Any, dropper: Dropper, reach: Reach) -> Engine:
    """Engine that loses some replies."""
    return reach(url_with_port(redis_url, redis_server, dropper.port))


@pytest.fixture
def peer(redis_url: str) -> Iterator[Both]:
    """Worker that deletes results at once."""
    with contextlib.closing(Both(redis_url, result_ttl=0)) as made:
        yield made


def lose_answer(dropper: Dropper, engine: Engine, *rows: _ledger.Opening) -> None:
    """Publish; the server executes it, and the reply is lost."""
    dropper.drop_reply_to = STEP.digest.encode()
    engine.fail(*rows)
    assert dropper.dropped.is_set()


def test_row_is_created_in_same_step_as_its_message(engine: Engine, peer: Both) -> None:
    assert engine.publish(engine.row("a"), engine.row("b")) == [1, 1]
    assert engine.ledger.state("b") == _ledger.Row("b", 1, _ledger.ROW_OPEN)
    assert [each.granted for each in peer.take(2)] == [True, True]
    assert peer.end(*peer.messages) == [True, True]
    assert engine.ledger.ids() == set()


def test_existing_row_is_not_overwritten(engine: Engine) -> None:
    engine.ledger.open("a", 7)
    assert engine.publish(engine.row()) == [1]
    assert engine.ledger.state("a") == _ledger.Row("a", 7, _ledger.ROW_OPEN)


def test_request_with_lost_reply_is_not_published_twice(
    engine: Engine, dropper: Dropper, peer: Both
) -> None:
    """The request finished meanwhile and left no row: only the session contains it."""
    lost, new = engine.row("lost"), engine.row("new")
    lose_answer(dropper, engine, lost)
    assert peer.take(1)[0].granted
    assert peer.end(*peer.messages) == [True]
    assert engine.ledger.state("lost") is None
    assert engine.publish(lost, new) == [1, 1]
    assert engine.ledger.ids() == {"new"}
    assert [claim.granted for claim in peer.take(2)] == [True, True]
    assert peer.store.size("q") == 0


@pytest.mark.parametrize("is_fence_raised", [False, True])
def test_row_and_request_lost_before_redis_can_be_published_again(
    redis_url: str, redis_server: Any, reach: Reach, peer: Both, is_fence_raised: bool
) -> None:
    with tcp_proxy.threaded(redis_server.port) as proxy:
        engine = reach(url_with_port(redis_url, redis_server, proxy.port))
        assert engine.publish(engine.row("before")) == [1]
        hurry(engine.publishing._link, 0.1)  # type: ignore[attr-defined]
        proxy.lose("to-server")
        lost = engine.row("lost")
        with pytest.raises(LOST):
            engine.publish(lost)
        proxy.cut()
        engine.publishing = engine.target.open()
        if is_fence_raised:  # Another thread resumes a flow.
            assert engine.ledger.raise_fence(_ledger.Fence.of("flow", 1)) == 1
        assert engine.publish(lost, engine.row("new")) == [1, 1]
        assert [claim.granted for claim in peer.take(3)] == [True] * 3
        engine.close()


@pytest.fixture
def late(redis_url: str, redis_server: Any, reach: Reach) -> Iterator[Late]:
    with tcp_proxy.threaded(redis_server.port) as proxy:
        made = reach(url_with_port(redis_url, redis_server, proxy.port))
        yield made, proxy
        made.close()


def publish_delayed(engine: Engine, proxy: tcp_proxy.Proxy, *rows: _ledger.Opening) -> None:
    """Publish; the call times out and arrives later."""
    proxy.hold(STEP.digest)
    hurry(engine.publishing._link, 0.1)  # type: ignore[attr-defined]
    engine.fail(*rows)
    assert proxy.held(STEP.digest)


def deliver_delayed(proxy: tcp_proxy.Proxy) -> None:
    proxy.let_go(STEP.digest)
    until(lambda: not proxy.held(STEP.digest))


def test_delayed_publish_has_no_effect_after_next_attempt(late: Late, peer: Both) -> None:
    engine, proxy = late
    row = engine.row()
    publish_delayed(engine, proxy, row)
    assert engine.publish(row) == [1]
    assert peer.take(1)[0].granted
    assert peer.end(*peer.messages) == [True]
    deliver_delayed(proxy)
    assert engine.ledger.ids() == set()
    assert peer.store.size("q") == 0


@pytest.mark.parametrize("ends", ["revoked", "looked at", "closed"])
def test_delayed_publish_has_no_effect_after_any_other_call(
    late: Late, peer: Both, ends: str
) -> None:
    """A caller that found no row may continue as if the request was never published."""
    engine, proxy = late
    publish_delayed(engine, proxy, engine.row())
    if ends == "revoked":
        assert not engine.ledger.revoke("a")
    elif ends == "looked at":
        assert engine.ledger.state("a") is None
    else:
        engine.ledger.close()
    deliver_delayed(proxy)
    assert peer.ledger.ids() == set()
    assert peer.store.size("q") == 0


def test_session_ended_by_another_thread_does_not_prevent_publish(engine: Engine) -> None:
    engine.ledger._end_session(engine.ledger._session)  # type: ignore[attr-defined]
    publish_with = engine.publishing.publish_with  # type: ignore[attr-defined]

    attempts = []

    def overtaken(*told: Any) -> Any:
        attempts.append(told)
        if len(attempts) == 1:
            engine.ledger._end_session(engine.ledger._session)  # type: ignore[attr-defined]
            engine.ledger.state("a")
        return publish_with(*told)

    engine.publishing.publish_with = overtaken  # type: ignore[attr-defined]
    assert engine.publish(engine.row()) == [1]
    assert engine.ledger.ids() == {"a"}
    assert len(attempts) == 2


def test_uncertain_request_is_not_published_again_to_wiped_server(
    engine: Engine, dropper: Dropper, peer: Both, client: Any
) -> None:
    lost = engine.row("lost")
    lose_answer(dropper, engine, lost)
    client.flushdb()
    assert engine.publish(lost) == [1]
    assert engine.ledger.state("lost") is None
    engine.publishing.declare_queue("q")
    engine.publishing.declare_exchange("ex")
    engine.publishing.bind("ex", "k", "q")
    assert engine.publish(engine.row("new")) == [1]
    assert engine.ledger.ids() == {"new"}


def test_uncertain_request_is_not_granted_by_server_with_older_data(reach: Reach) -> None:
    """The server has lost a row that was created, claimed and dropped."""
    with (
        brokers.redis() as server,
        contextlib.closing(reply_dropper.ReplyDropper(server.port)) as dropper,
    ):
        engine = reach(url_with_port(server.url(), server, dropper.port))
        assert engine.publish(engine.row("before")) == [1]
        lost, set_back = engine.row("lost"), server.copy_data()
        lose_answer(dropper, engine, lost)
        with contextlib.closing(Both(server.url())) as worker:
            assert [claim.granted for claim in worker.take(2)] == [True, True]
            set_back()
            engine.reconnect()
            assert engine.publish(lost, engine.row("new")) == [1, 1]
            assert worker.ledger.state("lost") == _ledger.Row(
                "lost", 1, _ledger.ROW_CLAIMED, ledgers.FORGOTTEN
            )
            assert worker.ledger.state("new") == _ledger.Row("new", 1, _ledger.ROW_OPEN)
            engine.close()


def test_server_without_memory_refuses_row_and_message(engine: Engine, client: Any) -> None:
    used = client.info("memory")["used_memory"]
    row = engine.row()
    client.config_set("maxmemory", used // 2)
    try:
        with pytest.raises(exceptions.TransportFailure, match="maxmemory"):
            engine.publish(row)
    finally:
        client.config_set("maxmemory", 0)
    assert row.tried is None
    assert engine.ledger._session == engine.ledger._wanted_session  # type: ignore[attr-defined]
    assert engine.ledger.ids() == set()
    assert engine.publish(row) == [1]
    assert engine.ledger.ids() == {"a"}


def test_sessions_leave_no_keys(redis_url: Any, reach: Reach) -> None:
    engine = reach(redis_url)
    engine.publish(engine.row())
    engine.take(1)
    engine.end(*engine.messages)
    engine.ledger.drop("a")
    engine.publishing.purge("answers")
    engine.close()
    assert not [key for key in redis_url.left() if "session" in key]
