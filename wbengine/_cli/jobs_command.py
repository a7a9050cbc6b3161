"""`wbengine jobs`: list the queues of submitted flows, and pause them."""

from __future__ import annotations

import click

from wbengine._cli import base, errors
from wbengine._cli import context as contexts
from wbengine.jobs import _queue_access
from wbengine.views import _formatting

__all__ = ["command"]

command = base.Group(
    "jobs",
    subject="jobs",
    help="List the queues of submitted flows with their keys, and pause them.",
    default="list",
)


@command.command(
    "list",
    help="""List the queues of submitted flows.

    Conductors (`wbengine serve --queue`) take flows from these queues. Print the numbers of flows
    that can be taken now (WAITING), that wait for a time, a signal, a permit or other code
    (DELAYED) and that conductors run (RUNNING), the number of fair keys, the age of the oldest
    waiting flow, and whether conductors serve the queue. `wbengine queues` lists the queues of
    requests to workers.

    \b
    Example:
      wbengine jobs list --json
    """,
)
def ls(context: contexts.Context) -> None:
    with context.backend() as backend, errors.failing(errors.USAGE, ValueError):
        with _queue_access.opened(backend, context.settings.board) as opened:
            queues = opened.all()
        with backend.get_connection() as connection:
            now = connection.now()
    printer = context.printer
    printer.document("jobs/1", {"queues": [queue.to_dict() for queue in queues]})
    rows = [
        (
            queue.name,
            queue.waiting,
            queue.delayed,
            queue.running,
            queue.keys,
            None if queue.oldest is None else _formatting.seconds(now - queue.oldest),
            "yes" if queue.is_served else "no",
            _formatting.iso(queue.paused_at),
            queue.paused_by,
            queue.reason,
        )
        for queue in queues
    ]
    columns = (
        *("QUEUE", "WAITING", "DELAYED", "RUNNING", "KEYS", "OLDEST", "SERVED"),
        *("PAUSED", "BY", "REASON"),
    )
    printer.table(columns, rows, empty="There are no queues.", right=columns[1:6])


@command.command(
    "keys",
    help="""List the fair keys of the flows in a queue, those with most waiting flows first.

    \b
    Example:
      wbengine jobs keys default --limit 20
    """,
)
@click.argument("queue", metavar="NAME")
@click.option("--limit", type=click.IntRange(1, 1000), default=100, show_default=True, metavar="N",
    help="Maximum number of keys.")  # fmt: skip
def keys(context: contexts.Context, queue: str, limit: int) -> None:
    with context.backend() as backend, errors.failing(errors.USAGE, ValueError):
        with _queue_access.opened(backend, context.settings.board) as opened:
            found = opened.keys(queue, limit)
        with backend.get_connection() as connection:
            now = connection.now()
    printer = context.printer
    printer.document("job-keys/1", {"queue": queue, "keys": [key.to_dict() for key in found]})
    rows = [
        (
            key.key or "(none)",
            key.waiting,
            key.delayed,
            key.running,
            None if key.oldest is None else _formatting.seconds(now - key.oldest),
        )
        for key in found
    ]
    columns = ("KEY", "WAITING", "DELAYED", "RUNNING", "OLDEST")
    printer.table(columns, rows, empty=f"Queue {queue} contains no flows.", right=columns[1:])
