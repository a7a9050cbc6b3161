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
        """Hand out what was taken, in this thread.  What is raised there is logged."""
        done = False
        try:
            for consume, message in self.channel.receive(self):
                consume(message)
            done = True
        except Exception:
            LOG.exception("failed to hand out what was taken")
        finally:
            if not done:  # what was not handed out goes back
                self.channel.miss(self)
