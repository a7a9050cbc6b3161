"""Send an article from stock, or order it from the supplier if none is left, and tell the customer.

The deciders read only the stored result of the check, so each process that continues the flow takes
the same branch, also if the stock has changed meanwhile. `tell` runs after either branch. Each
branch undoes its own work.
"""

from __future__ import annotations

from typing import Any

from wbengine import task
from wbengine.patterns import graph_flow
from wbengine.testing import World

DEPOT = World("depot")
SUPPLIER = World("supplier")
MAIL = World("mail", permanent=True)
WORLDS = [DEPOT, SUPPLIER, MAIL]
INPUTS: dict[str, Any] = {"article": "lamp"}


@task.task
def count_stock(article: str) -> int:
    return 0 if DEPOT.has(f"parcel with {article}") else 1


@task.task
def send(article: str) -> str:
    return DEPOT.effect(f"parcel with {article}", idempotency_key=f"parcel-{article}")


@send.revert(failed=True)
def fetch_back(article: str) -> None:
    DEPOT.undo(f"parcel with {article}", missing_ok=True)


@task.task
def order(article: str) -> str:
    return SUPPLIER.effect(f"order of {article}", idempotency_key=f"order-{article}")


@order.revert(failed=True)
def cancel_order(article: str) -> None:
    SUPPLIER.undo(f"order of {article}", missing_ok=True)


@task.task
def tell(article: str) -> None:
    MAIL.effect(f"news of {article}", idempotency_key=f"news-{article}")


def flow() -> graph_flow.Flow:
    count, mail = count_stock("count"), tell("tell")
    parcel, backorder = send("send"), order("order")
    graph = graph_flow.Flow("article").add(count, parcel, backorder, mail)
    graph.link(count, parcel, decider=lambda history: history["count"] > 0)
    graph.link(count, backorder, decider=lambda history: history["count"] == 0)
    return graph.link(parcel, mail).link(backorder, mail).join(mail, "any")
