"""Blocking wait for messages in Redis, without polling."""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from redis import exceptions as errors

from wbengine._redis.lua_scripts import Step
from wbengine.transports._nudge import Nudge
from wbengine.transports._redis.redis_link import Link, Place

#: Maximum time until a waiting consumer polls: a wake-up is lost if its receiver dies.
POLL_SECONDS: Final = 1


class WaitResult(NamedTuple):
    """The end of a wait.

    `must_poll`: whether the caller must poll its queues. `notified_queue`: the queue that woke the
    consumer, or ''. `answers`: the result of the script after the wait, if there was one.
    """

    must_poll: bool
    notified_queue: str = ""
    answers: tuple[Any, ...] = ()


class BlockingWait:
    """Wait of one consumer, blocked in the server on a separate connection.

    `nudge` is thread-safe; all other methods are for one thread. If a nudge ends a wait, the wait
    continues in the server, and the next call resumes it. So a nudge costs no round trip, unless
    the next call waits for other queues.
    """

    def __init__(self, place: Place, poke: Callable[[], object]) -> None:
        self._place = place
        self._poke = poke
        self._link = Link(place)
        self._blocked_keys: tuple[str, ...] | None = None
        self._step: Step[Any] | None = None
        self._deadline = 0.0
        self._answer_seconds: float = place.settings["socket_timeout"]
        self._nudge = Nudge()
        self._poll: select.poll | None = None

    def wait(
        self,
        timeout: float | None,
        consumer: str,
        queues: Sequence[str],
        then: Callable[[], Step[Any]] | None = None,
    ) -> WaitResult:
        """Wait for one of the queues, a nudge, or the time at which the caller must poll.

        The reported queue may be that of an earlier call. A caller that cannot consume from it must
        repeat the wake-up.

        :param then: returns a script that the server runs when the wait ends, for any reason.
        :raises LOST: if the connection is lost or the server does not reply.
        """
        keys = (
            f"{self._place.prefix}n:{consumer}",
            *(f"{self._place.prefix}bell:{q}" for q in queues),
        )
        if self._blocked_keys is not None and not set(keys) <= set(self._blocked_keys):
            result = self.recall()
            if result.notified_queue or result.answers:
                return result
        if self._blocked_keys is None:
            self._block(keys, then)
        remaining = self._deadline - time.monotonic()
        ready = self._ready(remaining if timeout is None else min(timeout, remaining))
        nudged = self._nudge.fd in ready
        if nudged:
            self._nudge.clear()
        if len(ready) > nudged and self._link.has_answer():
            return self._receive_result()
        if time.monotonic() >= self._deadline:
            self.close_link()
            raise errors.TimeoutError(f"{self._place.shown} does not answer")
        return WaitResult(False)

    def pause(self, seconds: float) -> bool:
        """Wait only for a nudge, unless a wait is in the server. Return whether there was one."""
        if self._blocked_keys is not None:
            return False
        nudges = select.poll()  # `select` does not support large descriptors.
        nudges.register(self._nudge.fd, select.POLLIN)
        nudged = bool(nudges.poll(seconds * 1000))
        if nudged:
            self._nudge.clear()
        return nudged

    @property
    def takes(self) -> bool:
        """Whether the server runs a script at the end of the wait."""
        return self._blocked_keys is not None and self._step is not None

    def recall(self) -> WaitResult:
        """End the wait that continues in the server."""
        self._poke()
        return self._receive_result()

    def _block(self, keys: tuple[str, ...], then: Callable[[], Step[Any]] | None) -> None:
        self._step = None if then is None else then()
        commands: list[tuple[Any, ...]] = [("BLPOP", *keys, POLL_SECONDS)]
        if self._step is not None:
            commands.append(self._step.command(self._place.prefix))
        self._link.send_all(commands)
        self._blocked_keys = keys
        self._deadline = time.monotonic() + POLL_SECONDS + self._answer_seconds

    def _ready(self, timeout: float) -> list[int]:
        if self._poll is None:
            self._poll = select.poll()
            for descriptor in (self._link.fileno(), self._nudge.fd):
                self._poll.register(descriptor, select.POLLIN)
        return [ready_fd for ready_fd, _ in self._poll.poll(max(0.0, timeout * 1000))]

    def _receive_result(self) -> WaitResult:
        self._blocked_keys = None
        try:
            answer = self._link.receive()
        except errors.ResponseError:
            # The reply of the script would be read as that of a later command.
            if self._step is not None:
                self.close_link()
            raise
        name = answer[0].decode() if answer else ""
        notified_queue = name.partition("}:")[2].removeprefix("bell:") if "}:bell:" in name else ""
        if self._step is None:
            return WaitResult(True, notified_queue)
        try:
            return WaitResult(False, notified_queue, (self._step.read(self._link.receive()),))
        except errors.ResponseError:  # The caller polls and gets the error itself.
            return WaitResult(True, notified_queue)

    def nudge(self) -> None:
        """End the current `wait`, or the next one. Thread-safe."""
        self._nudge.notify()

    def close_link(self) -> None:
        """Disconnect, which ends the blocking command in the server."""
        self._blocked_keys = None
        self._link.close()

    def close(self) -> None:
        """Close the connection and the descriptors. No thread may be waiting."""
        self.close_link()
        self._nudge.close()
