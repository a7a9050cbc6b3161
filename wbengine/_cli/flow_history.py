"""`wbengine flow events` and `logs`: print the events of a flow and the log lines of its tasks."""

from __future__ import annotations

import click

from wbengine._cli import base, common_options
from wbengine._cli import context as contexts
from wbengine._text.terminal_text import visible
from wbengine.views import _formatting

__all__ = ["events", "logs"]


@base.command(
    "events",
    help="""Print the events of a flow in order.

    Events are state changes, attempts, lost workers and resent requests. With --json, each event is
    a line of JSON. `wbengine flow watch` also prints later events.

    \b
    Example:
      wbengine flow events 3f2a9c
    """,
)
@common_options.FLOW
def events(context: contexts.Context, flow: str) -> None:
    from wbengine.views import watcher

    history = watcher.events_of(context.flow_detail(flow), context.redactor)
    printer = context.printer
    for event in history:
        printer.event("flow-events/1", event.to_dict())
    rows = [
        (
            _formatting.iso(event.at),
            event.kind,
            event.name,
            event.state,
            str(_formatting.nth(event)) if _formatting.nth(event) else None,
            event.worker,
            event.error if event.lost_worker is None else f"worker {event.lost_worker} was lost",
        )
        for event in history
    ]
    columns = ("AT", "KIND", "NAME", "STATE", "ATTEMPT", "WORKER", "ERROR")
    printer.table(columns, rows, empty="No events yet.", right=("ATTEMPT",))


@base.command(
    "logs",
    help="""Print the log lines of the tasks and steps of a flow.

    With TASK, print only the log lines of the task or step with this name or uuid. A workflow
    includes its steps. With --json, each log line is a line of JSON.

    The store contains lines of level INFO and higher, and lower levels if the command that runs the
    tasks (flow run, serve, worker) has --log-level debug.

    \b
    Examples:
      wbengine flow logs 3f2a9c
      wbengine flow logs 3f2a9c charge --attempt 2
      wbengine flow logs 3f2a9c checkout/1.4-charge
    """,
)
@common_options.FLOW
@click.argument("task", required=False)
@click.option("--attempt", type=click.IntRange(1), metavar="N",
    help="Print only attempt N; executions and reversions both count.")  # fmt: skip
def logs(context: contexts.Context, flow: str, task: str | None, attempt: int | None) -> None:
    from wbengine.views import _logs as lines

    with context.flow(flow) as (connection, uuid):
        log_lines = lines.read(connection, uuid, task, attempt, redactor=context.redactor)
        level = connection.get_flow_details(uuid, lazy=True).log_level
    printer = context.printer
    for line in log_lines:
        printer.event("flow-logs/1", line.to_dict())
        name = line.task if line.item is None else f"{line.task}[{line.item}]"
        head = visible(f"{_formatting.iso(line.at)} {line.level} {name}")
        # Indented, so that later lines of a text cannot imitate log lines of another task.
        printer.lines(f"{head}: {line.text}".replace("\n", "\n    "))
    if not log_lines:
        printer.line(f"No log lines of level {level or 'INFO'} or higher.")
    if level is not None:
        printer.hint(
            f"the program that ran the flow excludes lines below {level}; to store them, call"
            " logging.getLogger().setLevel(logging.INFO) in it"
        )
    else:
        printer.guide(
            "level INFO and higher is stored; to store lower levels, pass --log-level debug to the"
            " command that runs the tasks"
        )
