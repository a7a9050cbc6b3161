"""`wbengine schedule`: manage the schedules by which `wbengine serve` submits flows."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from wbengine import exceptions
from wbengine._cli import (
    base,
    common_options,
    errors,
    params,
    standard_streams,
    store_access,
)
from wbengine._cli import context as contexts
from wbengine._text import durations
from wbengine.engines._flow_inputs import JsonInputs
from wbengine.views import _formatting

if TYPE_CHECKING:
    from wbengine.schedules import Schedules

__all__ = ["command", "declared"]

command = base.Group(
    "schedule",
    lazy={
        "backfill": base.Lazy(
            "schedule_backfill", "Submit flows for past times of a schedule that have no flow."
        )
    },
    subject="schedule",
    help="Manage schedules, which submit flows at given times.",
)


@contextlib.contextmanager
def _stored_schedules(context: contexts.Context, **options: bool) -> Iterator[Schedules]:
    """Open the schedules of the store.

    :raises Failed: if the store exists only in this process.
    """
    from wbengine.schedules import Schedules

    store_access.check_outlives(context.settings)
    with context.backend(**options) as backend:
        yield Schedules(backend)


@command.command(
    "add",
    help="""Add a schedule, with which `wbengine serve` submits a flow at given times.

    FACTORY is a flow, a workflow, or a function that builds a flow. The flow has the input
    `scheduled_at`, the planned time of the firing.

    \b
    Examples:
      wbengine schedule add nightly shop:report --cron '30 2 * * MON-FRI' --time-zone Europe/Berlin
      wbengine schedule add sync shop:sync --every 5m --jitter 30 --overlap queue
    """,
)
@click.argument("name", metavar="NAME")
@common_options.FACTORY
@click.option("--cron", metavar="FIELDS",
    help="Minute, hour, day, month and day of the week: '30 2 * * MON-FRI'.")  # fmt: skip
@click.option("--every", type=params.WAIT, metavar="DURATION",
    help="Interval instead of --cron, such as 90, 5m, 2h.")  # fmt: skip
@click.option("--time-zone", default="UTC", metavar="ZONE",
    help="Time zone of --cron, such as Europe/Berlin.")  # fmt: skip
@click.option("--jitter", type=params.DURATION, default="0", metavar="DURATION",
    help="Maximum random delay of each firing.")  # fmt: skip
@click.option("--catch-up", type=params.Choice(("skip", "one", "all")), default="one",
    help="Fire none of the missed times (skip), the latest one (one), or all of them"
    " (all).")  # fmt: skip
@click.option(
    "--overlap",
    type=params.Choice(("skip", "queue", "cancel", "allow")),
    default="skip",
    help="While the previous flow runs: skip the firing (skip), delay it (queue), cancel the"
    " previous"
    " flow (cancel), or fire (allow).",
)
@common_options.INPUTS
@common_options.tags(
    "Tag of the flows, in addition to schedule=NAME (repeatable).", params.TEXT_TAG
)
@common_options.PRIORITY
@click.option("--queue", default="default", show_default=True, metavar="NAME",
    help="Queue of the flows (`wbengine serve --queue`).")  # fmt: skip
@common_options.UNDO_UNTIL
@click.option("--replace", is_flag=True, help="Replace an existing schedule of this name.")
def add(
    context: contexts.Context,
    name: str,
    factory: str,
    every: float | None,
    inputs: dict[str, Any],
    replace: bool,
    **options: Any,
) -> None:
    from wbengine.schedules import Schedule

    options |= {"every": _whole_seconds(every), "inputs": JsonInputs(inputs)}
    try:
        schedule = Schedule(name=name, factory=factory, **options)
    except ValueError as error:
        raise click.UsageError(errors.line_of(error)) from error
    with (
        _stored_schedules(context, upgrade=True, missing_ok=True) as schedules,
        standard_streams.aside(),
        errors.running_user_code(factory),
    ):
        try:
            entry = schedules.add(schedule, replace=replace)
        except exceptions.Duplicate as error:
            line = f"{errors.line_of(error)}; to replace it, pass --replace"
            raise errors.Failed(line, errors.USAGE) from error
    context.printer.document("schedule-add/1", entry.to_dict())
    context.printer.hint(f"{name} fires next at {_format_time(entry.fires_at)}")


@command.command(
    "list",
    help="""List schedules with their next and latest firing.

    \b
    Example:
      wbengine schedule list --json
    """,
)
def ls(context: contexts.Context) -> None:
    with _stored_schedules(context) as schedules:
        entries = schedules.all()
    printer = context.printer
    printer.document("schedule-ls/1", {"schedules": [entry.to_dict() for entry in entries]})
    rows = [
        (
            entry.name,
            entry.schedule.times,
            entry.schedule.factory,
            "paused" if entry.paused else _format_time(entry.fires_at),
            _format_time(entry.last_tick),
            entry.last_flow,
            entry.trouble,
        )
        for entry in entries
    ]
    columns = ("NAME", "TIMES", "FLOW", "NEXT", "LATEST", "LATEST FLOW", "PROBLEM")
    printer.table(columns, rows, empty="No schedules found.")


def declared(context: contexts.Context) -> list[Any]:
    """Return the schedules that the settings declare.

    :raises Failed: if a schedule is invalid.
    """
    from wbengine.schedules import Schedule

    schedules = []
    for name, table in context.settings.schedules.items():
        values = dict(table)
        with context.settings.failing("schedules", ValueError, TypeError):
            for option in ("every", "jitter"):
                if isinstance(values.get(option), str):
                    seconds = durations.seconds(values[option])
                    if seconds is None:
                        words = (
                            f"{option} must be a duration such as 30 or 5m, got {values[option]!r}"
                        )
                        raise ValueError(words)
                    values[option] = _whole_seconds(seconds)
            schedules.append(Schedule.from_dict(name, values))
    return schedules


def _whole_seconds(seconds: float | None) -> Any:
    """Return a whole number of seconds as int. `Schedule` rejects fractions."""
    return int(seconds) if seconds is not None and seconds == int(seconds) else seconds


def _format_time(seconds: float | None) -> str | None:
    return _formatting.iso(seconds)
