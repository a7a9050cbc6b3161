"""Operations on many flows that a command stores, and then carries out or follows."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from wbengine import exceptions
from wbengine._cli import confirmation, errors, output, stop_signals
from wbengine.operations import _bulk
from wbengine.persistence._bulk_records import Bulk, BulkFlow

if TYPE_CHECKING:
    from wbengine._cli.context import Context
    from wbengine.operations._operation import Operation
    from wbengine.persistence import base as persistence
    from wbengine.persistence._listing import FlowRow

__all__ = ["Stored", "follow", "progress", "results", "start"]


class Stored(NamedTuple):
    """How a command stores its operation.

    :ivar arguments: JSON arguments of the operation for all flows.
    :ivar includes: whether the stored operation includes a flow; the command changes the others.
    :ivar arguments_of: further arguments for one flow, by uuid.
    """

    backend: persistence.Backend
    arguments: Mapping[str, Any]
    reason: str | None = None
    includes: Callable[[FlowRow], bool] = lambda row: True
    arguments_of: Callable[[str], Mapping[str, Any] | None] = lambda uuid: None


def start(
    operation: Operation,
    stored: Stored,
    rows: Sequence[FlowRow],
    filter: Mapping[str, Any],
    rate: float | None,
) -> Bulk:
    """Store an operation on these flows.

    :raises Failed: if an argument is invalid.
    """
    flows = [BulkFlow(row.uuid, row.state, stored.arguments_of(row.uuid)) for row in rows]
    with errors.failing(errors.USAGE, ValueError):
        return _bulk.start(
            stored.backend,
            operation.name,
            flows,
            stored.arguments,
            filter=filter,
            reason=stored.reason,
            by=confirmation.current_user(),
            rate=rate,
        )


def follow(context: Context, backend: persistence.Backend, bulk: Bulk) -> Bulk:
    """Carry an operation out until it is over, or follow the process that does.

    If this is interrupted, `wbengine serve` continues the operation.
    """
    run = _bulk.BulkRun(backend, bulk, f"{socket.gethostname()}:{os.getpid()}")
    try:
        with progress(context, bulk.operation.partition(" ")[2], bulk.total) as show:
            show(bulk.settled)
            return _bulk.carry_out(run, lambda each: show(each.settled))
    except BaseException:
        with contextlib.suppress(exceptions.StorageFailure):
            run.release()
        context.printer.note(
            f"operation {bulk.uuid} is not complete: wbengine serve continues it, or wbengine"
            f" bulk resume {bulk.uuid}"
        )
        raise


def results(backend: persistence.Backend, bulk: Bulk) -> Iterator[tuple[str, str | None]]:
    """Yield the uuids of the flows that were changed, and of skipped ones with the reason."""
    with contextlib.closing(backend.get_connection()) as connection:
        settled = connection.bulks.get(bulk.uuid).settled
        start = 0
        while start < settled:
            page = connection.bulks.flows(bulk.uuid, min(1000, settled - start), start)
            yield from page
            start += len(page)


@contextlib.contextmanager
def progress(context: Context, label: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show a bar on a terminal. Yield a function that receives the number of settled flows."""
    show = output.is_seen(sys.stderr) and not context.settings.quiet and total > 1
    if not show:
        yield lambda settled: None
        return
    with (
        stop_signals.restoring_terminal(),
        click.progressbar(length=total, label=label, file=sys.stderr) as bar,
    ):
        yield lambda settled: bar.update(settled - bar.pos)
