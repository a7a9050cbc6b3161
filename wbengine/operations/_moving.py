"""Copying the contents of a store to another one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from wbengine import exceptions
from wbengine.operations import _exporting, _suspend_and_cancel
from wbengine.persistence import _owners, _trees, base, models
from wbengine.persistence.backends import _sql
from wbengine.persistence.backends._sql import copying, reencrypting

__all__ = ["move"]


def move(old: base.Backend, new: base.Backend) -> Iterator[models.LogBook]:
    """Copy every logbook of a store to another one, read it back there, and yield it.

    At the end, the schedules, jobs, unique keys, pauses and versions of code are copied between SQL
    stores, and then the commands of flows. Nothing of `old` changes. Logbooks that `new` already
    contains are compared, so a copy that failed may be repeated.

    :raises FlowBusy: if an engine runs one of the flows.
    :raises Duplicate: if `new` has a different book or flow with the same uuid.
    :raises NotTrusted: if the keys of this process do not contain the key of a row.
    :raises StorageFailure: if a store is unavailable; or if the copy differs when read back.
    """
    commands: dict[str, base.FlowCommand] = {}
    with (
        contextlib.closing(old.get_connection()) as source,
        contextlib.closing(new.get_connection()) as target,
    ):
        target.upgrade()
        for row in source.get_logbooks(lazy=True):
            with _exporting.copying_to(new):
                book = _copy(source, target, row.uuid)
            commands |= _commands_of(source, book)
            yield book
        if isinstance(old, _sql.SQLBackend) and isinstance(new, _sql.SQLBackend):
            copying.copy_rows(old, new)
        # After the jobs: without one, a command posts a new job.
        present = target.commands(commands)
        for uuid, command in commands.items():
            if uuid not in present:
                with contextlib.suppress(exceptions.InvalidState):  # An engine would refuse it.
                    target.send_command(uuid, command)


def _commands_of(source: base.Connection, book: models.LogBook) -> dict[str, base.FlowCommand]:
    commands = source.commands([flow.uuid for flow in book])
    return {
        uuid: reencrypting.command_with_current_key(uuid, command)
        for uuid, command in commands.items()
    }


def _copy(source: base.Connection, target: base.Connection, uuid: str) -> models.LogBook:
    book = source.get_logbook(uuid)
    for flow in book:
        lease = source.get_lease(flow.uuid)
        if lease is not None and not _owners.is_dead(lease.owner):
            raise _suspend_and_cancel.busy(flow.uuid, lease.owner)
    try:
        existing = target.get_logbook(uuid)
    except exceptions.NotFound:
        target.save_logbook(book)
        existing = target.get_logbook(uuid)
    else:
        if _contents(existing) != _contents(book):
            raise exceptions.Duplicate(
                f"Target store contains another logbook {uuid}; use an empty store"
            )
    if _contents(existing) != _contents(book):
        raise exceptions.StorageFailure(
            f"Logbook {uuid} differs in the target store; the source store was not changed"
        )
    signals = source.signals([flow.uuid for flow in book])
    for flow in book:
        outline = source.get_outline(flow.uuid)
        if outline is not None:
            target.save_outline(flow.uuid, outline)
        logs = source.get_logs(flow.uuid)
        _exporting.save_signals_and_logs(target, flow, logs, signals.get(flow.uuid, ()))
    return book


def _contents(book: models.LogBook) -> list[_trees.Tree]:
    contents = [_trees.tree_of(book)]
    for flow in book:
        contents.append(_trees.tree_of(flow))
        for atom in flow:
            contents.append(_trees.tree_of(atom))
            contents += [_trees.tree_of(item) for item in atom.items or ()]
    return contents
