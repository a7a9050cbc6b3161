"""Send the parcels of an order and close the order.

The Map collects failures instead of failing, and `close` does not look at the list of results. If
one parcel cannot be sent, its failure is only an item of this list: the order is closed, and the
customer waits for a parcel that no system expects to send.
"""

from __future__ import annotations

from typing import Any

from wbengine import task
from wbengine.patterns import linear_flow
from wbengine.testing import World

POST = World("post", permanent=True)
SHOP = World("shop")
WORLDS = [POST, SHOP]
INPUTS: dict[str, Any] = {"order": "17", "parcels": ["lamp", "desk", "sofa"]}
EXCEPTIONS = {"send": (ConnectionError,)}


@task.task
def send(order: str, parcel: str) -> str:
    return POST.effect(f"{parcel} of {order}", idempotency_key=f"{order}-{parcel}")


@task.task
def close(order: str, sent: list[Any]) -> int:
    SHOP.effect(f"closed {order}", idempotency_key=f"closed-{order}", parcels=len(sent))
    return len(sent)


@close.revert(failed=True)
def reopen(order: str) -> None:
    SHOP.undo(f"closed {order}", missing_ok=True)


def flow() -> linear_flow.Flow:
    parcels = task.Map(
        send("send"), over="parcels", item="parcel", provides="sent", on_item_failure="collect"
    )
    return linear_flow.Flow("parcels").add(parcels, close("close"))
