"""`wbengine db check`: check the store and its large values for damage."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from wbengine import exceptions
from wbengine._cli import base, errors, store_access
from wbengine._cli import context as contexts
from wbengine._payloads import VARIABLE, checking
from wbengine._security import sealing
from wbengine.persistence import _trees
from wbengine.types import codec
from wbengine.views import _formatting

if TYPE_CHECKING:
    from wbengine.persistence import base as persistence
    from wbengine.persistence import models

__all__ = ["command"]


@base.command(
    "check",
    help="""Check the store and its large values for damage.

    The command checks that the layout is usable, that all records can be read and that an SQLite
    file is intact. With the setting payloads, it also checks that all large values exist. It exits
    with 1 if a record is damaged, a value is lost or the key file lacks the key of a record, and
    with 69 if the store does not exist or cannot be used.

    Values of classes that this process does not know are only counted: -I imports their modules.

    \b
    Example:
      wbengine db check -I shop.models --payloads s3://bucket/flows --read-payloads
    """,
)
@click.option("--read-payloads", is_flag=True,
    help="Also read all large values, and compare them with their addresses.")  # fmt: skip
def command(context: contexts.Context, read_payloads: bool) -> int:
    settings, printer = context.settings, context.printer
    counts = _Counts()
    with context.connection() as (backend, connection), _collecting(counts):
        if not store_access.store_exists(settings, backend):
            raise errors.Failed(store_access.missing_message(settings), errors.UNAVAILABLE)
        payloads = backend.payloads
        if read_payloads and payloads is None:
            raise errors.Failed("--read-payloads requires --payloads", errors.USAGE)
        with _collecting(counts):
            counts.damaged += getattr(backend, "problems", list)()
        check = checking.Check(payloads, read=read_payloads)
        with codec.copying(unknown_only=True) as unknown_classes:
            _read_all(connection, check, counts)
    content = {
        "store": str(context.redactor.text(settings.store)),
        "books": counts.books,
        "flows": counts.flows,
        "atoms": counts.atoms,
        "steps": counts.steps,
        "values": check.count,
        "values_checked": payloads is not None,
        "damaged": counts.damaged,
        "unavailable": counts.unavailable,
        "without_key": counts.without_key,
        "unknown_classes": dict(unknown_classes),
    }
    printer.document("db-check/1", content)
    shown = {name: content[name] for name in ("store", "books", "flows", "atoms", "steps")}
    shown["large values"] = check.count
    problems = [str(value["problem"]) for value in counts.unavailable]
    shown["damaged"] = "\n".join([*counts.damaged, *problems]) or 0
    if counts.without_key:
        shown["without key"] = "\n".join(counts.without_key)
    printer.pairs(shown.items())
    if check.count and payloads is None:
        printer.hint(
            f"{_formatting.count(check.count, 'large value')} not checked: set `payloads`"
            f" (--payloads or ${VARIABLE})"
        )
    if unknown_classes:
        number = _formatting.count(sum(unknown_classes.values()), "value")
        names = ", ".join(sorted(unknown_classes))
        printer.hint(
            f"{number} of classes that this process has not imported: {names}; use -I/--include"
        )
    if counts.damaged or counts.unavailable:
        printer.hint("the store is damaged")
    elif counts.without_key:
        printer.hint("records that need another key were not checked")
    else:
        printer.hint("all records are readable")
        return errors.OK
    return errors.UNHEALTHY


@dataclass
class _Counts:
    books: int = 0
    flows: int = 0
    atoms: int = 0
    steps: int = 0
    damaged: list[str] = field(default_factory=list)
    #: Records that are encrypted with a key that this process does not have.
    without_key: list[str] = field(default_factory=list)
    #: References to values that are lost or damaged.
    unavailable: list[dict[str, str | None]] = field(default_factory=list)


def _read_all(connection: persistence.Connection, check: checking.Check, counts: _Counts) -> None:
    for book in connection.get_logbooks(lazy=True):
        counts.books += 1
        with _collecting(counts):
            for flow in connection.get_flows_for_book(book.uuid, lazy=True):
                counts.flows += 1
                unavailable: list[dict[str, str | None]] = []
                with _collecting(counts):
                    for name, tree in _trees_of(connection, flow, counts):
                        where = f"flow {flow.uuid}" + (f" atom {name!r}" if name else "")
                        unavailable += [
                            {"flow": flow.uuid, "atom": name, **each._asdict()}
                            for each in check.unavailable(tree, where)
                        ]
                if unavailable and connection.marks([flow.uuid]):  # The flow still exists.
                    counts.unavailable += unavailable


def _trees_of(
    connection: persistence.Connection, flow: models.FlowDetail, counts: _Counts
) -> Iterator[tuple[str | None, Any]]:
    """Count the records of a flow, and yield their names and JSON trees, if the store has trees."""
    has_trees = connection.backend.encodes
    if has_trees:
        yield None, _trees.tree_of(flow)
    for signal in connection.signals([flow.uuid]).get(flow.uuid, ()):
        label = f"signal {signal.name!r}"
        try:
            yield None, {label: codec.pack(signal.value)}
        except exceptions.InvalidFormat as error:
            counts.damaged.append(f"flow {flow.uuid} {label} cannot be read: {error}")
    for atom in connection.get_atoms_for_flow(flow.uuid):
        counts.atoms += not atom.is_step
        counts.steps += atom.is_step
        if has_trees:
            yield atom.name, _trees.tree_of(atom)
            for item in atom.items or ():
                yield f"{atom.name}[{item.index}]", _trees.tree_of(item)


@contextlib.contextmanager
def _collecting(counts: _Counts) -> Iterator[None]:
    try:
        yield
    except exceptions.CorruptRecord as error:
        needs_key = isinstance(error.__cause__, sealing.MissingKey)
        (counts.without_key if needs_key else counts.damaged).append(errors.line_of(error))
    except exceptions.NotFound:
        pass  # deleted by another process
