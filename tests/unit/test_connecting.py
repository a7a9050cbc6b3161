"""Why a broker was not reached, or left, in words."""

from __future__ import annotations

import re
import ssl
from typing import Any

import pytest
import redis
from amqp import exceptions as amqp_errors

from wbengine import exceptions
from wbengine.engines.worker_based import ledger
from wbengine.engines.worker_based.connections import connecting
from wbengine.transports import reasons


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (amqp_errors.ConsumerCancelled("None3", (60, 30)), "a queue that was consumed is gone"),
        (
            amqp_errors.AccessRefused("ACCESS_REFUSED - Login was refused", (0, 0)),
            "it refuses this user or password",
        ),
        (
            amqp_errors.AccessRefused("ACCESS_REFUSED - access to exchange 'x' refused", (40, 10)),
            "it does not permit that",
        ),
        (ssl.SSLError(524297, "[SSL] PEM lib (_ssl.c:3905)"), "our own certificate or key"),
        (RuntimeError("several\n\tlines"), "several lines"),
        (RuntimeError(), "RuntimeError"),
    ],
)
def test_reasons_are_one_line(error: Exception, words: str) -> None:
    told = reasons.explain(error)
    assert told.startswith(words)
    assert "\n" not in told


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("redis://127.0.0.1:1/0", "nothing listens there (connection refused)"),
        ("redis://nobody.invalid/0", "its name cannot be resolved"),
    ],
)
def test_a_redis_that_is_not_there(url: str, words: str) -> None:
    with pytest.raises(redis.ConnectionError) as found:
        redis.Redis.from_url(url).ping()
    assert reasons.explain(found.value).startswith(words)
    with pytest.raises(exceptions.LedgerFailure, match=re.escape(f": {words}")):
        ledger.open_ledger(url)


def test_a_connection_that_cannot_be_closed_is_left() -> None:
    class Odd:
        def release(self) -> None:
            raise RuntimeError("no")

    odd: Any = Odd()
    connecting.release(odd)
