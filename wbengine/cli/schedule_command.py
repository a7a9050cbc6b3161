"""`wbengine schedule`: flows that `wbengine serve` submits at given times."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import click

from wbengine import _streams, exceptions
from wbengine.cli import base, completions, errors, params, stores
from wbengine.cli import context as contexts
from wbengine.cli.lazy import Group, Lazy

if TYPE_CHECKING:
    from wbengine.schedules import Schedules

__all__ = ["add", "command", "declared", "ls", "pause", "resume", "rm", "run"]


def _here(name: str, text: str) -> Lazy:
    return Lazy(f"wbengine.cli.schedule_command:{name}", text)


_COMMANDS: Final = {
    "add": _here("add", "Keep a schedule."),
    "ls": _here("ls", "List schedules."),
    "pause": _here("pause", "Fire no more ticks."),
    "resume": _here("resume", "Go on with the next tick."),
    "run": _here("run", "Have a schedule fired once, now."),
    "rm": _here("rm", "Forget a schedule."),
}

command = Group(
    "schedule", lazy=_COMMANDS, help="Flows that `wbengine serve` submits at given times."
)

_named = click.argument("name", metavar="NAME", shell_complete=completions.schedules)


@contextlib.contextmanager
def _kept(context: contexts.Context, **options: bool) -> Iterator[Schedules]:
    """The schedules of the store.

    :raises Failed: it keeps none.
    """
    from wbengine.schedules import Schedules

    if stores.is_of_this_process(context.settings):
        raise errors.Failed(
            f"the store {context.settings.store} ends with this process", errors.USAGE
        )
    with context.backend(**options) as backend:
        yield Schedules(backend)


@base.command(
    "add",
    help="""Keep a schedule, for `wbengine serve` to submit its flow at given times.

    FACTORY is a function that makes the flow, or the flow itself; its input `scheduled_at` is the
    time that was meant.

    \b
    wbengine schedule add nightly shop:report --cron '30 2 * * MON-FRI' --time-zone Europe/Berlin
    wbengine schedule add sync shop:sync --every 5m --jitter 30 --overlap queue
    """,
)
@click.argument("name", metavar="NAME")
@click.argument("factory", metavar="MODULE:FACTORY")
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
@click.option("--inputs", type=params.INPUTS, default="{}", metavar="JSON|@FILE",
    help="Values that are there from the start.")  # fmt: skip
@click.option("--tag", "tags", type=params.TAG, multiple=True, metavar="KEY=VALUE",
    callback=params.tags_of,
    help="To find its flows by, besides schedule=NAME (repeatable).")  # fmt: skip
@click.option("--priority", default="NORMAL", metavar="PRIORITY",
    help="VERY_HIGH, HIGH, NORMAL (default), LOW or VERY_LOW.")  # fmt: skip
@click.option("--replace", is_flag=True, help="Where there is one of this name, change that.")
def add(
    context: contexts.Context,
    name: str,
    factory: str,
    every: float | None,
    replace: bool,
    **options: Any,
) -> None:
    from wbengine.schedules import Schedule

    try:
        schedule = Schedule(name=name, factory=factory, every=_whole(every), **options)
    except ValueError as error:
        raise click.UsageError(errors.line_of(error)) from error
    with _kept(context, upgrade=True, missing_ok=True) as kept:
        try:
            with _streams.aside():
                entry = kept.add(schedule, replace=replace)
        except exceptions.StorageFailure:
            raise
        except exceptions.Duplicate as error:
            line = f"{errors.line_of(error)}: --replace changes it"
            raise errors.Failed(line, errors.USAGE) from error
        except (Exception, SystemExit) as error:
            ends = "it ends the process " if isinstance(error, SystemExit) else ""
            line = f"{factory}: {ends}{errors.line_of(error)}"
            raise errors.Failed(line, errors.USAGE) from error
    if context.printer.as_json:
        context.printer.document("schedule-add/1", entry.to_dict())
    else:
        context.printer.note(f"{name} fires next at {_moment(entry.fires_at)}")


@base.command(
    "ls",
    help="""List schedules, by name: when each fires next, and what it fired last.

    \b
    wbengine schedule ls --json
    """,
)
def ls(context: contexts.Context) -> None:
    with _kept(context) as kept:
        entries = kept.all()
    printer = context.printer
    if printer.as_json:
        printer.document("schedule-ls/1", {"schedules": [entry.to_dict() for entry in entries]})
        return
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


@base.command(
    "pause",
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


@base.command(
    "resume",
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


@base.command(
    "run",
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
    if context.printer.as_json:
        context.printer.document("schedule-run/1", {"name": name, "uuid": uuid})
    else:
        context.printer.line(uuid)


@base.command(
    "rm",
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
        try:
            for option in ("every", "jitter"):
                if isinstance(told.get(option), str):
                    seconds = params.duration(told[option])
                    if seconds is None:
                        words = f"{option}={told[option]!r} is no duration such as 30 or 5m"
                        raise ValueError(words)
                    told[option] = _whole(seconds)
            found.append(Schedule.from_dict(name, told))
        except (ValueError, TypeError) as error:
            raise context.settings.failed("schedules", errors.line_of(error)) from error
    return found


def _whole(seconds: float | None) -> Any:
    """Whole seconds as such; what else there is is refused by who checks it."""
    return int(seconds) if seconds is not None and seconds == int(seconds) else seconds


def _moment(seconds: float | None) -> str | None:
    from wbengine.views import formatting

    return formatting.iso(seconds)
