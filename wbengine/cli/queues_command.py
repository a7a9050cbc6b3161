"""`wbengine queues`: what waits, and emptying queues."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from wbengine.cli import asking, base, errors, fleets, options, output
from wbengine.cli import context as contexts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from wbengine.views.queues import DeadLetterView

__all__ = ["command"]

_STATES: Final = ("open", "claimed", "done")

command = base.Group("queues", help="Look at queues, and empty them.")


@command.command(
    "ls",
    short_help="List queues, or the requests that the ledger knows.",
    help="""List the queues of the exchange; with --requests the requests that the ledger knows,
    with --dead those that were put aside because all workers that they were sent to were lost.

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
@click.option("--dead", is_flag=True, help="List the requests that were put aside instead.")
@click.option("--state", type=click.Choice(_STATES), help="Only requests in this state.")
@click.option("--limit", type=click.IntRange(1, 1000), default=100, show_default=True,
    help="So many requests at most.")  # fmt: skip
@click.option("--after", metavar="CURSOR", help="Requests that follow a page before.")
def ls(
    context: contexts.Context,
    names: tuple[str, ...],
    requests: bool,
    dead: bool,
    state: str | None,
    limit: int,
    after: str | None,
) -> None:
    if requests and dead:
        raise click.UsageError("--requests and --dead are two lists: say one of them")
    if names and (requests or dead):
        flag = "--requests" if requests else "--dead"
        raise click.UsageError(f"{flag} are not those of a queue: leave out the names")
    if dead and (state or after):
        raise click.UsageError("--state and --after are of --requests")
    if dead:
        _list_dead(context, limit)
    elif requests:
        _list_rows(context, state, limit, after)
    elif state or after:
        raise click.UsageError("--state and --after are of requests: say --requests")
    else:
        _list_queues(context, names)


def _list_queues(context: contexts.Context, names: tuple[str, ...]) -> None:
    from wbengine.views import queues

    settings, printer = context.settings, context.printer
    with fleets.made(settings) as fleet:
        found = queues.look(fleet, names, wait=fleets.wait(settings))
        complete = queues.tells_all(fleet)
    content = {
        "exchange": settings.exchange,
        "complete": complete,
        "queues": [one.to_dict() for one in found],
    }
    printer.document("queues-ls/1", content)
    rows = [(one.name, one.kind, one.messages, one.consumers, one.topic) for one in found]
    printer.table(
        ("NAME", "OF", "MESSAGES", "CONSUMERS", "TOPIC"),
        rows,
        right=("MESSAGES", "CONSUMERS"),
        empty=f"no queues on exchange {settings.exchange!r} of {fleet.target.shown}",
    )
    if not complete and not names:
        printer.hint("queues of workers that do not answer are not shown: name them")


def _list_rows(context: contexts.Context, state: str | None, limit: int, after: str | None) -> None:
    from wbengine.views import formatting, ledgers

    settings, printer = context.settings, context.printer
    target = fleets.made(settings).target
    with (
        settings.failing("ledger", ValueError, ImportError),
        ledgers.opened(settings.ledger, target) as ledger,
    ):
        if ledger is None:
            raise errors.Failed(
                f"{target.shown} has no ledger of its own: name one with --ledger", errors.USAGE
            )
        page = ledgers.rows(ledger, limit, after, state)
    content = {"rows": [row.to_dict() for row in page.rows], "after": page.after}
    printer.document("queues-rows/1", content)
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
        printer.hint(f"there are more: --after {page.after!r}")


def _list_dead(context: contexts.Context, limit: int) -> None:
    from wbengine.views import queues

    found = queues.dead(fleets.made(context.settings))
    _tell_dead(context, found[:limit], "queues-dead/1", {"more": len(found) > limit})
    if len(found) > limit:
        context.printer.hint(f"there are more: --limit {min(len(found), 1000)}")


def _tell_dead(
    context: contexts.Context,
    found: Sequence[DeadLetterView],
    document: str,
    more: Mapping[str, object],
) -> None:
    from wbengine.views import formatting

    printer = context.printer
    printer.document(document, {**more, "requests": [one.to_dict() for one in found]})
    printer.table(
        ("REQUEST", "TASK", "ACTION", "QUEUE", "FOR", "WHY"),
        [
            (one.id, one.task, one.action, one.queue, formatting.seconds(one.age), one.why)
            for one in found
        ],
        empty="no requests were put aside",
    )


