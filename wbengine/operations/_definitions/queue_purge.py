"""The operation `queue purge`."""

from __future__ import annotations

from typing import Annotated, Any

from wbengine.fleet import _message_queues
from wbengine.operations import _operation as op

_QueueName = Annotated[
    str,
    op.Parameter(
        "The name of the queue, or its beginning.",
        {"type": "string", "minLength": 1},
        is_target=True,
        shown=op.Shown(metavar="NAME"),
    ),
]


@op.operation(
    role=op.ADMIN,
    result={
        "queue": {"type": "string", "description": "The full name of the queue."},
        "messages": {"type": "integer", "description": "The number of deleted messages."},
    },
    button=op.Button(
        notice="The messages are deleted.",
        asks="Delete all messages in {}?",
        is_danger=True,
    ),
)
def purge(scope: op.Scope, queue: _QueueName) -> dict[str, Any]:
    """Delete the messages in a queue.

    A running engine resends its requests as soon as a worker can execute them. Requests of ended
    engines, and dead letters, are removed for good. To prevent a task from running, cancel its
    flow.
    """
    fleet = scope.open_fleet()
    (found,) = _message_queues.list_queues(fleet, [queue])
    return {"queue": found.name, "messages": _message_queues.purge(fleet, [found])[found.name]}
