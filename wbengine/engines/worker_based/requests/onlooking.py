"""Whoever watches an executor: told what it sends to workers, and how that ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from wbengine import invocation
    from wbengine.engines.worker_based.messages import envelope as env
    from wbengine.engines.worker_based.requests.entries import Entry

__all__ = ["Onlooker"]


class Onlooker(Protocol):
    """What is told of the requests of an executor, whichever engine uses it, from any thread: it
    must neither wait nor raise.
    """

    def publishing(self, entry: Entry, envelope: env.Envelope) -> None:
        """Its message is about to be published; headers may be added to it.  Again, where that has
        to be tried again.
        """

    def published(self, entry: Entry, error: BaseException | None) -> None:
        """It was, as far as the broker says so; or never will be, because of `error`."""

    def settled(self, entry: Entry, outcome: invocation.Outcome, waited: float) -> None:
        """It ended, `waited` seconds after it was submitted.  Under the lock of the executor."""
