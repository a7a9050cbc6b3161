"""`wbengine flow ls`: the flows of the store, page by page."""

from __future__ import annotations

from typing import Any, Final

import click

from wbengine import states
from wbengine.cli import base, errors, options, params, stores
from wbengine.cli import context as contexts

__all__ = ["command"]

NEWEST: Final = "newest"
OLDEST: Final = "oldest"

#: So much of a uuid is told to people: it is enough for commands.
_SHORT: Final = 8


@base.command(
    "ls",
    help="""List flows, the newest first.

    \b
    wbengine flow ls --state FAILURE --state SUSPENDED --since 2d
    wbengine flow ls --name order --tag team=billing --limit 500 --json
    """,
)
@click.option("--state", "wanted", multiple=True, metavar="STATE",
    type=click.Choice(states.FLOW_STATES, case_sensitive=False),
    help=f"Only those in this state (repeatable): {', '.join(states.FLOW_STATES)}.")  # fmt: skip
@click.option("--name", metavar="TEXT", help="Only those with this in their name.")
@options.tags("Only those with this tag (repeatable: with all of them).")
@click.option("--since", type=params.MOMENT, metavar="WHEN",
    help="Only those made since then: 2h, 3d, 2026-11-21T08:00 (UTC).")  # fmt: skip
@click.option("--book", metavar="UUID", help="Only those of this log book.")
@click.option("--limit", type=click.IntRange(1, 100_000), default=50, metavar="N",
    help="So many at most (50).")  # fmt: skip
@click.option("--sort", type=click.Choice((NEWEST, OLDEST)), default=NEWEST,
    help="Which come first (newest).")  # fmt: skip
@click.option("--after", metavar="PLACE", help="Go on where another page ended.")
def command(context: contexts.Context, wanted: tuple[str, ...], sort: str, **given: Any) -> None:
    from wbengine.views import listing

    with context.connection() as (backend, connection):
        try:
            page = listing.page(
                connection,
                states=wanted or None,
                newest_first=sort == NEWEST,
                redactor=context.redactor,
                **given,
            )
        except ValueError as error:
            raise click.UsageError(errors.line_of(error)) from error
        made = bool(page.flows) or stores.is_made(context.settings, backend)
    printer = context.printer
    empty = "There are no such flows." if made else stores.not_made(context.settings)
    if printer.as_json and not made:
        printer.note(empty)
    printer.document("flow-ls/1", page.to_dict())
    tagged = any(row.tags for row in page.flows)
    rows = [
        (
            row.uuid[:_SHORT] if printer.is_terminal else row.uuid,
            row.name,
            row.shown_state,
            f"{row.counts.get(states.SUCCESS, 0) + row.counts.get(states.IGNORE, 0)}/{row.total}",
            _moment(row.created, printer.is_terminal),
            row.owner,
            *([" ".join(f"{key}={value}" for key, value in row.tags.items())] if tagged else []),
            row.error,
        )
        for row in page.flows
    ]
    tags_column = ["TAGS"] if tagged else []
    columns = ("UUID", "NAME", "STATE", "TASKS", "CREATED", "RUN BY", *tags_column, "ERROR")
    printer.table(columns, rows, empty=empty, right=("TASKS",))
    if page.after is not None:
        printer.hint(f"there are more: --after '{page.after}'")


def _moment(seconds: float | None, short: bool) -> str | None:
    from wbengine.views import formatting

    return formatting.clock(seconds) if short and seconds is not None else formatting.iso(seconds)
