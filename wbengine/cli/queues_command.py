"""`wbengine queues`: what waits, and emptying queues."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from wbengine.cli import asking, base, errors, fleets
from wbengine.cli import context as contexts
from wbengine.cli.lazy import Group, Lazy

if TYPE_CHECKING:
    from wbengine.views.queues import QueueView

__all__ = ["command", "ls", "purge"]

_STATES: Final = ("open", "claimed", "done")

command = Group(
    "queues",
    lazy={
        "ls": Lazy(f"{__name__}:ls", "List queues, or the requests that the ledger knows."),
        "purge": Lazy(f"{__name__}:purge", "Remove what waits in queues."),
    },
    help="Look at queues, and empty them.",
)


@base.command(
    "ls",
    help="""List the queues of the exchange; with --requests the requests that the ledger knows.

    A RabbitMQ does not tell which queues there are: those of workers that answer are listed, and
    those that are named.

    \b
    wbengine queues ls --requests --state claimed
    """,
)
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option("--requests", "--rows", "requests", is_flag=True,
    envvar="WBENGINE_QUEUES_LS_ROWS",
    help="List the requests that the ledger knows instead.")  # fmt: skip
@click.option("--state", type=click.Choice(_STATES), help="Only requests in this state.")
@click.option("--limit", type=click.IntRange(1, 1000), default=100, show_default=True,
    help="So many requests at most.")  # fmt: skip
@click.option("--after", metavar="CURSOR", help="Requests that follow a page before.")
def ls(
    context: contexts.Context,
    names: tuple[str, ...],
    requests: bool,
    state: str | None,
    limit: int,
    after: str | None,
) -> None:
    if requests:
        if names:
            raise click.UsageError("--requests are not those of a queue: leave out the names")
        _list_rows(context, state, limit, after)
    elif state or after:
        raise click.UsageError("--state and --after are of requests: say --requests")
    else:
        _list_queues(context, names)


def _list_queues(context: contexts.Context, names: tuple[str, ...]) -> None:
    from wbengine.views import queues

    settings, printer = context.settings, context.printer
    with fleets.opened(settings) as fleet:
        found = queues.look(fleet, names, wait=fleets.wait(settings))
        complete = queues.tells_all(fleet)
    if printer.as_json:
        content = {
            "exchange": settings.exchange,
            "complete": complete,
            "queues": [one.to_dict() for one in found],
        }
        printer.document("queues-ls/1", content)
        return
    rows = [(one.name, one.kind, one.messages, one.consumers, one.topic) for one in found]
    printer.table(
        ("NAME", "OF", "MESSAGES", "CONSUMERS", "TOPIC"),
        rows,
        right=("MESSAGES", "CONSUMERS"),
        empty=f"no queues on exchange {settings.exchange!r} of {fleet.target.shown}",
    )
    if not complete and not names:
        printer.note("queues of workers that do not answer are not shown: name them")


def _list_rows(context: contexts.Context, state: str | None, limit: int, after: str | None) -> None:
    from wbengine.views import formatting, ledgers

    settings, printer = context.settings, context.printer
    target = fleets.made(settings).target
    try:
        with ledgers.opened(settings.ledger, target) as ledger:
            if ledger is None:
                raise errors.Failed(
                    f"{target.shown} has no ledger of its own: name one with --ledger",
                    errors.USAGE,
                )
            page = ledgers.rows(ledger, limit, after, state)
    except (ValueError, ImportError) as error:
        raise settings.failed("ledger", errors.line_of(error)) from error
    if printer.as_json:
        content = {"rows": [row.to_dict() for row in page.rows], "after": page.after}
        printer.document("queues-rows/1", content)
        return
    rows = [
        (row.id, row.epoch, row.state, formatting.seconds(row.age), row.holder) for row in page.rows
    ]
    printer.table(
        ("REQUEST", "EPOCH", "STATE", "FOR", "WORKER"),
        rows,
        right=("EPOCH",),
        empty="no requests are under way",
    )
    if page.after is not None:
        printer.note(f"there are more: --after {page.after!r}")


@base.command(
    "purge",
    help="""Remove the requests that wait in queues.

    Nothing is lost: engines that wait for a request send it again as soon as there is a worker that
    could take it. So this is for what dead engines left. What is not to be run at all: cancel it.

    \b
    wbengine queues purge orders.3f2a --dry-run
    """,
)
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="All queues of requests that are known.")
@click.option("--dry-run", is_flag=True, help="Only tell what would be removed.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def purge(
    context: contexts.Context, names: tuple[str, ...], everything: bool, dry_run: bool, yes: bool
) -> None:
    from wbengine.views import queues

    if bool(names) == everything:
        raise click.UsageError("name queues, or say --all")
    settings = context.settings
    with fleets.opened(settings) as fleet:
        found = queues.look(fleet, names, wait=fleets.wait(settings))
        if everything:
            found = [one for one in found if one.kind == queues.REQUESTS]
        gone = {one.name: one.messages for one in found}
        if not dry_run and any(gone.values()):
            total = sum(gone.values())
            asking.confirm(context, f"remove {total} messages in {len(found)} queues", yes)
            gone = queues.purge(fleet, found)
    _tell_purged(context, found, gone, dry_run)


def _tell_purged(
    context: contexts.Context, found: list[QueueView], gone: dict[str, int], dry_run: bool
) -> None:
    printer = context.printer
    if printer.as_json:
        purged = [{"name": one.name, "messages": gone.get(one.name, 0)} for one in found]
        printer.document("queues-purge/1", {"dry_run": dry_run, "queues": purged})
        return
    words = "would be removed" if dry_run else "removed"
    printer.table(
        ("NAME", words.upper()),
        [(one.name, gone.get(one.name, 0)) for one in found],
        right=(words.upper(),),
        empty="there is no such queue",
    )
