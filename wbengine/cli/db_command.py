"""`wbengine db`: look after the store of flows."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any, Final

import click

from wbengine import exceptions, states
from wbengine.cli import asking, base, errors, options, params, stores
from wbengine.cli import context as contexts

if TYPE_CHECKING:
    from wbengine.persistence import base as persistence

__all__ = ["command"]

#: What may be forgotten for its age.
_CHOICES: Final = (states.FAILURE, states.REVERTED, states.SUCCESS, states.SUSPENDED)

command = base.Group("db", help="Look after the store of flows.")


def _shown(context: contexts.Context) -> str:
    return str(context.redactor.text(context.settings.store))


@command.command(
    "upgrade",
    short_help="Make the layout, or bring it up to date.",
    help="""Make the layout of the store where there is none, or bring an older one up to date.

    Several may do so at the same time.

    \b
    wbengine db upgrade --persistence postgresql://flows@db/flows
    """,
)
def upgrade(context: contexts.Context) -> None:
    settings = context.settings
    with contextlib.closing(stores.fetched(settings, patient=False)) as looked_at:
        old, _ = stores.answered(settings, lambda: stores.layout(looked_at))
    with contextlib.closing(stores.fetched(settings)) as backend:
        with contextlib.closing(backend.get_connection()) as connection:
            connection.upgrade()  # which may take its time
        new, wanted = stores.layout(backend)
    printer = context.printer
    printer.document("db-upgrade/1", {"store": _shown(context), "before": old, "after": new})
    if wanted is None:
        printer.line("this kind of store needs no upgrade")
    else:
        same = "already up to date" if old == new else f"was {old or 'nothing'}"
        printer.line(f"revision {new} ({same})")


@command.command(
    "current",
    short_help="Show which layout there is.",
    help="""Show which layout the store has, and which one this version wants.

    \b
    wbengine db current --json
    """,
)
def current(context: contexts.Context) -> None:
    settings = context.settings
    with contextlib.closing(stores.fetched(settings, patient=False)) as backend:
        revision, wanted = stores.answered(settings, lambda: stores.layout(backend))
    content = {"store": _shown(context), "revision": revision, "wanted": wanted}
    context.printer.document("db-current/1", content)
    text = revision or ("none yet" if wanted else "has no number")
    context.printer.pairs({**content, "revision": text}.items())


@command.command(
    "check",
    short_help="See that the layout and the records can be used.",
    help="""See that the layout of the store is the current one, that its records can be read, and
    that an sqlite file is sound. Exits with 1 if something is damaged, with 69 if the store cannot
    be used, or is not there.

    \b
    wbengine db check
    """,
)
def check(context: contexts.Context) -> int:
    settings, printer = context.settings, context.printer
    books = flows = atoms = 0
    damaged: list[str] = []
    with context.connection() as (backend, connection), _noting(damaged):
        if not stores.is_made(settings, backend):
            raise errors.Failed(stores.not_made(settings), errors.UNAVAILABLE)
        with _noting(damaged):
            damaged += getattr(backend, "problems", list)()
        for book in connection.get_logbooks(lazy=True):
            books += 1
            with _noting(damaged):
                for flow in connection.get_flows_for_book(book.uuid, lazy=True):
                    flows += 1
                    with _noting(damaged):
                        atoms += sum(1 for _ in connection.get_atoms_for_flow(flow.uuid))
    content = {
        "store": _shown(context),
        "books": books,
        "flows": flows,
        "atoms": atoms,
        "damaged": damaged,
    }
    printer.document("db-check/1", content)
    printer.pairs({**content, "damaged": "\n".join(damaged) or 0}.items())
    printer.hint("something is damaged" if damaged else "all of it can be read")
    return errors.UNHEALTHY if damaged else errors.OK


@contextlib.contextmanager
def _noting(damaged: list[str]) -> Any:
    try:
        yield
    except exceptions.CorruptRecord as error:
        damaged.append(errors.line_of(error))
    except exceptions.NotFound:
        pass  # removed since


@command.command(
    "move",
    short_help="Copy all of a store to another one.",
    help="""Copy all that the store OLD keeps to the store NEW, and see that it reads the same
    there. OLD stays as it is; it may be a folder of a version before, which kept journals. It may
    be repeated. Commands to engines that run flows are not copied, and nobody may run any.

    \b
    wbengine db move dir:///var/lib/flows postgresql://flows@db/flows
    """,
)
@click.argument("old")
@click.argument("new")
def move(context: contexts.Context, old: str, new: str) -> None:
    from wbengine import operations

    printer, masked = context.printer, context.redactor.text
    books = flows = 0
    with contextlib.ExitStack() as stack:
        source, target = _store(old), _store(new)
        for opened in (source, target):
            if not isinstance(opened, str):
                stack.callback(opened.close)
        if isinstance(target, str):
            raise errors.Failed(
                f"NEW: {masked(new)} is a folder of a version before: move to another one",
                errors.USAGE,
            )
        revision, wanted = (None, None) if isinstance(source, str) else stores.layout(source)
        if wanted is not None and revision is None:
            raise errors.Failed(f"OLD: there is no store at {masked(old)}", errors.UNAVAILABLE)
        for book in operations.move(source, target):
            books += 1
            flows += len(book)
    content = {"from": masked(old), "to": masked(new), "books": books, "flows": flows}
    printer.document("db-move/1", content)
    printer.line(f"{flows} flows in {books} log books are in {masked(new)}, and read the same")


def _store(url: str) -> persistence.Backend | str:
    """The store of a URL, or the path of a folder of journals."""
    from wbengine.persistence import backends
    from wbengine.persistence.backends.directory import DirectoryBackend

    wrong = (exceptions.NotFound, ValueError, ImportError, TypeError)
    with errors.failing(errors.USAGE, *wrong, where=url.partition(":")[0]):
        made = backends.fetch(url)
    if isinstance(made, DirectoryBackend) and made.has_journals():
        made.close()
        return made.path
    return made


@command.command(
    "prune",
    short_help="Forget flows that ended long ago.",
    help="""Forget flows that ended long ago: those that somebody runs are never touched.

    \b
    wbengine db prune --older-than 30d --state SUCCESS --dry-run
    """,
)
@click.option("--older-than", type=params.DURATION, required=True, metavar="AGE",
    help="Those that nothing happened to for so long, such as 30d.")  # fmt: skip
@click.option("--state", "wanted", multiple=True,
    type=click.Choice(_CHOICES, case_sensitive=False),
    help="Those in this state (repeatable; all that ended).")  # fmt: skip
@click.option("--batch", type=click.IntRange(1, 10_000), default=100, show_default=True,
    help="Look at so many at a time.")  # fmt: skip
@options.dry_run("which")
@options.YES
def prune(
    context: contexts.Context,
    older_than: float,
    wanted: tuple[str, ...],
    batch: int,
    dry_run: bool,
    yes: bool,
) -> None:
    from wbengine import operations
    from wbengine.operations import removing
    from wbengine.views import formatting

    printer = context.printer
    chosen = wanted or removing.ENDED
    if not dry_run:
        which = f"flows in {', '.join(chosen)} older than {formatting.seconds(older_than)}"
        asking.confirm(context, f"forget {which}", yes)
    count = 0
    with context.backend() as backend:
        gone = operations.prune(
            backend, before=time.time() - older_than, states=chosen, batch=batch, dry_run=dry_run
        )
        made = stores.is_made(context.settings, backend)
        for row in gone:
            count += 1
            printer.event("db-prune/1", {"uuid": row.uuid, "name": row.name, "state": row.state,
                "created": formatting.iso(row.created), "dry_run": dry_run})  # fmt: skip
            printer.line(f"{row.uuid}  {row.state:<9}  {row.name}")
    if made:
        printer.note(f"{count} flows {'would be' if dry_run else 'are'} forgotten")
    else:
        printer.note(stores.not_made(context.settings))
