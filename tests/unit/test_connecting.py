"""Connections: explanations of errors, and detection of deaf consumers."""

from __future__ import annotations

import re
import ssl
from typing import Any

import pytest
import redis
from amqp import exceptions as amqp_errors

from wbengine import exceptions, transports
from wbengine.engines.worker_based import ledger
from wbengine.engines.worker_based._connections import connecting, dead_letters, queue_counts
from wbengine.engines.worker_based._connections.receiver import Echo
from wbengine.transports import _reasons


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (amqp_errors.ConsumerCancelled("None3", (60, 30)), "a consumed queue was deleted"),
        (
            amqp_errors.AccessRefused("ACCESS_REFUSED - Login was refused", (0, 0)),
            "it refuses this user or password",
        ),
        (
            amqp_errors.AccessRefused("ACCESS_REFUSED - access to exchange 'x' refused", (40, 10)),
            "permission denied",
        ),
        (ssl.SSLError(524297, "[SSL] PEM lib (_ssl.c:3905)"), "our own certificate or key"),
        (RuntimeError("several\n\tlines"), "several lines"),
        (RuntimeError(), "RuntimeError"),
    ],
    ids=["queue-deleted", "login-refused", "access-refused", "tls", "multiline", "empty"],
)
def test_connection_errors_are_explained_in_one_line(error: Exception, words: str) -> None:
    told = _reasons.explain(error)
    assert told.startswith(words)
    assert "\n" not in told


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("redis://127.0.0.1:1/0", "nothing listens there (connection refused)"),
        ("redis://nobody.invalid/0", "its name cannot be resolved"),
    ],
)
def test_unreachable_redis_is_explained(url: str, words: str) -> None:
    with pytest.raises(redis.ConnectionError) as found:
        redis.Redis.from_url(url).ping()
    assert _reasons.explain(found.value).startswith(words)
    with pytest.raises(exceptions.LedgerFailure, match=re.escape(f": {words}")):
        ledger.open_ledger(url)


def test_error_while_releasing_connection_is_ignored() -> None:
    class Odd:
        def release(self) -> None:
            raise RuntimeError("no")

    odd: Any = Odd()
    connecting.release(odd)


def test_missing_queue_of_an_emulated_broker_is_not_a_lost_connection() -> None:
    target = transports.kombu_target("memory://")
    with connecting.reach_soon(target, 5.0) as connection:
        assert queue_counts.count(connection, target, "x", ["missing"]) == []
    with dead_letters.DeadLetters(target, "x", 5.0) as letters:
        assert letters.list_letters() == []


@pytest.fixture
def echo() -> Echo:
    return Echo(quiet=10, grace=15, now=0)


def test_received_messages_postpone_the_ping(echo: Echo) -> None:
    for now in range(5, 100, 5):
        echo.record_message(now)
        assert not echo.begins_ping(now + 4)
        assert not echo.is_deaf(now + 4)
        assert echo.next_due() == now + 10


def test_silent_consumer_pings_once_and_is_deaf_without_echo(echo: Echo) -> None:
    asked = [now for now in range(40) if echo.begins_ping(now) or echo.is_deaf(now)]
    assert asked == [10]  # the ping was not published, because the broker may be unavailable
    echo.record_ping(40)
    deaf = [now for now in range(40, 60) if echo.is_deaf(now)]
    assert deaf == [56, 57, 58, 59]


def test_received_echo_proves_that_consumer_is_not_deaf(echo: Echo) -> None:
    assert echo.begins_ping(10)
    echo.record_ping(11)
    echo.record_message(12)
    assert not any(echo.is_deaf(now) for now in range(12, 22))
    assert echo.begins_ping(22)


def test_ping_recorded_after_its_echo_is_not_awaited(echo: Echo) -> None:
    """The consumer received the echo, or other messages, before the ping was recorded."""
    assert echo.begins_ping(10)
    echo.record_message(11)
    echo.record_ping(12)
    assert not any(echo.is_deaf(now) for now in range(12, 60))


def test_frozen_consumer_is_not_deaf_before_it_reads(echo: Echo) -> None:
    assert not echo.is_deaf(9)
    assert echo.begins_ping(10)
    echo.record_ping(10)
    assert not echo.is_deaf(100)
    assert not echo.is_deaf(107)
    assert not echo.is_deaf(114)
    assert echo.is_deaf(116)


def test_next_due_detects_deafness_within_few_polls(echo: Echo) -> None:
    assert echo.next_due() == 10
    assert echo.begins_ping(10)
    echo.record_ping(10)
    now = 10.0
    turns = 0
    while not echo.is_deaf(now):
        turns += 1
        now = max(now + 0.001, echo.next_due())
    assert 25 < now < 30
    assert turns < 9
