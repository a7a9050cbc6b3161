"""Parameters of operations on queues of flows."""

from __future__ import annotations

from typing import Annotated

from wbengine.jobs import _places
from wbengine.operations import _operation as op

__all__ = ["JobQueueName", "QueueOfFlows"]

JobQueueName = Annotated[
    str,
    op.Parameter(
        "The name of the queue; `*`: all queues.",
        {"type": "string", "pattern": f"^(?:[*]|{_places.QUEUE_PATTERN[1:-1]})$"},
        shown=op.Shown(is_argument=True, metavar="NAME"),
    ),
]

QueueOfFlows = Annotated[
    str | None,
    op.Parameter(
        "The queue; by default, `default`.",
        {"type": "string", "pattern": _places.QUEUE_PATTERN},
    ),
]
