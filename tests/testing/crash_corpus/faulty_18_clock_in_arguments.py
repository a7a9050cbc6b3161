"""Issue a voucher that is valid for 30 days and send it.

The workflow reads the clock of the host in a helper, which no check of its code examines. After a
crash the function computes another date, so it calls the first step with other arguments than the
recorded ones: the run ends with `NonDeterministicWorkflow`, the flow is blocked, and the customer
never receives the voucher that was issued.
"""

from __future__ import annotations

import datetime as dt
from typing import Any

from wbengine import task
from wbengine.steps import Steps
from wbengine.testing import World

SHOP = World("shop")
MAIL = World("mail", permanent=True)
WORLDS = [SHOP, MAIL]
INPUTS: dict[str, Any] = {"customer": "17"}


@task.task
def issue(customer: str, valid_until: str) -> str:
    key = f"voucher {customer}"
    return SHOP.effect(key, idempotency_key=f"voucher-{customer}", until=valid_until)


@issue.revert(failed=True)
def withdraw(customer: str) -> None:
    SHOP.undo(f"voucher {customer}", missing_ok=True)


@task.task
def send(customer: str, voucher: str) -> None:
    MAIL.effect(f"voucher for {customer}", idempotency_key=f"mail-{customer}", voucher=voucher)


def end_of_validity() -> str:
    return (dt.datetime.now(dt.UTC) + dt.timedelta(days=30)).isoformat()


@task.workflow
def flow(steps: Steps, customer: str) -> str:
    voucher = steps.run(issue, customer, end_of_validity())
    steps.run(send, customer, voucher)
    return voucher
