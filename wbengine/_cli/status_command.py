"""`wbengine status`: show workers, their load, and the work that waits for conductors.

Scripts can wait for workers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from wbengine import exceptions
from wbengine._cli import base, errors, fleets
from wbengine._cli import context as contexts
from wbengine.persistence import _codes
from wbengine.views import _open_work

if TYPE_CHECKING:
    from wbengine._cli.config import Settings

__all__ = ["command"]

_BLOCKED: Final = " (blocked: memory or disk space is low)"


@base.command(
    "status",
    help="""Show the broker, the workers and the work of conductors.

    Exits with 69 if fewer workers answer than --min-workers. Without --min-workers, one is enough,
    and none is required if a conductor (`wbengine serve`) runs, or if the settings contain no
    broker and the store can be read.

    \b
    Example:
      wbengine status --min-workers 3 --timeout 60
    """,
)
@click.option("--min-workers", "least", type=click.IntRange(0, 100_000), metavar="N",
    help="Wait up to --timeout until N workers have"
    " answered.", show_default="1, without waiting")  # fmt: skip
def command(context: contexts.Context, least: int | None) -> None:
    settings, printer = context.settings, context.printer
    has_broker = settings.url is not None or settings.transport is not None
    load: dict[str, Any]
    try:
        load, problem = _read_load(settings, least)
    except exceptions.TransportFailure as error:
        if has_broker or least is not None:
            raise
        load, problem = {"broker_error": errors.line_of(error)}, None
    work = _read_work(context)
    printer.document("status/1", {**load, "conductors": None if work is None else work.to_dict()})
    printer.pairs(
        [
            *_load_rows(load),
            ("conductors", _conductors(work)),
            ("not begun", None if work is None else work.text or "nothing"),
        ]
    )
    if least is None and work is not None and (work.is_served or not has_broker):
        return
    if problem is not None:
        raise problem


def _read_load(
    settings: Settings, least: int | None
) -> tuple[dict[str, Any], errors.Failed | None]:
    """Return the load of the workers, and the error if there are too few of them.

    :raises TransportFailure: if the broker cannot be reached.
    """
    from wbengine.fleet import _message_queues, _summary

    min_workers = 1 if least is None else least
    with fleets.create(settings) as fleet:
        wait = fleets.wait_seconds(settings) if least is None else settings.timeout
        workers = fleet.workers(least=min_workers, wait=wait)
        content = _summary.summary(fleet, workers, _message_queues.list_queues(fleet))
    problem = None
    if not workers and min_workers:
        problem = fleets.no_worker_error(settings, fleet)
    elif len(workers) < min_workers:
        problem = errors.Failed(
            f"at least {min_workers} workers must answer within {wait:g} s, got {len(workers)}",
            errors.UNAVAILABLE,
        )
    return {**content, "broker_error": None}, problem


def _load_rows(load: dict[str, Any]) -> list[tuple[str, Any]]:
    if load["broker_error"] is not None:
        return [("broker", load["broker_error"])]
    return [
        ("broker", load["broker"] + (_BLOCKED if load["blocked"] else "")),
        ("exchange", load["exchange"]),
        ("workers", _counts(load["workers"], load["states"])),
        ("slots", f"{load['running']} of {load['slots']} busy"),
        ("topics", _counts(len(load["topics"]), load["topics"])),
        ("versions", ", ".join(sorted(load["versions"])) or None),
        ("requests waiting", load["waiting"]),
    ]


def _read_work(context: contexts.Context) -> _open_work.OpenWork | None:
    """Return the work that waits for conductors; None without a store that can be read."""
    try:
        with context.connection() as (_, connection):
            return _open_work.read(connection)
    except errors.Failed:  # The store does not exist. Workers need none.
        return None
    except exceptions.StorageFailure as error:
        context.printer.note(f"cannot read the store: {errors.line_of(error)}")
        return None


def _conductors(work: _open_work.OpenWork | None) -> str | None:
    if work is None:
        return None
    return "running" if work.is_served else _codes.NO_CONDUCTOR


def _counts(total: int, parts: dict[str, int]) -> str:
    details = ", ".join(f"{count} {name}" for name, count in sorted(parts.items()))
    return f"{total} ({details})" if details else str(total)
