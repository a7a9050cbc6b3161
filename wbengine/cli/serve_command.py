"""`wbengine serve`: run the flows that are submitted, until told to stop."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import click

from wbengine import exceptions
from wbengine.cli import (
    base,
    errors,
    exposed,
    options,
    running,
    schedule_command,
    signals,
    stores,
)
from wbengine.cli import context as contexts

if TYPE_CHECKING:
    from wbengine.conductors.service import ConductorService
    from wbengine.jobs import stored
    from wbengine.persistence import base as persistence

__all__ = ["command"]

LOG: Final = logging.getLogger(__name__)


@base.command(
    "serve",
    log_level="info",
    help="""Run the flows that are submitted (`wbengine flow submit`, `engines.submit`), resume
    those whose engine died, and fire schedules (`wbengine schedule`), until told to stop.

    The flows are in the store (--persistence), and so are their jobs, unless --board names a job
    board in Redis, ZooKeeper or etcd.  Several of these commands share the work.  Modules of the
    current folder are found.

    The first SIGTERM or Ctrl-C takes no more jobs, and suspends the flows after what runs, so that
    others go on with them; the second one gives up what runs (exit code 1).

    \b
    wbengine serve --persistence postgresql://flows@db/flows --engine workers
    """,
)
@click.option("--max-simultaneous", type=click.IntRange(1, 1000), metavar="N",
    help="Run so many flows at a time (one more than there are processors).")  # fmt: skip
@options.ENGINE
@options.HEALTH
@options.STRICT
def command(
    context: contexts.Context,
    max_simultaneous: int | None,
    engine: str,
    health_addr: Any,
    strict: bool,
) -> int:
    from wbengine.conductors import service

    if strict:
        exposed.refuse(context)
    stores.check_outlives(context.settings, ": nobody else could submit")
    known = running.engine_options(context, engine)
    declared = schedule_command.declared(context)
    with context.backend(upgrade=True, missing_ok=True, patient=True) as backend:
        board = _board(context, backend)
        with errors.failing(errors.USAGE, ValueError):
            made = service.ConductorService(
                backend,
                engine=engine,
                engine_options=known,
                max_simultaneous=max_simultaneous,
                board=board,
                schedules=declared,
            )

        def stop() -> None:
            context.printer.note("ending after what runs; once more: at once")
            made.stop()

        with _probed(made, health_addr), signals.StopSignals(stop, signals.leave).installed():
            where = context.settings.store if board is None else board.place
            if made.connect():
                context.printer.note(f"{made.name} runs what is submitted to {where}")
                made.run()
    return errors.OK


def _board(context: contexts.Context, backend: persistence.Backend) -> stored.StoredJobBoard | None:
    """The board that is not in the store of the flows; None: it is."""
    from wbengine.jobs import backends, stored

    url = context.settings.board
    if url is None:
        return None
    with context.settings.failing("board", exceptions.NotFound, ValueError, ImportError):
        made = backends.fetch("served", url, persistence=backend)
        if not isinstance(made, stored.StoredJobBoard):
            raise ValueError(
                "that is no Redis, ZooKeeper or etcd: jobs in a database are in --persistence"
            )
    return made


@contextlib.contextmanager
def _probed(made: ConductorService, where: Any) -> Iterator[None]:
    """Answer probes, if that is wanted."""
    if where is None:
        yield
        return
    from wbengine.telemetry import probes, serving

    try:
        server = serving.Server(where, probes.routes(made))
    except OSError as error:
        line = f"cannot listen on {where}: {error.strerror or error}"
        raise errors.Failed(line, errors.UNAVAILABLE) from error
    LOG.info("serving /livez, /readyz on http://%s", server.address)
    server.start()
    try:
        yield
    finally:
        server.stop()
