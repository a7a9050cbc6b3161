"""`wbengine queues`: list and purge queues, resend dead letters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from wbengine import exceptions
from wbengine._cli import base, common_options, confirmation, errors, fleets, output, params
from wbengine._cli import context as contexts
from wbengine.views import _formatting

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from wbengine.fleet._message_queues import DeadLetterView
    from wbengine.persistence._listing import Backlog

__all__ = ["command"]

_STATES: Final = ("open", "claimed", "done")

command = base.Group("queues", help="List and purge queues; list and resend requests.")


@command.command(
    "list",
    help="""List queues, requests of the ledger, or dead letters.

    Without an option, print the number of flows that no conductor has started, and list the queues
    of the exchange. Queues of ended engines and workers are one line. With --requests, list the
    requests in the ledger. With --dead, list the dead letters: requests for which every worker was
    lost.

    RabbitMQ does not list queues. There, the command lists the queues of workers that answer and
    the queues that NAME selects.

    \b
    Example:
      wbengine queues list --requests --state claimed
    """,
)
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option("--requests", is_flag=True, help="List the requests in the ledger.")
@click.option("--dead", is_flag=True, help="List the dead letters.")
@click.option("--state", type=params.Choice(_STATES), help="List only requests in this state.")
@click.option("--limit", type=click.IntRange(1, 1000), default=100, metavar="N",
    help="Maximum number of requests.")  # fmt: skip
@click.option("--after", metavar="CURSOR",
    help="Show the page after the one that ended with CURSOR.")  # fmt: skip
@click.option("--worker", metavar="NAME", help="List only requests that this worker claimed.")
@click.option("--task", metavar="NAME",
    help="List only requests of this task. Workers report their running tasks.")  # fmt: skip
@click.option("--flow", metavar="ID", help="List only dead letters of this flow.")
@click.option("--older-than", type=params.WAIT, metavar="DURATION",
    help="List only requests of this age, such as 90, 5m, 2h.")  # fmt: skip
def ls(
    context: contexts.Context,
    names: tuple[str, ...],
    requests: bool,
    dead: bool,
    state: str | None,
    limit: int,
    after: str | None,
    **filters: Any,
) -> None:
    if requests and dead:
        raise click.UsageError("at most one of --requests and --dead can be used")
    if names and (requests or dead):
        flag = "--requests" if requests else "--dead"
        raise click.UsageError(f"{flag} cannot be used with NAME")
    for name, given in {"state": state, "after": after, "worker": filters["worker"]}.items():
        if given and not requests:
            raise click.UsageError(f"--{name} can be used only with --requests")
    if filters["flow"] and not dead:
        raise click.UsageError("--flow can be used only with --dead")
    chosen = {name: value for name, value in filters.items() if value is not None}
    if dead:
        _list_dead(context, limit, chosen)
    elif requests:
        _list_rows(context, state, limit, after, chosen)
    elif chosen:
        raise click.UsageError("--task and --older-than can be used only with --requests or --dead")
    else:
        _list_queues(context, names)


def _list_queues(context: contexts.Context, names: tuple[str, ...]) -> None:
    from wbengine.fleet import _message_queues

    settings, printer = context.settings, context.printer
    with fleets.create(settings) as fleet:
        queue_views = _message_queues.list_queues(fleet, names, wait=fleets.wait_seconds(settings))
        complete = _message_queues.can_list(fleet)
    backlog = _backlog(context)
    content = {
        "backlog": None
        if backlog is None
        else {"flows": backlog.flows, "oldest": _formatting.iso(backlog.oldest)},
        "exchange": settings.exchange,
        "complete": complete,
        "queues": [view.to_dict() for view in queue_views],
    }
    printer.document("queues-ls/1", content)
    if backlog is not None and not names:
        printer.line(f"Backlog: {_message_queues.describe_backlog(backlog)}")
    shown, folded = (queue_views, None) if names else _message_queues.fold(queue_views)
    rows = [(view.name, view.kind, view.messages, view.consumers, view.topic) for view in shown]
    printer.table(
        ("NAME", "KIND", "MESSAGES", "CONSUMERS", "TOPIC"),
        rows,
        right=("MESSAGES", "CONSUMERS"),
        empty=folded
        or f"No queues found on exchange {settings.exchange!r} of {fleet.target.shown}.",
    )
    if folded is not None and shown:
        printer.hint(folded)
    if not complete and not names:
        printer.hint("queues of workers that did not answer are missing; to see one, pass its name")


def _backlog(context: contexts.Context) -> Backlog | None:
    """Return the flows that no conductor has started; None if the store cannot be read."""
    try:
        with context.connection() as (_, connection):
            return connection.backlog()
    except (errors.Failed, exceptions.StorageFailure):
        return None


def _list_rows(
    context: contexts.Context,
    state: str | None,
    limit: int,
    after: str | None,
    filters: Mapping[str, Any],
) -> None:
    from wbengine.fleet import _ledgers, _requests

    settings, printer = context.settings, context.printer
    target = fleets.create(settings).target
    chosen, tasks = _requests.Filter(**filters), dict[str, str]()
    if chosen.task:
        with fleets.create(settings) as fleet:
            fleets.answering_workers(settings, fleet)
            fleet.ping(timeout=fleets.wait_seconds(settings))  # Workers answer with their tasks.
            tasks = _requests.running_tasks(fleet.workers())
    with (
        settings.failing("ledger", ValueError, ImportError),
        _ledgers.open_ledger(settings.ledger, target) as ledger,
    ):
        if ledger is None:
            raise errors.Failed(
                f"{target.shown} has no ledger; pass the URL of one with --ledger", errors.USAGE
            )
        page = _ledgers.rows(
            ledger, limit, after, state, lambda row: chosen.includes(_requests.of_row(row, tasks))
        )
    content = {"rows": [row.to_dict() for row in page.rows], "after": page.after}
    printer.document("queues-rows/1", content)
    rows = [
        (row.id, row.epoch, row.state, _formatting.seconds(row.age), row.holder)
        for row in page.rows
    ]
    printer.table(
        ("REQUEST", "EPOCH", "STATE", "AGE", "WORKER"),
        rows,
        right=("EPOCH",),
        empty="No requests found.",
    )
    if page.after is not None:
        printer.hint(f"for more requests: --after {page.after!r}")


def _list_dead(context: contexts.Context, limit: int, filters: Mapping[str, Any]) -> None:
    from wbengine.fleet import _message_queues, _requests

    chosen = _requests.Filter(**filters)
    dead_letters = [
        letter
        for letter in _message_queues.list_dead_letters(fleets.create(context.settings))
        if chosen.includes(_requests.of_letter(letter))
    ]
    _print_dead_letters(
        context, dead_letters[:limit], "queues-dead/1", {"more": len(dead_letters) > limit}
    )
    if len(dead_letters) > limit:
        context.printer.hint(f"for more dead letters: --limit {min(len(dead_letters), 1000)}")


def _print_dead_letters(
    context: contexts.Context,
    dead_letters: Sequence[DeadLetterView],
    document: str,
    extra: Mapping[str, object],
) -> None:
    printer = context.printer
    printer.document(document, {**extra, "requests": [letter.to_dict() for letter in dead_letters]})
    printer.table(
        ("REQUEST", "TASK", "ACTION", "QUEUE", "AGE", "REASON"),
        [
            (
                letter.id,
                letter.task,
                letter.action,
                letter.queue,
                _formatting.seconds(letter.age),
                letter.why,
            )
            for letter in dead_letters
        ],
        empty="No dead letters found.",
    )


@command.command(
    "retry",
    help="""Send dead letters to workers again.

    First correct what killed or froze the workers. A dead letter that cannot be sent is not
    deleted. `wbengine queues list --dead` lists the dead letters.

    The flows of these requests do not receive the results. To run the failed tasks of a flow again,
    use `wbengine flow retry`.

    \b
    Example:
      wbengine queues retry 6f1e0c --yes
    """,
)
@click.argument("ids", metavar="[REQUEST]...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Select all dead letters.")
@common_options.dry_run("the requests that would be sent")
@common_options.YES
def retry(
    context: contexts.Context, ids: tuple[str, ...], everything: bool, dry_run: bool, yes: bool
) -> None:
    from wbengine.fleet import _ledgers, _message_queues

    if bool(ids) == everything:
        raise click.UsageError("exactly one of REQUEST and --all is required")
    settings, printer = context.settings, context.printer
    failed: dict[str, Exception] = {}
    with fleets.create(settings) as fleet:
        dead_letters = _message_queues.select_dead_letters(
            _message_queues.list_dead_letters(fleet), ids
        )
        if dead_letters and not dry_run:
            confirmation.confirm(context, f"send {len(dead_letters)} dead letters again", yes)
            with (
                settings.failing("ledger", ValueError, ImportError),
                _ledgers.open_ledger(settings.ledger, fleet.target) as ledger,
            ):
                request_ids = [letter.id for letter in dead_letters]
                failed = _message_queues.retry(
                    fleet, ledger, request_ids, wait=fleets.wait_seconds(settings)
                )
    sent = [letter for letter in dead_letters if letter.id not in failed]
    lines = {id: errors.line_of(error) for id, error in failed.items()}
    if sent or not failed or printer.as_json:
        failures = [{"id": id, "why": line} for id, line in lines.items()]
        _print_dead_letters(
            context, sent, "queues-retry/1", {"dry_run": dry_run, "failed": failures}
        )
    if failed:
        raise _unsent_error(
            context, lines, len(dead_letters), errors.code_of(next(iter(failed.values())))
        )


def _unsent_error(
    context: contexts.Context, lines: Mapping[str, str], count: int, code: int
) -> errors.Failed:
    """Return the error for dead letters that were not sent. If there are several, print them."""
    if len(lines) == 1:
        return errors.Failed(next(iter(lines.values())), code)
    if not context.printer.as_json:
        for line in lines.values():
            output.say(line)
    return errors.Failed(f"{len(lines)} of {count} dead letters could not be sent", code)


@command.command(
    "purge",
    help="""Delete the requests in queues.

    A running engine resends its requests as soon as a worker can execute them, so the command
    removes for good only requests of engines that ended. To prevent a task from running, cancel its
    flow. Dead letters (`wbengine queues list --dead`) are also removed for good.

    \b
    Example:
      wbengine queues purge orders.3f2a --dry-run
    """,
)
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Select all queues of requests.")
@common_options.dry_run("the number of requests that would be deleted")
@common_options.YES
def purge(
    context: contexts.Context, names: tuple[str, ...], everything: bool, dry_run: bool, yes: bool
) -> None:
    from wbengine.fleet import _message_queues

    if bool(names) == everything:
        raise click.UsageError("exactly one of NAME and --all is required")
    settings = context.settings
    with fleets.create(settings) as fleet:
        queue_views = _message_queues.list_queues(fleet, names, wait=fleets.wait_seconds(settings))
        if everything:
            queue_views = [view for view in queue_views if view.kind == _message_queues.REQUESTS]
        counts = {view.name: view.messages for view in queue_views}
        if not dry_run and any(counts.values()):
            total = sum(counts.values())
            confirmation.confirm(
                context, f"delete {total} messages in {len(queue_views)} queues", yes
            )
            counts = _message_queues.purge(fleet, queue_views)
    purged = [{"name": view.name, "messages": counts.get(view.name, 0)} for view in queue_views]
    context.printer.document("queues-purge/1", {"dry_run": dry_run, "queues": purged})
    count = "WOULD DELETE" if dry_run else "DELETED"
    rows = [tuple(each.values()) for each in purged]
    context.printer.table(("NAME", count), rows, right=(count,), empty="No queues found.")
