"""Reserve a seat, then charge the card.

`reserve` has no `revert`. If the card is declined, or the flow is cancelled, the payment is undone
but the seat stays reserved: after a day with many declined cards the train is sold out and half
empty.
"""

from __future__ import annotations

from typing import Any

from wbengine import task
from wbengine.patterns import linear_flow
from wbengine.testing import World

TRAIN = World("train")
BANK = World("bank")
WORLDS = [TRAIN, BANK]
INPUTS: dict[str, Any] = {"passenger": "Ann", "seat": "12A"}


class CardDeclined(Exception):
    """The bank refuses the card."""


EXCEPTIONS = {"charge": (CardDeclined,)}


@task.task
def reserve(passenger: str, seat: str) -> str:
    return TRAIN.effect(f"seat {seat}", idempotency_key=f"{seat}-{passenger}", passenger=passenger)


@task.task
def charge(passenger: str, seat: str) -> str:
    return BANK.effect(f"ticket {seat}", idempotency_key=f"ticket-{seat}-{passenger}")


@charge.revert(failed=True)
def refund(seat: str) -> None:
    BANK.undo(f"ticket {seat}", missing_ok=True)


def flow() -> linear_flow.Flow:
    return linear_flow.Flow("ticket").add(reserve("reserve"), charge("charge"))
