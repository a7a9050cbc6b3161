"""`wbengine status`: show workers, their load, and the work that waits for conductors.

Scripts can wait for workers.
"""

from __future__ import annotations

from typing import Final

import click

from wbengine import exceptions
from wbengine._cli import base, errors, fleets
from wbengine._cli import context as contexts
from wbengine.persistence import _codes
from wbengine.views import _open_work

__all__ = ["command"]

_BLOCKED: Final = " (blocked: memory or disk space is low)"


@base.command(
    "status",
    help="""Show the broker, the workers and the work of conductors.

    Exits with 69 if fewer workers answer than --min-workers. Without --min-workers, one is enough,
    and none is required if a conductor (`wbengine serve`) runs.

    \b
    Example:
      wbengine status --min-workers 3 --timeout 60
    """,
)
@click.option("--min-workers", "least", type=click.IntRange(0, 100_000), metavar="N",
    help="Wait up to --timeout until N workers have"
    " answered.", show_default="1, without waiting")  # fmt: skip
def command(context: contexts.Context, least: int | None) -> None:
    from wbengine.fleet import _queues, _summary

    settings, printer = context.settings, context.printer
    min_workers = 1 if least is None else least
    with fleets.create(settings) as fleet:
        wait = fleets.wait_seconds(settings) if least is None else settings.timeout
        workers = fleet.workers(least=min_workers, wait=wait)
        content = _summary.summary(fleet, workers, _queues.list_queues(fleet))
    work = _read_work(context)
    content["conductors"] = None if work is None else work.to_dict()
    printer.document("status/1", content)
    printer.pairs(
        [
            ("broker", content["broker"] + (_BLOCKED if content["blocked"] else "")),
            ("exchange", content["exchange"]),
            ("workers", _counts(content["workers"], content["states"])),
            ("slots", f"{content['running']} of {content['slots']} busy"),
            ("topics", _counts(len(content["topics"]), content["topics"])),
            ("versions", ", ".join(sorted(content["versions"])) or None),
            ("requests waiting", content["waiting"]),
            ("conductors", _conductors(work)),
            ("not begun", None if work is None else work.text or "nothing"),
        ]
    )
    if least is None and work is not None and work.is_served:
        return
    if not workers and min_workers:
        raise fleets.no_worker_error(settings, fleet)
    if len(workers) < min_workers:
        raise errors.Failed(
            f"at least {min_workers} workers must answer within {wait:g} s, got {len(workers)}",
            errors.UNAVAILABLE,
        )


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
