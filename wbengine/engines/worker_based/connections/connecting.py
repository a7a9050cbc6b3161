"""Reaching a broker that may be away, and noticing that one is."""

from __future__ import annotations

import contextlib
import dataclasses
import ipaddress
import logging
import random
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeAlias

import tenacity
from amqp import exceptions as amqp_errors

from wbengine import exceptions as exc
from wbengine import transports
from wbengine.transports import reasons

LOG = logging.getLogger(__name__)

#: Seconds of one attempt.
ATTEMPT: Final = 4.0

#: Errors that waiting does not mend: a wrong password, a virtual host that is missing, a
#: certificate of somebody else.
_FINAL: Final = (
    amqp_errors.AccessRefused,
    amqp_errors.NotAllowed,
    ssl.SSLCertVerificationError,
)
_REDIS_FINAL: Final = frozenset(("AuthenticationError", "NoPermissionError"))

#: To a broker of ours (a `Broker`), or to any other (of kombu's, which has no types).
Connection: TypeAlias = Any


def reach(
    target: transports.Target,
    stopping: threading.Event,
    *,
    within: float | None = None,
    on_failure: Callable[[str], None] | None = None,
) -> Connection:
    """A connection, tried for again as the target's `retry` says.

    Tries until `stopping` is set, or for `within` seconds.  `on_failure` is told of each attempt
    that failed.

    :raises TransportFailure: the broker was not reached.
    """
    ends = None if within is None else time.monotonic() + within
    attempts = 0

    def attempt() -> Connection:
        nonlocal attempts
        attempts += 1
        left = ATTEMPT if ends is None else min(ATTEMPT, max(0.5, ends - time.monotonic()))
        return _open(target, attempts - 1, left)

    def may_pass(error: BaseException) -> bool:
        return isinstance(error, Exception) and (within is None or not _is_final(error))

    def tell(state: tenacity.RetryCallState) -> None:
        if on_failure is not None and state.outcome is not None:
            on_failure(reasons.explain(state.outcome.exception()))

    stop: Any = tenacity.stop_when_event_set(stopping)
    if within is not None:
        # Another attempt that had no time to be answered would tell nothing.
        stop = stop | tenacity.stop_after_delay(within - 1.0)
        if target.retry.max_retries is not None:
            stop = stop | tenacity.stop_after_attempt(target.retry.max_retries + 1)
    retrying = tenacity.Retrying(
        retry=tenacity.retry_if_exception(may_pass),
        wait=lambda state: target.retry.wait(state.attempt_number, random.random()),
        sleep=tenacity.sleep_using_event(stopping),
        stop=stop,
        before_sleep=tell,
        reraise=True,
    )
    try:
        return retrying(attempt)
    except exc.TransportFailure:
        raise
    except Exception as error:
        raise exc.TransportFailure(
            f"the broker at {target.shown} cannot be reached: {reasons.explain(error)}"
        ) from error


def reach_soon(target: transports.Target, within: float) -> Connection:
    """A connection for somebody who waits for it: tried for twice, in `within` seconds.

    :raises TransportFailure: the broker was not reached.
    """
    target = dataclasses.replace(target, retry=transports.RetryOptions(max_retries=1))
    if target.redis is not None:  # which has a patience of its own
        less = {name: min(within, 5.0) for name in ("socket_timeout", "socket_connect_timeout")}
        target = dataclasses.replace(target, options={**less, **target.options})
    return reach(target, threading.Event(), within=within)


def is_refusal(error: BaseException | None) -> bool:
    """Whether a broker, or a Redis, says no: then waiting does not help."""
    # Redis's client library is not imported where nobody uses it.
    names = {each.__name__ for each in type(error).__mro__}
    return isinstance(error, _FINAL) or not names.isdisjoint(_REDIS_FINAL)


def _is_final(error: BaseException) -> bool:
    return is_refusal(error) or isinstance(error, exc.TransportFailure | ValueError | ImportError)


def _open(target: transports.Target, number: int, seconds: float) -> Connection:
    if target.ours:
        return target.open()
    connection = target.connect(number, connect_timeout=seconds)
    try:
        if target.amqp:
            _resolve(connection.hostname, seconds)
        # Kombu's own `connect` sleeps two seconds before it gives up.
        connection.ensure_connection(
            max_retries=0, interval_start=0, interval_step=0, reraise_as_library_errors=False
        )
    except BaseException:
        with contextlib.suppress(Exception):
            connection.release()
        raise
    return connection


def _resolve(host: str | None, seconds: float) -> None:
    """Ask for the address of `host`, which may take the system minutes, for so long only."""
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(host or "")
        return  # it is one
    failed: list[OSError] = []

    def ask() -> None:
        try:
            socket.getaddrinfo(host, None)
        except OSError as error:
            failed.append(error)

    asking = threading.Thread(target=ask, name="wbengine-resolver", daemon=True)
    asking.start()
    asking.join(seconds)
    if failed:
        raise failed[0]
    if asking.is_alive():
        raise socket.gaierror(f"no answer in {seconds:.0f} s")


@contextlib.contextmanager
def translated(
    connection: Connection, target: transports.Target, queue: str | None = None
) -> Iterator[None]:
    """Errors of the broker that a connection is to, of a kind of each client library, become ours.

    :raises NotFound: there is no such queue.
    :raises TransportFailure: the broker refuses, or is away.
    """
    about = f"queue {queue} at" if queue is not None else "the broker at"
    try:
        yield
    except (*connection.recoverable_connection_errors, OSError) as error:
        raise exc.TransportFailure(
            f"the broker at {target.shown} was lost: {reasons.explain(error)}"
        ) from error
    except (amqp_errors.AMQPError, *connection.channel_errors) as error:
        if getattr(error, "code", None) in (404, "404"):
            raise exc.NotFound(f"there is no queue {queue!r} at {target.shown}") from error
        raise exc.TransportFailure(f"{about} {target.shown}: {reasons.explain(error)}") from error


def release(connection: Connection) -> None:
    """Close a connection that nobody uses any more; never raises."""
    try:
        connection.release()
    except Exception as error:  # another one takes its place
        LOG.debug("a connection was not closed in order (%s)", error)


class Echo:
    """Whether a consumer still hears anything: one that hears nothing speaks to itself.

    Sans I/O: its owner says what it heard, and publishes what it is told to; `now` is of one
    monotonic clock.
    """

    def __init__(self, quiet: float, grace: float, now: float) -> None:
        self._quiet = quiet
        self._grace = grace
        #: When something came last.
        self.last = self._turn = now
        self._asked = False
        self._out: float | None = None

    def heard(self, now: float) -> None:
        """Something came."""
        self.last = now
        self._asked = False
        self._out = None

    def published(self, now: float) -> None:
        """What `asks` asked for is with the broker."""
        if self._asked:
            self._out = now

    def asks(self, now: float) -> bool:
        """Whether a message to oneself is to be published now; it is asked for once."""
        if self._asked or now - self.last < self._quiet:
            return False
        self._asked = True
        return True

    def is_deaf(self, now: float) -> bool:
        """Whether what was published did not come; call it in each turn, after reading.

        A turn that took long proves nothing: what came meanwhile is not read yet.
        """
        late, self._turn = now - self._turn > self._grace / 2, now
        if self._out is None:
            return False
        if late:
            self._out = now
        return now - self._out > self._grace

    def next_due(self) -> float:
        """When to look again."""
        if self._asked:
            return self._turn + self._grace / 4
        return self.last + self._quiet
