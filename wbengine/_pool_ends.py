"""What stands for calls that do not end by themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wbengine import exceptions
from wbengine.types import failure as ft

if TYPE_CHECKING:
    from wbengine._pool_base import Ticket


def gone(message: str) -> ft.Failure:
    """What stands for a call that nobody makes any more."""
    return ft.Failure.from_exception(exceptions.WorkerLost(message))


def cancelled(ticket: Ticket, when: str) -> ft.Failure:
    """What stands for a call that was cancelled."""
    return ft.Failure.from_exception(exceptions.Cancelled(f"{ticket} was cancelled {when}"))


def overdue(ticket: Ticket) -> ft.Failure:
    """What stands for a call whose hard limit is over."""
    message = f"{ticket} did not end within its hard limit of {ticket.limit.hard or 0.0:g} s"
    return ft.Failure.from_exception(exceptions.TimeLimitExceeded(message))