@command.command(
    "retry",
    short_help="Send requests again that were put aside.",
    help="""Send requests again that were put aside (queues ls --dead), once what killed or froze
    their workers is mended, to workers that run their tasks now. One that cannot be sent is kept.

    Their flows went on without them, and learn nothing of what comes of it: to run a flow again
    that failed, there is "wbengine flow retry".

    \b
    wbengine queues retry 6f1e0c --yes
    """,
)
@click.argument("ids", metavar="[REQUEST]...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="All that were put aside.")
@options.dry_run("what would be sent")
@options.YES
def retry(
    context: contexts.Context, ids: tuple[str, ...], everything: bool, dry_run: bool, yes: bool
) -> None:
    from wbengine.views import ledgers, queues

    if bool(ids) == everything:
        raise click.UsageError("name requests, or say --all")
    settings, printer = context.settings, context.printer
    failed: dict[str, Exception] = {}
    with fleets.made(settings) as fleet:
        found = queues.named(queues.dead(fleet), ids)
        if found and not dry_run:
            asking.confirm(context, f"send {len(found)} requests again", yes)
            with (
                settings.failing("ledger", ValueError, ImportError),
                ledgers.opened(settings.ledger, fleet.target) as ledger,
            ):
                wanted = [one.id for one in found]
                failed = queues.retry(fleet, ledger, wanted, wait=fleets.wait(settings))
    sent = [one for one in found if one.id not in failed]
    lines = {id: errors.line_of(error) for id, error in failed.items()}
    if sent or not failed or printer.as_json:
        untold = [{"id": id, "why": line} for id, line in lines.items()]
        _tell_dead(context, sent, "queues-retry/1", {"dry_run": dry_run, "failed": untold})
    if failed:
        raise _not_sent(context, lines, len(found), errors.code_of(next(iter(failed.values()))))


def _not_sent(
    context: contexts.Context, lines: Mapping[str, str], count: int, code: int
) -> errors.Failed:
    """What to raise where some of `count` letters were not sent; more than one are told here."""
    if len(lines) == 1:
        return errors.Failed(next(iter(lines.values())), code)
    if not context.printer.as_json:
        for line in lines.values():
            output.say(line)
    return errors.Failed(f"{len(lines)} of {count} requests were not sent again", code)


@command.command(
    "purge",
    short_help="Remove what waits in queues.",
    help="""Remove the requests that wait in queues.

    Nothing is lost: engines that wait for a request send it again as soon as there is a worker that
    could take it. So this is for what dead engines left. What is not to be run at all: cancel it.
    Requests that were put aside (queues ls --dead) nobody sends again: they are gone.

    \b
    wbengine queues purge orders.3f2a --dry-run
    """,
)
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="All queues of requests that are known.")
@options.dry_run("what would be removed")
@options.YES
def purge(
    context: contexts.Context, names: tuple[str, ...], everything: bool, dry_run: bool, yes: bool
) -> None:
    from wbengine.views import queues

    if bool(names) == everything:
        raise click.UsageError("name queues, or say --all")
    settings = context.settings
    with fleets.made(settings) as fleet:
        found = queues.look(fleet, names, wait=fleets.wait(settings))
        if everything:
            found = [one for one in found if one.kind == queues.REQUESTS]
        gone = {one.name: one.messages for one in found}
        if not dry_run and any(gone.values()):
            total = sum(gone.values())
            asking.confirm(context, f"remove {total} messages in {len(found)} queues", yes)
            gone = queues.purge(fleet, found)
    purged = [{"name": one.name, "messages": gone.get(one.name, 0)} for one in found]
    context.printer.document("queues-purge/1", {"dry_run": dry_run, "queues": purged})
    count = "WOULD BE REMOVED" if dry_run else "REMOVED"
    rows = [tuple(each.values()) for each in purged]
    context.printer.table(("NAME", count), rows, right=(count,), empty="there is no such queue")
