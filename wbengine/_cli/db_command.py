"""`wbengine db`: create, check and copy the store of flows."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import click

from wbengine import exceptions, operations
from wbengine._cli import base, errors, fleets, store_access
from wbengine._cli import context as contexts
from wbengine._introspection import object_names

if TYPE_CHECKING:
    from wbengine._cli.config import Settings
    from wbengine.persistence import base as persistence

__all__ = ["command"]

command = base.Group(
    "db",
    lazy={
        "check": base.Lazy("db_check", "Check the store and its large values for damage."),
        "reencrypt": base.Lazy(
            "db_reencrypt", "Update the encryption of the store to the current key."
        ),
        "sweep": base.Lazy("db_sweep", "Delete large values to which no flow refers."),
    },
    renamed={"prune": base.Lazy("flow_prune", "Delete flows that ended long ago.")},
    help="Create, check and copy the store of flows.",
)


def _masked_store(context: contexts.Context) -> str:
    return str(context.redactor.text(context.settings.store))


@command.command(
    "create",
    help="""Create all tables of the store, the queues and the ledger, as their owner.

    Otherwise the first engine or worker creates them. After this command, the other roles need no
    right to create tables. With --worker-role, a role gets the rights that workers need: it
    executes tasks, but cannot read flows. Repeat the command after an upgrade of wbengine.

    \b
    Example:
      wbengine db create --persistence postgresql://flows@db/flows --worker-role flows_worker
    """,
)
@click.option("--worker-role", metavar="ROLE",
    help="Existing role of PostgreSQL, which gets the rights that workers need.")  # fmt: skip
def create(context: contexts.Context, worker_role: str | None) -> None:
    settings, printer = context.settings, context.printer
    broker = fleets.create(settings).target
    if worker_role is not None and broker.system != "postgresql":
        words = f"--worker-role needs a broker in PostgreSQL, got {broker.shown}"
        raise click.UsageError(words, click.get_current_context())
    created = {"store": _masked_store(context)}
    _upgrade(settings)
    if broker.system in ("postgresql", "mysql"):
        fleets.check(settings, vars(settings))  # The first connection creates the tables.
        created["queues"] = broker.shown
    ledgers = object_names.load("wbengine.engines.worker_based.ledger")
    with settings.failing("ledger", ValueError, ImportError):
        place = ledgers.check_for(settings.ledger, broker)
    if place not in (None, "none"):
        ledgers.open_ledger(place).close()
        created["ledger"] = ledgers.shown(place, broker)
    if worker_role is not None:
        rights = object_names.load("wbengine.transports._sql.postgresql_rights")
        rights.grant_to_worker(broker.place, worker_role)
        created["worker role"] = worker_role
    printer.document("db-create/1", {name.replace(" ", "_"): created[name] for name in created})
    printer.pairs(created.items())


def _upgrade(settings: Settings) -> tuple[str | None, str | None, str | None]:
    """Create or upgrade the store. Return its revision before, after, and that of this version."""
    with contextlib.closing(store_access.fetch(settings, patient=False)) as probe:
        before, _ = store_access.call_in_time(settings, lambda: store_access.layout(probe))
    with contextlib.closing(store_access.fetch(settings)) as backend:
        with contextlib.closing(backend.get_connection()) as connection:
            connection.upgrade()  # without a time limit
        after, required = store_access.layout(backend)
    return before and before.revision, after and after.revision, required


@command.command(
    "upgrade",
    help="""Create the store, or upgrade its layout.

    Several processes can do so at the same time.

    \b
    Example:
      wbengine db upgrade --persistence postgresql://flows@db/flows
    """,
)
def upgrade(context: contexts.Context) -> None:
    old, new, required = _upgrade(context.settings)
    printer = context.printer
    printer.document("db-upgrade/1", {"store": _masked_store(context), "before": old, "after": new})
    if required is None:
        printer.line("this kind of store has no revisions")
    elif old != new:
        printer.line(f"revision {new} (before: {old or 'no store'})")
    elif new == required:
        printer.line(f"revision {new} (already current)")
    else:
        printer.line(f"revision {new} (newer than {required}, and usable)")


@command.command(
    "current",
    help="""Show the revision of the store and whether this version can use it.

    "wanted" is the newest revision that this version knows. It can also use newer revisions that
    only add to it. `wbengine db upgrade` upgrades older ones.

    \b
    Example:
      wbengine db current --json
    """,
)
def current(context: contexts.Context) -> None:
    settings = context.settings
    with contextlib.closing(store_access.fetch(settings, patient=False)) as backend:
        stored, required = store_access.call_in_time(settings, lambda: store_access.layout(backend))
    content = {
        "store": _masked_store(context),
        "revision": stored and stored.revision,
        "wanted": required,
        "usable": stored and stored.is_usable,
    }
    context.printer.document("db-current/1", content)
    missing = "no store" if required else "this kind of store has no revisions"
    context.printer.pairs({**content, "revision": content["revision"] or missing}.items())


@command.command(
    "move",
    help="""Copy all records of a store to another store, and compare them.

    OLD and NEW are URLs of stores. OLD is not changed. Stop all engines and conductors of both
    stores first. The command can be repeated: what NEW already contains is not copied again.

    \b
    Example:
      wbengine db move dir:///var/lib/flows postgresql://flows@db/flows
    """,
)
@click.argument("old")
@click.argument("new")
def move(context: contexts.Context, old: str, new: str) -> None:
    printer, masked = context.printer, context.redactor.text
    books = flows = 0
    with contextlib.ExitStack() as stack:
        source, target = (
            stack.enter_context(contextlib.closing(_fetch(url))) for url in (old, new)
        )
        stored, required = store_access.layout(source)
        if required is not None and stored is None:
            raise errors.Failed(
                f"OLD must be an existing store, got {masked(old)}", errors.UNAVAILABLE
            )
        for book in operations.move(source, target):
            books += 1
            flows += len(book)
    content = {"from": masked(old), "to": masked(new), "books": books, "flows": flows}
    printer.document("db-move/1", content)
    printer.line(f"copied {flows} flows in {books} logbooks to {masked(new)} and verified them")


def _fetch(url: str) -> persistence.Backend:
    from wbengine.persistence import backends

    wrong = (exceptions.NotFound, ValueError, ImportError, TypeError)
    with errors.failing(errors.USAGE, *wrong, where=url.partition(":")[0]):
        return backends.fetch(url)
