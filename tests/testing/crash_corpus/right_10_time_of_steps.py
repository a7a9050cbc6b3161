"""Issue a voucher that is valid for 30 days, activate it, and send it.

The date follows from `steps.now()`, so a replay computes the same one and calls the same steps. The
workflow logs its progress: a replay writes these lines once more, which does no harm. The result
contains the date and differs between two runs of the workflow, but not between replays.
"""

from __future__ import annotations

import datetime as dt
import logging
from typing import Any

from wbengine import task
from wbengine.steps import Steps
from wbengine.testing import World

LOG = logging.getLogger(__name__)
SHOP = World("shop")
MAIL = World("mail", permanent=True)
WORLDS = [SHOP, MAIL]
INPUTS: dict[str, Any] = {"customer": "17"}


@task.task(provides="voucher")
def issue(customer: str, valid_until: str, key: str) -> str:
    return SHOP.effect(f"voucher {customer}", idempotency_key=key, until=valid_until)


@issue.revert(failed=True)
def withdraw(customer: str) -> None:
    SHOP.undo(f"voucher {customer}", missing_ok=True)


@task.task
def send(customer: str, voucher: str, key: str) -> None:
    MAIL.effect(f"voucher for {customer}", idempotency_key=key, voucher=voucher)


@task.workflow
def flow(steps: Steps, customer: str) -> dict[str, str]:
    valid_until = (steps.now() + dt.timedelta(days=30)).date().isoformat()
    LOG.info("customer %s gets a voucher until %s", customer, valid_until)
    voucher = steps.run(issue, customer, valid_until, str(steps.uuid4()))
    steps.sleep(0.01)
    LOG.info("voucher %s is sent", voucher)
    steps.run(send, customer, voucher, str(steps.uuid4()))
    return {"voucher": voucher, "valid_until": valid_until}
