"""One task that Celery's workers are asked to run, as the link to them knows it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from wbengine.interop.celery.client.addresses import Route
from wbengine.interop.celery.protocol.wire import Wire

__all__ = ["CONFIRMED", "NEW", "PUBLISHED", "Order"]

#: How far an order has come: nothing is known of it outside, it was written, the broker has it.
NEW: Final = 0
PUBLISHED: Final = 1
CONFIRMED: Final = 2


@dataclass(slots=True, eq=False)
class Order:
    """`tell` is called once, in the link's thread, with what became of it.

    That is the result as Celery tells it (`{'status': …, 'result': …}`), or a `Failure`, or, if
    nobody waits for a result, its id once the broker has it.

    `recovered`: an earlier run may have sent it; if it is unknown whether, it is sent again only if
    `again`.
    """

    id: str
    wire: Wire
    route: Route
    tell: Callable[[Any], None]
    waits: bool = True
    recovered: bool = False
    again: bool = True
    stage: int = NEW
    #: How often it was written.
    tries: int = 0
