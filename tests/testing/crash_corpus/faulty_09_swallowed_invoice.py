"""Extend a subscription, write the invoice and confirm both by mail.

`write_invoice` suppresses every exception, so that a defect of the accounting does not delay the
customer. The task then succeeds although nothing was written: the flow ends in SUCCESS, the
customer receives the confirmation, and the invoice is missing in the books.
"""

from __future__ import annotations

import logging
from typing import Any

from wbengine import task
from wbengine.patterns import linear_flow
from wbengine.testing import World

LOG = logging.getLogger(__name__)
SHOP = World("shop")
BOOKS = World("books")
MAIL = World("mail", permanent=True)
WORLDS = [SHOP, BOOKS, MAIL]
INPUTS: dict[str, Any] = {"customer": "17"}


@task.task
def extend(customer: str) -> str:
    return SHOP.effect(f"subscription {customer}", idempotency_key=f"extend-{customer}")


@extend.revert(failed=True)
def shorten(customer: str) -> None:
    SHOP.undo(f"subscription {customer}", missing_ok=True)


@task.task
def write_invoice(customer: str) -> None:
    try:
        BOOKS.effect(f"invoice {customer}", idempotency_key=f"invoice-{customer}")
    except Exception:
        LOG.warning("the invoice of customer %s is delayed", customer)


@write_invoice.revert(failed=True)
def cancel_invoice(customer: str) -> None:
    BOOKS.undo(f"invoice {customer}", missing_ok=True)


@task.task
def confirm(customer: str) -> None:
    MAIL.effect(f"confirmation {customer}", idempotency_key=f"confirmation-{customer}")


def flow() -> linear_flow.Flow:
    members = extend("extend"), write_invoice("write invoice"), confirm("confirm")
    return linear_flow.Flow("subscription").add(*members)
