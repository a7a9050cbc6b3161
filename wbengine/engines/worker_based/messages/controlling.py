"""What somebody tells a worker to do: take nothing new, take again, or come to an end.

Peers that do not know the message refuse it, and go on as before.
"""

from __future__ import annotations

from typing import Any, Final, Literal

from wbengine import _names
from wbengine import exceptions as exc
from wbengine.engines.worker_based.messages import envelope as env

__all__ = [
    "CONTROL",
    "DRAIN",
    "RESUME",
    "STOP",
    "SUSPEND",
    "Order",
    "check",
    "order",
    "read",
    "validate",
]

#: The type of the message.
CONTROL: Final = "wbe-control"

Order = Literal["suspend", "resume", "drain", "stop"]
#: Take nothing new until told to resume.
SUSPEND: Final = "suspend"
RESUME: Final = "resume"
#: Take nothing new, hand back what is not started, finish what runs, and end.
DRAIN: Final = "drain"
#: The same, but give up at once what runs.
STOP: Final = "stop"

ORDERS: Final = (SUSPEND, RESUME, DRAIN, STOP)


def check(what: Any) -> Order:
    """`what`, if it can be told to a worker.

    :raises ValueError: it cannot.
    """
    if what not in ORDERS:
        hint = _names.hint(str(what), ORDERS)
        raise ValueError(f"{what!r} is nothing a worker can be told{hint}: {', '.join(ORDERS)}")
    found: Order = what
    return found


def order(what: Order, worker: str | None = None) -> env.Envelope:
    """The message that tells one worker (by its identity), or all that listen.

    :raises ValueError: it cannot be told that, or `worker` is no identity.
    """
    to = env.ALL_WORKERS if worker is None else _names.check_label("worker", worker)
    return env.Envelope(
        CONTROL, {"do": check(what)}, routing_key=to, headers={env.WBE_VERSION: env.VERSION}
    )


def validate(data: Any) -> None:
    """Raise `InvalidFormat` unless `data` is the body of an order."""
    what = data.get("do") if isinstance(data, dict) else None
    if not isinstance(what, str) or what not in ORDERS:
        raise exc.InvalidFormat(f"an order is invalid: none of {', '.join(ORDERS)}")


def read(data: Any) -> Order:
    """What a validated order says."""
    found: Order = data["do"]
    return found
