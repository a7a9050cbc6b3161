"""`wbengine schedule`: flows that `wbengine serve` submits at given times."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from wbengine import _streams, exceptions
from wbengine.cli import base, completions, errors, options, params, stores
from wbengine.cli import context as contexts

if TYPE_CHECKING:
    from wbengine.schedules import Schedules

__all__ = ["command", "declared"]

command = base.Group("schedule", help="Flows that `wbengine serve` submits at given times.")

_named = click.argument("name", metavar="NAME", shell_complete=completions.schedules)


@contextlib.contextmanager
def _kept(context: contexts.Context, **how: bool) -> Iterator[Schedules]:
    """The schedules of the store.

    :raises Failed: it keeps none.
    """
    from wbengine.schedules import Schedules

    stores.check_outlives(context.settings)
    with context.backend(**how) as backend:
        yield Schedules(backend)


@command.command(
    "add",
    short_help="Keep a schedule.",
    help="""Keep a schedule, for `wbengine serve` to submit its flow at given times.

    FACTORY is a function that makes the flow, or the flow itself; its input `scheduled_at` is the
    time that was meant.

    \b
    wbengine schedule add nightly shop:report --cron '30 2 * * MON-FRI' --time-zone Europe/Berlin
    wbengine schedule add sync shop:sync --every 5m --jitter 30 --overlap queue
    """,
)
@click.argument("name", metavar="NAME")
@options.FACTORY
@click.option("--cron", metavar="FIELDS",
    help="Minute, hour, day, month and day of the week: '30 2 * * MON-FRI'.")  # fmt: skip
@click.option("--every", type=params.WAIT, metavar="DURATION",
    help="Instead of it, an interval, such as 90, 5m, 2h.")  # fmt: skip
@click.option("--time-zone", default="UTC", metavar="ZONE",
    help="Of --cron, such as Europe/Berlin (UTC).")  # fmt: skip
@click.option("--jitter", type=params.DURATION, default="0", metavar="DURATION",
    help="Each firing is up to so much later (0).")  # fmt: skip
@click.option("--catch-up", type=click.Choice(("skip", "one", "all")), default="one",
    help="Of ticks that were missed fire none, the latest (default), or all.")  # fmt: skip
@click.option(
    "--overlap",
    type=click.Choice(("skip", "queue", "cancel", "allow")),
    default="skip",
    help="While the flow before runs: skip the tick (default), wait, cancel that flow, or fire.",
)
@options.INPUTS
@options.tags("To find its flows by, besides schedule=NAME (repeatable).")
@options.PRIORITY
@click.option("--replace", is_flag=True, help="Where there is one of this name, change that.")
def add(
    context: contexts.Context,
    name: str,
    factory: str,
    every: float | None,
    replace: bool,
    **given: Any,
) -> None:
    from wbengine.schedules import Schedule

    try:
        schedule = Schedule(name=name, factory=factory, every=_whole(every), **given)
    except ValueError as error:
        raise click.UsageError(errors.line_of(error)) from error
    with (
        _kept(context, upgrade=True, missing_ok=True) as kept,
        _streams.aside(),
        errors.making(factory),
    ):
        try:
            entry = kept.add(schedule, replace=replace)
        except exceptions.Duplicate as error:
            line = f"{errors.line_of(error)}: --replace changes it"
            raise errors.Failed(line, errors.USAGE) from error
    context.printer.document("schedule-add/1", entry.to_dict())
    context.printer.hint(f"{name} fires next at {_moment(entry.fires_at)}")


@command.command(
    "ls",
    short_help="List schedules.",
    help="""List schedules, by name: when each fires next, and what it fired last.

    \b
    wbengine schedule ls --json
    """,
)
def ls(context: contexts.Context) -> None:
    with _kept(context) as kept:
        entries = kept.all()
    printer = context.printer
    printer.document("schedule-ls/1", {"schedules": [entry.to_dict() for entry in entries]})
    rows = [
        (
            entry.name,
            entry.schedule.times,
            entry.schedule.factory,
            "paused" if entry.paused else _moment(entry.fires_at),
            _moment(entry.last_tick),
            entry.last_flow,
            entry.trouble,
        )
        for entry in entries
    ]
    columns = ("NAME", "TIMES", "FLOW", "NEXT", "LAST", "LAST FLOW", "TROUBLE")
    printer.table(columns, rows, empty="There are no schedules.")


@command.command(
    "pause",
    short_help="Fire no more ticks.",
    help="""Fire no more ticks of a schedule, until it is resumed; those that come meanwhile are
    not caught up.  Flows that were fired go on.

    \b
    wbengine schedule pause nightly
    """,
)
@_named
def pause(context: contexts.Context, name: str) -> None:
    with _kept(context) as kept:
        kept.pause(name)
    context.printer.note(f"{name} is paused")


@command.command(
    "resume",
    short_help="Go on with the next tick.",
    help="""Go on with the next tick of a schedule that was paused.

    \b
    wbengine schedule resume nightly
    """,
)
@_named
def resume(context: contexts.Context, name: str) -> None:
    with _kept(context) as kept:
        kept.resume(name)
        entry = kept.get(name)
    context.printer.note(f"{name} fires next at {_moment(entry.fires_at)}")


@command.command(
    "run",
    short_help="Have a schedule fired once, now.",
    help="""Have a schedule fired once, now, by a `wbengine serve`, and print the uuid of the flow.
    Its ticks stay as they are, and it may be paused.

    \b
    wbengine schedule run nightly
    """,
)
@_named
def run(context: contexts.Context, name: str) -> None:
    with _kept(context) as kept:
        uuid = kept.run(name)
    context.printer.document("schedule-run/1", {"name": name, "uuid": uuid})
    context.printer.line(uuid)


@command.command(
    "rm",
    short_help="Forget a schedule.",
    help="""Forget a schedule; flows that it fired stay.

    \b
    wbengine schedule rm nightly
    """,
)
@_named
def rm(context: contexts.Context, name: str) -> None:
    with _kept(context) as kept:
        kept.remove(name)
    context.printer.note(f"{name} is forgotten")


def declared(context: contexts.Context) -> list[Any]:
    """The schedules that the settings tell of.

    :raises Failed: one makes no sense.
    """
    from wbengine.schedules import Schedule

    found = []
    for name, table in context.settings.schedules.items():
        told = dict(table)
        with context.settings.failing("schedules", ValueError, TypeError):
            for option in ("every", "jitter"):
                if isinstance(told.get(option), str):
                    seconds = params.duration(told[option])
                    if seconds is None:
                        words = f"{option}={told[option]!r} is no duration such as 30 or 5m"
                        raise ValueError(words)
                    told[option] = _whole(seconds)
            found.append(Schedule.from_dict(name, told))
    return found


def _whole(seconds: float | None) -> Any:
    """Whole seconds as such; what else there is is refused by who checks it."""
    return int(seconds) if seconds is not None and seconds == int(seconds) else seconds


def _moment(seconds: float | None) -> str | None:
    from wbengine.views import formatting

    return formatting.iso(seconds)
