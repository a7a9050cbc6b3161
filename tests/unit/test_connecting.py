"""Why a broker was not reached, or left, in words."""

from __future__ import annotations

import ssl
from typing import Any

import pytest
from amqp import exceptions as amqp_errors

from wbengine.engines.worker_based.connections import connecting


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
    told = connecting.explain(error)
    assert told.startswith(words)
    assert "\n" not in told


def test_a_connection_that_cannot_be_closed_is_left() -> None:
    class Odd:
        def release(self) -> None:
            raise RuntimeError("no")

    odd: Any = Odd()
    connecting.release(odd)
