"""The operation `request retry`."""

from __future__ import annotations

from typing import Annotated, Any

from wbengine.fleet import _ledgers, _message_queues
from wbengine.operations import _operation as op

_RequestId = Annotated[
    str,
    op.Parameter(
        "The id of the dead letter, or its beginning.",
        {"type": "string", "minLength": 1},
        is_target=True,
        shown=op.Shown(metavar="REQUEST"),
    ),
]


@op.operation(
    role=op.OPERATOR,
    result={
        "request": {"type": "string", "description": "The full id."},
        "task": {"type": "string"},
        "flow": {"type": ["string", "null"]},
    },
    button=op.Button(notice="The request is sent to a worker."),
)
def retry(scope: op.Scope, request: _RequestId) -> dict[str, Any]:
    """Send a dead letter to workers again.

    First correct what killed or froze the workers. The flow of the request does not receive the
    result: to run the failed tasks of a flow again, retry the flow. A dead letter that cannot be
    sent is not deleted.
    """
    fleet = scope.open_fleet()
    (letter,) = _message_queues.select_dead_letters(
        _message_queues.list_dead_letters(fleet), [request]
    )
    with _ledgers.open_ledger(scope.ledger, fleet.target) as ledger:
        failed = _message_queues.retry(fleet, ledger, [letter.id])
    for error in failed.values():
        raise error
    return {"request": letter.id, "task": letter.task, "flow": letter.flow}
