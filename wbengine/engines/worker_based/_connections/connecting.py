"""Connect to a broker that may be unavailable, and detect the loss of a connection."""

from __future__ import annotations

import contextlib
import dataclasses
import ipaddress
import itertools
import logging
import math
import random
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeAlias, TypeVar

import tenacity
from amqp import exceptions as amqp_errors

from wbengine import exceptions as exc
from wbengine import transports
from wbengine._concurrency import conditions, threads
from wbengine.transports import _reasons

LOG = logging.getLogger(__name__)

ATTEMPT_SECONDS: Final = 4.0
#: Time of the last attempt: a later one would have no time for a reply.
_LAST_ATTEMPT_SECONDS: Final = 1.0

#: A `Broker` of wbengine or an untyped connection of kombu.
Connection: TypeAlias = Any

T = TypeVar("T")


def reach(
    target: transports.Target,
    stopping: conditions.Event,
    *,
    within: float | None = None,
    on_failure: Callable[[str], None] | None = None,
) -> Connection:
    """Connect, with retries; see `call_with_retries`.

    If the URL contains several brokers, each attempt uses the next one. With `within`, a broker
    that does not respond leaves time for the others.

    :raises TransportFailure: if the broker was not reached.
    """
    ends = math.inf if within is None else time.monotonic() + within
    numbers = itertools.count()

    def attempt() -> Connection:
        number, seconds = next(numbers), ends - time.monotonic()
        others = _count_brokers(target) - 1 - number
        if others > 0:
            seconds = (seconds - _LAST_ATTEMPT_SECONDS) / (others + 1)
        return _open(target, number, min(ATTEMPT_SECONDS, max(0.5, seconds)))

    try:
        return call_with_retries(
            attempt, target.retry, stopping, within=within, on_failure=on_failure
        )
    except exc.TransportFailure:
        raise
    except Exception as error:
        raise exc.TransportFailure(
            f"the broker at {target.shown} cannot be reached: {_reasons.explain(error)}"
        ) from error


def call_with_retries(
    attempt: Callable[[], T],
    retry: transports.RetryOptions,
    stopping: conditions.Event,
    *,
    within: float | None = None,
    on_failure: Callable[[str], None] | None = None,
) -> T:
    """Return the result of the first attempt that succeeds.

    Retries end when `stopping` is set. With `within`, they also end after this number of seconds,
    and at an error that cannot pass. `on_failure` is called with the reason of each failure.
    """

    def may_pass(error: BaseException) -> bool:
        return isinstance(error, Exception) and (within is None or not _is_final(error))

    def report_attempt(state: tenacity.RetryCallState) -> None:
        if on_failure is not None and state.outcome is not None:
            on_failure(_reasons.explain(state.outcome.exception()))

    event: Any = stopping  # tenacity's types permit only events of `threading`.
    stop: Any = tenacity.stop_when_event_set(event)
    if within is not None:
        stop = stop | tenacity.stop_after_delay(within - _LAST_ATTEMPT_SECONDS)
        if retry.max_retries is not None:
            stop = stop | tenacity.stop_after_attempt(retry.max_retries + 1)
    retrying = tenacity.Retrying(
        retry=tenacity.retry_if_exception(may_pass),
        wait=lambda state: retry.wait(state.attempt_number, random.random()),
        sleep=tenacity.sleep_using_event(event),
        stop=stop,
        before_sleep=report_attempt,
        reraise=True,
    )
    return retrying(attempt)


def log_reasons(message: str) -> Callable[[str], None]:
    """Return a function that logs a reason as `message % reason` unless it equals the last one."""
    last_reason = ""

    def log(reason: str) -> None:
        nonlocal last_reason
        if reason != last_reason:
            LOG.warning(message, reason)
        last_reason = reason

    return log


def reach_soon(target: transports.Target, within: float) -> Connection:
    """Connect with at most two attempts in `within` seconds, for a caller that waits.

    If the URL contains several brokers, all are tried.

    :raises TransportFailure: if the broker was not reached.
    """
    retry = transports.RetryOptions(max_retries=max(1, _count_brokers(target) - 1))
    target = dataclasses.replace(target, retry=retry)
    options = {**target.kind.quick_options(within), **target.options}
    target = dataclasses.replace(target, options=options)
    return reach(target, conditions.Event(), within=within)


def _count_brokers(target: transports.Target) -> int:
    return 1 + (target.url or "").count(";") if target.amqp else 1


def _is_final(error: BaseException) -> bool:
    if _reasons.may_pass(error):
        return False
    return _reasons.is_refusal(error) or isinstance(
        error, exc.TransportFailure | exc.LedgerFailure | ValueError | ImportError
    )


def _open(target: transports.Target, number: int, seconds: float) -> Connection:
    if target.is_native:
        return target.open()
    connection = target.connect(number, connect_timeout=seconds)
    try:
        if target.amqp:
            _resolve(connection.hostname, seconds)
        # Kombu's own `connect` sleeps two seconds after a failure.
        connection.ensure_connection(
            max_retries=0, interval_start=0, interval_step=0, reraise_as_library_errors=False
        )
    except BaseException:
        with contextlib.suppress(Exception):
            connection.release()
        raise
    return connection


def _resolve(host: str | None, seconds: float) -> None:
    """Resolve `host` in at most these seconds: the system may need minutes."""
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(host or "")
        return
    failed: list[OSError] = []

    def ask() -> None:
        try:
            socket.getaddrinfo(host, None)
        except OSError as error:
            failed.append(error)

    asking = threads.Thread(target=ask, name="wbengine-resolver", daemon=True)
    asking.start()
    asking.join(seconds)
    if failed:
        raise failed[0]
    if asking.is_alive():
        raise socket.gaierror(f"the lookup of the host name timed out after {seconds:.0f} s")


@contextlib.contextmanager
def translated(
    connection: Connection, target: transports.Target, queue: str | None = None
) -> Iterator[None]:
    """Translate errors of client libraries to exceptions of wbengine.

    :raises NotFound: if the queue does not exist.
    :raises TransportFailure: if the broker refuses or is unavailable.
    """
    about = f"queue {queue} at" if queue is not None else "the broker at"
    losses = (*connection.recoverable_connection_errors, OSError)
    try:
        yield
    except (*losses, amqp_errors.AMQPError, *connection.channel_errors) as error:
        # First, because most transports of kombu count a missing queue as a lost connection.
        if getattr(error, "reply_code", None) in (404, "404"):
            raise exc.NotFound(f"queue {queue!r} does not exist at {target.shown}") from error
        why = _reasons.explain(error)
        if isinstance(error, losses):
            raise exc.TransportFailure(
                f"the connection to the broker at {target.shown} was lost: {why}"
            ) from error
        raise exc.TransportFailure(f"{about} {target.shown}: {why}") from error


def release(connection: Connection) -> None:
    """Close a connection without raising."""
    try:
        connection.release()
    except Exception as error:
        LOG.debug("a connection was not closed cleanly (%s)", error)
