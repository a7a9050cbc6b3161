"""`wbengine flow list`: list the flows of the store in pages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from wbengine import states
from wbengine._cli import (
    base,
    completions,
    errors,
    flow_selection,
    flow_tree,
    params,
    store_access,
)
from wbengine._cli import context as contexts
from wbengine.persistence import _codes, _listing
from wbengine.views import _formatting, _shown_states

if TYPE_CHECKING:
    from wbengine.views._flow_list import RowView

__all__ = ["command"]

NEWEST: Final = "newest"
OLDEST: Final = "oldest"

#: Number of characters of a uuid that tables on a terminal show. Commands accept such a beginning.
_UUID_CHARS: Final = 8
_MAX_SIGNALS: Final = 3
#: Displayed states of flows that wait for a conductor.
_WAITING: Final = (states.PENDING, _shown_states.REQUESTED)


@base.command(
    "list",
    help="""List flows.

    \b
    Examples:
      wbengine flow list --state FAILURE --state SUSPENDED --since 2d
      wbengine flow list --error 'card declined' --since 2d
      wbengine flow list --name order --tag team=billing --limit 500 --json
      wbengine flow list --tree --since 2d
    """,
)
@flow_selection.filters
@click.option("--engine", type=params.ENGINE_KIND, metavar="KIND",
    shell_complete=completions.engines,
    help="Only flows that this kind of engine ran last. Flows whose record contains no kind are"
    " serial.")  # fmt: skip
@click.option("--book", metavar="UUID", help="List only flows of this logbook.")
@click.option("--parent", metavar="UUID", help="List only the child flows of this flow.")
@click.option("--tree", is_flag=True,
    help="List flows that are no children, with their children below them: at most"
    f" {flow_tree.MAX_CHILDREN} of each flow.")  # fmt: skip
@click.option("--limit", type=click.IntRange(1, 100_000), default=50, metavar="N",
    help="Maximum number of flows.")  # fmt: skip
@click.option("--sort", type=params.Choice((NEWEST, OLDEST)), default=NEWEST,
    help="Order of the flows: newest or oldest first.")  # fmt: skip
@click.option("--after", metavar="CURSOR",
    help="Show the page after the one that ended with CURSOR.")  # fmt: skip
def command(
    context: contexts.Context,
    state_names: tuple[str, ...],
    sort: str,
    incident: str | None,
    tree: bool,
    **filters: Any,
) -> None:
    from wbengine.views import _flow_list

    with context.connection() as (backend, connection):
        try:
            page = _flow_list.page(
                connection,
                states=state_names or None,
                newest_first=sort == NEWEST,
                resent=incident is not None,
                redactor=context.redactor,
                roots=tree and filters["parent"] is None,
                **filters,
            )
            branches = (
                flow_tree.branches(connection, page.flows, context.redactor) if tree else None
            )
        except ValueError as error:
            raise click.UsageError(errors.line_of(error)) from error
        is_waiting = any(row.shown_state in _WAITING for row in page.flows)
        is_served = not is_waiting or _codes.is_served(connection.codes())
        exists = bool(page.flows) or store_access.store_exists(context.settings, backend)
    printer = context.printer
    empty = "No flows found." if exists else store_access.missing_message(context.settings)
    if printer.as_json and not exists:
        printer.note(empty)
    content = page.to_dict()
    listed = [("", row) for row in page.flows]
    if branches is not None:
        content["flows"] = [branch.to_dict() for branch in branches]
        listed = list(flow_tree.lines(branches))
    printer.document("flow-ls/1", content)
    flows = [row for _, row in listed]
    queued = any(row.queue not in (None, _listing.UNRECORDED_QUEUE) for row in flows)
    tagged = any(row.tags for row in flows)
    versioned = any(row.code for row in flows)
    waiting = any(row.waits_for or row.will_wait_for or row.paused_by for row in flows)
    rows = [
        (
            row.uuid[:_UUID_CHARS] if printer.is_terminal else row.uuid,
            f"{indent}{row.name}",
            row.shown_state,
            _done(row),
            _format_time(row.created, printer.is_terminal),
            row.owner_short if printer.is_terminal else row.owner,
            *([row.queue] if queued else []),
            *([row.code] if versioned else []),
            *([_waits(row)] if waiting else []),
            *([" ".join(f"{key}={text}" for key, text in row.tag_texts.items())] if tagged else []),
            row.error,
        )
        for indent, row in listed
    ]
    optional = (("QUEUE", queued), ("CODE", versioned), ("WAITS FOR", waiting), ("TAGS", tagged))
    extra_columns = [name for name, is_shown in optional if is_shown]
    columns = ("UUID", "NAME", "STATE", "TASKS", "CREATED", "OWNER", *extra_columns, "ERROR")
    folded = ("NAME", *extra_columns, "ERROR")
    printer.table(columns, rows, empty=empty, right=("TASKS",), folded=folded)
    if not is_served:
        printer.hint(f"{_codes.NO_CONDUCTOR}: the next one runs flows in PENDING and REQUESTED")
    for branch in flow_tree.shortened(branches or ()):
        printer.hint(
            f"{branch.omitted:,} more children of {branch.row.uuid}: wbengine flow list --parent"
            f" {branch.row.uuid}"
        )
    if page.after is not None:
        printer.hint(f"for more flows: --after '{page.after}'")


def _done(row: RowView) -> str:
    """Return the number of complete tasks and steps, such as `1/3, 5/7 steps`."""
    parts = [(row.counts, "")] if row.shown_counts is row.counts else []
    parts += [(row.step_counts, " steps")] if row.step_counts else []
    texts = []
    for counts, noun in parts:
        complete = counts.get(states.SUCCESS, 0) + counts.get(states.IGNORE, 0)
        texts.append(f"{complete}/{sum(counts.values())}{noun}")
    return ", ".join(texts)


def _waits(row: RowView) -> str | None:
    texts, waits = [], row.waits_for or row.will_wait_for
    for wait in waits[:_MAX_SIGNALS]:
        until = "" if wait.until is None else f", until {_formatting.clock(wait.until)}"
        texts.append(f"{wait.label or wait.task} (since {_formatting.clock(wait.since)}{until})")
    omitted = len(waits) - len(texts)
    texts += [f"{omitted} more"] if omitted else []
    return ", ".join([*texts, *(f"paused: {pause}" for pause in row.paused_by)]) or None


def _format_time(seconds: float | None, short: bool) -> str | None:
    return _formatting.clock(seconds) if short and seconds is not None else _formatting.iso(seconds)
