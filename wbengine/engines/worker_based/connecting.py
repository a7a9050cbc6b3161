"""Reaching a broker that may be away."""

from __future__ import annotations

import threading
from typing import Any

import kombu
import tenacity


def reach(
    connection: kombu.Connection,
    stopping: threading.Event,
    *,
    longest: float,
    within: float | None = None,
) -> None:
    """Connect, with jittered waits of at most `longest` seconds between attempts.

    Tries until `stopping` is set, or for `within` seconds; then raises what the last attempt did.
    """
    stop: Any = tenacity.stop_when_event_set(stopping)
    if within is not None:
        stop = stop | tenacity.stop_after_delay(within)
    retrying = tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(connection.recoverable_connection_errors),
        wait=tenacity.wait_random_exponential(multiplier=0.1, max=longest),
        sleep=tenacity.sleep_using_event(stopping),
        stop=stop,
        reraise=True,
    )
    retrying(_connect, connection)


def _connect(connection: kombu.Connection) -> None:
    # Kombu's own `connect` sleeps two seconds before it gives up.
    connection.ensure_connection(
        max_retries=1, interval_start=0, interval_step=0, reraise_as_library_errors=False
    )
