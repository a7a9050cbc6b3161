"""Explanations of connection errors."""

from __future__ import annotations

import re
import ssl
from typing import Any

import pytest
import redis
from amqp import exceptions as amqp_errors

from wbengine import exceptions
from wbengine.engines.worker_based import ledger
from wbengine.engines.worker_based._connections import connecting
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
