"""What a channel takes while others are ended, in the same step."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from wbengine.transports._store import Taken

LOG = logging.getLogger(__name__)


class Order:
    """At most `most` messages, for `channel`; `told` is how its store says so.

    Made by `Channel.order`, given to `end_many`, which fills in what was `taken`, and ended by
    `deliver`; if nobody knows what was taken, by `Channel.miss`.
    """

    __slots__ = ("channel", "most", "taken", "told")

    def __init__(self, channel: Any, most: int, told: Any) -> None:
        self.channel = channel
        self.most = most
        self.told = told
        self.taken: Sequence[Taken] = ()

    def deliver(self) -> None:
        """Hand out what was taken, in this thread.  What is raised there is logged, and the
        channel's connection is given up: what nobody saw goes back as if it had not been taken."""
        left: Sequence[Any] = ()
        over = False
        try:
            left = self.channel.receive(self)
            while left:
                (consume, message), *left = left
                consume(message)
            over = True
        except Exception:
            LOG.exception("failed to hand out what was taken")
        finally:
            if not over:
                self.channel.miss(self)
                self.channel.put_back([message for _, message in left])
