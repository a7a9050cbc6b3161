"""Waiting for messages in Redis without asking again and again, and what comes with that."""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from redis import exceptions as errors

from wbengine.transports._nudge import Nudge
from wbengine.transports._redis_link import Link, Place

#: Seconds until somebody who waits looks by himself: a bell may be lost with who heard it.
POLL: Final = 1


class Heard(NamedTuple):
    """What a wait ended with: whether it is worth to look for oneself, the queue whose bell was
    heard, or '', and what the command after it returned, if there was one."""

    look: bool
    rung: str = ""
    answers: tuple[Any, ...] = ()


class BlockingWait:
    """One consumer's wait, blocked in the server on a connection of its own.

    `nudge` is for any thread, the rest for one.  A wait that a nudge ends goes on in the server,
    and the next one takes it up: a nudge costs no round trip, unless other queues are waited for.
    """

    def __init__(self, place: Place, poke: Callable[[], object]) -> None:
        """`poke` makes the server end what it blocks on."""
        self._place = place
        self._poke = poke
        self._link = Link(place)
        self._asked: tuple[str, ...] | None = None
        self._then = False
        self._late = 0.0
        self._patience: float = place.settings["socket_timeout"]
        self._nudge = Nudge()
        self._poll: select.poll | None = None

    def wait(
        self,
        timeout: float | None,
        who: str,
        queues: Sequence[str],
        then: Callable[[], tuple[Any, ...]] | None = None,
    ) -> Heard:
        """Wait for one of the queues, a nudge, or the time to look by oneself.

        `then()` is a command that the server shall run by itself as soon as the wait ends there,
        whatever ends it.  A bell that was heard may be one that was waited for before: whoever
        cannot take from that queue is to ring it again.

        :raises LOST: the server went away, or is not heard of.
        """
        keys = (f"{self._place.prefix}n:{who}", *(f"{self._place.prefix}bell:{q}" for q in queues))
        if self._asked is not None and not set(keys) <= set(self._asked):
            heard = self.recall()
            if heard.rung or heard.answers:
                return heard
        if self._asked is None:
            self._ask(keys, then)
        left = self._late - time.monotonic()
        ready = self._ready(left if timeout is None else min(timeout, left))
        nudged = self._nudge.fd in ready
        if nudged:
            self._nudge.take()
        if len(ready) > nudged and self._link.has_answer():
            heard = self._hear()
            return heard._replace(look=heard.look or nudged)
        if time.monotonic() >= self._late:
            self.close_link()
            raise errors.TimeoutError(f"{self._place.shown} does not answer")
        return Heard(nudged)

    def pause(self, seconds: float) -> bool:
        """Wait for a nudge only, unless more is waited for already; whether there was one."""
        if self._asked is not None:
            return False
        nudges = select.poll()  # the number of a descriptor may be too large for `select`
        nudges.register(self._nudge.fd, select.POLLIN)
        nudged = bool(nudges.poll(seconds * 1000))
        if nudged:
            self._nudge.take()
        return nudged

    @property
    def takes(self) -> bool:
        """Whether a command waits in the server for the end of a wait."""
        return self._asked is not None and self._then

    def recall(self) -> Heard:
        """End the wait that goes on in the server."""
        self._poke()
        return self._hear()

    def _ask(self, keys: tuple[str, ...], then: Callable[[], tuple[Any, ...]] | None) -> None:
        self._then = then is not None
        wait = ("BLPOP", *keys, POLL)
        self._link.send_all([wait] if then is None else [wait, then()])
        self._asked = keys
        self._late = time.monotonic() + POLL + self._patience

    def _ready(self, timeout: float) -> list[int]:
        """Which descriptors can be read."""
        if self._poll is None:
            self._poll = select.poll()
            for descriptor in (self._link.fileno(), self._nudge.fd):
                self._poll.register(descriptor, select.POLLIN)
        return [found for found, _ in self._poll.poll(max(0.0, timeout * 1000))]

    def _hear(self) -> Heard:
        self._asked = None
        try:
            heard = self._link.receive()
        except errors.ResponseError:
            if self._then:  # which is answered, too: nobody must take that for something else
                self.close_link()
            raise
        name = heard[0].decode() if heard else ""
        rung = name.partition("}:")[2].removeprefix("bell:") if "}:bell:" in name else ""
        if not self._then:
            return Heard(True, rung)
        try:
            return Heard(False, rung, (self._link.receive(),))
        except errors.ResponseError:  # whoever looks himself is told what is wrong
            return Heard(True, rung)

    def nudge(self) -> None:
        """End a `wait`, or the next one."""
        self._nudge.give()

    def close_link(self) -> None:
        """Disconnect: what the server blocks on ends."""
        self._asked = None
        self._link.close()

    def close(self) -> None:
        """Free everything; nobody waits."""
        self.close_link()
        self._nudge.close()
