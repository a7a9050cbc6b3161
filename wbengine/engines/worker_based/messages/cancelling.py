"""The message that asks workers to let requests come to an end soon.

Whoever runs one of them, in this epoch or an older one, tells its task, and ends it after a grace
time where he can.  Where no ledger knows of it he remembers it, so as not to start it when it comes
to him.  Peers that do not know the message go on as before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from wbengine import exceptions as exc
from wbengine.engines.worker_based.messages import asking
from wbengine.engines.worker_based.messages import envelope as env

__all__ = ["CANCEL", "MOST", "orders", "read", "validate"]

#: The type of the message.
CANCEL: Final = "wbe-cancel"

#: So many requests at most are named in one message.
MOST: Final = asking.MOST

#: A request's id, and its epoch.
Named = tuple[str, int]


def orders(named: Iterable[Named], to: str) -> Iterator[env.Envelope]:
    """The messages that ask whoever listens to the routing key `to` to end these requests."""
    pairs = [[request_id, epoch] for request_id, epoch in named]
    for start in range(0, len(pairs), MOST):
        yield env.Envelope(
            CANCEL,
            {"cancel": pairs[start : start + MOST]},
            routing_key=to,
            headers={env.WBE_VERSION: env.VERSION},
        )


def validate(data: Any) -> None:
    """Raise `InvalidFormat` unless `data` is the body of such a message."""
    named = data.get("cancel") if isinstance(data, dict) else None
    if not asking.are_pairs(named):
        raise exc.InvalidFormat("a cancel message is invalid: not a list of ids and epochs")


def read(data: Any) -> list[Named]:
    """The requests that a validated message names."""
    return [(request_id, epoch) for request_id, epoch in data["cancel"]]
