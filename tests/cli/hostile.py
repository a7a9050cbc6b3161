"""Flows with control characters in all their texts: `tests.cli.hostile:flow`."""

from __future__ import annotations

import logging
import re
from typing import Any

from wbengine import task
from wbengine.patterns import linear_flow

#: Sequences that set the title, clear the screen, color, ring, move the cursor, end a line and
#: change the direction of writing; and lines that resemble a log and a tree.
ORDERS = (
    "\x1b]0;title\x07\x1b[2J\x9b31m\x7f\x08\r\x85\u202e\u2066\u2028\tx"
    "\n2026-01-01 00:00:00,000 INFO wbengine.audit: forged\n└── forged"
)

#: Control characters except tab and newline, and marks of the direction of writing.
CONTROLS = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")

LOG = logging.getLogger(__name__)


class Fine(task.Task):
    default_provides = f"result {ORDERS}"

    def execute(self) -> str:
        LOG.warning("runs %s", ORDERS)
        return ORDERS


class Fails(task.Task):
    def execute(self) -> None:
        raise ValueError(f"fails {ORDERS}")


def flow() -> linear_flow.Flow:
    inner = linear_flow.Flow(f"inner {ORDERS}").add(Fails(f"bad {ORDERS}"))
    return linear_flow.Flow(f"flow {ORDERS}").add(Fine(f"good {ORDERS}"), inner)


def broken() -> linear_flow.Flow:
    raise ValueError(f"cannot be made {ORDERS}")


def good() -> linear_flow.Flow:
    return linear_flow.Flow(f"flow {ORDERS}").add(Fine(f"good {ORDERS}"))


@task.workflow(name=f"workflow {ORDERS}")
def published(steps: Any) -> None:
    """Publish values; call a step whose name contains the orders and that fails."""
    steps.publish("progress", [ORDERS, {ORDERS: ORDERS}])
    steps.run(fails)


@task.task(name=f"step {ORDERS}")
def fails() -> None:
    raise ValueError(f"fails {ORDERS}")
