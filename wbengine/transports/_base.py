"""What our own kombu transports share: channels, prefetch, acknowledgement, the drain loop.

A transport of ours is a `Store` (where messages, queues and bindings are kept) below the
`Channel` of `_channel` and the `Transport` of this module.  Each connection has one store.

Order: consumers are served in the order of `basic_consume`, the first queue is emptied first;
within a queue priority 9 comes first, then first in, first out per publisher.  Threads: one thread
drains a connection.  Publishing, acknowledging, rejecting and `wake()` are allowed from any
thread.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from kombu.transport import virtual

from wbengine.transports import _channel
from wbengine.transports._store import Store, Taken

LOG = logging.getLogger(__name__)

#: Seconds after which whoever drains looks up, however much there is.
_TURN: Final = 0.5


class Transport(virtual.Transport):  # type: ignore[misc]
    """A kombu transport whose connections drain a `Store`."""

    Channel = _channel.Channel
    can_parse_url = True
    default_port = None
    #: The names of transport options.
    known_options: tuple[str, ...] = ()

    def __init__(self, client: Any, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        self._opened: Store | None = None
        self._woken = False
        #: Called for each message that nobody could read.
        self.on_discard: Callable[[], None] | None = None

    def open_store(self) -> Store:
        """Make the store of this connection.

        :raises TransportFailure: it cannot be used.
        """
        raise NotImplementedError

    @property
    def store(self) -> Store:
        """The store of this connection, opened at first use."""
        if self._opened is None:
            self._opened = self.open_store()
        return self._opened

    def as_uri(self, uri: str, include_password: bool = False, mask: str = "**") -> str:
        """There is nothing secret in our URLs."""
        return uri

    def establish_connection(self) -> Transport:
        """Open the store; kombu calls it once per connection."""
        _ = self.store
        return self

    def close_connection(self, connection: Any) -> None:
        """Close all channels (what is not acknowledged goes back), then the store.

        What cannot be given back one by one, as the connection is lost or the server refuses, goes
        back with the store.
        """
        for channel in (*self._avail_channels, *self.channels):
            try:
                channel.close()
            except Exception as error:
                LOG.debug("a channel was not closed in order: %s", error)
        self._avail_channels.clear()
        self.channels.clear()
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()

    def consumed(self) -> set[str]:
        """The queues that this connection consumes."""
        return {queue for channel in tuple(self.channels) for queue in channel.consumed()}

    def wake(self) -> None:
        """Make a blocked `drain_events`, or the next one, return at once; from any thread."""
        self._woken = True
        opened = self._opened
        if opened is not None:
            opened.nudge()

    def drain_events(self, connection: Any, timeout: float | None = None) -> None:
        """Deliver all that is there, up to the prefetch limits; wait for it when there is nothing.

        Returns after at least one delivery.  What comes in while callbacks run, or is left after a
        half a second, is delivered by the next call.  A message that cannot be read is put
        aside, never raised.

        :raises TimeoutError: nothing came in `timeout` seconds (None: wait for ever), or `wake()`
            was called.
        """
        store = self.store
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            if self._deliver_available(store):
                self._woken = False
                return
            if self._woken:
                self._woken = False
                raise TimeoutError("woken")
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise TimeoutError("timed out")
            store.wait(left, self._awaited())

    def _deliver_available(self, store: Store) -> int:
        most, delivered = store.refresh(), 0
        until = time.monotonic() + _TURN
        found: Sequence[tuple[int, Taken]] = ()
        # At first, what is left of the last time: a callback raised.
        channels: Sequence[_channel.Channel] = tuple(self.channels)
        while True:
            for channel in channels:
                if channel.ready:
                    delivered += channel.deliver()
            if delivered >= most or (found and store.batch > 1 and not store.refresh()):
                return delivered
            if delivered and time.monotonic() >= until:
                return delivered
            groups, channels = self._wanted(store.batch)
            found = store.take_many(groups) if groups else ()
            for group, taken in found:
                channels[group].ready.append(taken)
            for channel in channels:
                channel.room.asked = 0
            if not found:
                return delivered

    def _wanted(self, batch: int) -> tuple[list[tuple[int, list[str]]], list[_channel.Channel]]:
        """How many messages may be taken at most, and from which queues; and for whom each time.

        Those of consumers that do not acknowledge come by themselves, after the others.
        """
        groups: list[tuple[int, list[str]]] = []
        channels: list[_channel.Channel] = []
        for channel in tuple(self.channels):
            if channel.limited and (room := channel.room.ask(batch, len(channel.ready))) > 0:
                groups.append((room, channel.limited))
                channels.append(channel)
            if channel.free:
                groups.append((batch, channel.free))
                channels.append(channel)
        return groups, channels

    def _awaited(self) -> list[str]:
        """The queues from which something could be taken."""
        queues: list[str] = []
        for channel in tuple(self.channels):
            if channel.limited and channel.room.look(len(channel.ready)):
                queues += channel.limited
            queues += channel.free
        return queues
