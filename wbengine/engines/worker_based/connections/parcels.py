"""One thing to be published, and whoever does something about it before and after."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from wbengine.engines.worker_based.messages import envelope as env

__all__ = ["ECHO", "NOTHING", "Errand", "Parcel"]


class Errand:
    """What parcels of one kind need besides being published.

    All is called on the publisher's thread, with as many parcels as go out together, so that a
    ledger or a broker is told of all of them in one step.
    """

    #: Whether the broker is to say when there was no queue for a parcel (`unrouted`).
    mandatory: ClassVar[bool] = False

    #: Whether it writes its parcels itself (`write`), to our own transports.
    writes: ClassVar[bool] = False

    def write(
        self, channel: Any, parcels: Sequence[Parcel], messages: Sequence[Any]
    ) -> Iterable[bool]:
        """Publish what the channel laid out; whether there was a queue for each, in order."""
        raise NotImplementedError

    @property
    def repeats(self) -> bool:
        """Whether to publish again what a lost connection may have swallowed; else `uncertain`."""
        return True

    def prepare(self, parcels: Sequence[Parcel]) -> None:
        """Before they are published; those that are not to be are `withdrawn` here.

        What it raises of an ailing broker or ledger is a reason to try again later; anything else
        fails all of them.
        """

    def sent(self, parcels: Sequence[Parcel]) -> None:
        """They were published (where the broker confirms: once it did)."""

    def failed(self, parcel: Parcel, error: BaseException) -> None:
        """It never can be published."""

    def unrouted(self, parcel: Parcel) -> None:
        """There was no queue for it.  Only where that matters."""
        self.sent((parcel,))

    def uncertain(self, parcel: Parcel) -> None:
        """The connection was lost before the broker had confirmed it."""


class _Echo(Errand):
    mandatory = True

    def unrouted(self, parcel: Parcel) -> None:
        """The outbox sees to that: see `Outbox.astray`."""


#: For parcels that only have to go out; and those to oneself, which come back unless what one
#: declared is gone.
NOTHING, ECHO = Errand(), _Echo()


@dataclass(slots=True, eq=False)
class Parcel:
    """One thing to be done in turn by the publisher's thread.

    `matter` is what its errand knows it by.  One that was `withdrawn` in time is skipped; `sent`:
    it has left the outbox.
    """

    envelope: env.Envelope
    errand: Errand = NOTHING
    matter: Any = None
    sent: bool = False
    withdrawn: bool = False
