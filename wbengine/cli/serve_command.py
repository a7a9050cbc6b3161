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
    completions,
    errors,
    exposed,
    params,
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


class _Serve(base.Command):
    """It has the log of a worker."""

    log_level = "info"


@click.command(
    "serve",
    cls=_Serve,
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
@click.option("--engine", default="serial", metavar="KIND", shell_complete=completions.engines,
    help="serial (default), parallel, workers, or a URI with options.")  # fmt: skip
@click.option("--health-addr", type=params.ADDRESS, metavar="HOST:PORT",
    help="Serve /livez and /readyz there (port 0: any that is free).")  # fmt: skip
@exposed.STRICT
@base.pass_context
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
    if stores.is_of_this_process(context.settings):
        raise errors.Failed(
            f"the store {context.settings.store} ends with this process: nobody else could submit",
            errors.USAGE,
        )
    options = running.engine_options(context, engine)
    declared = schedule_command.declared(context)
    with context.backend(upgrade=True, missing_ok=True, patient=True) as backend:
        board = _board(context, backend)
        try:
            made = service.ConductorService(
                backend,
                engine=engine,
                engine_options=options,
                max_simultaneous=max_simultaneous,
                board=board,
                schedules=declared,
            )
        except ValueError as error:
            raise errors.Failed(errors.line_of(error), errors.USAGE) from error

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
    try:
        made = backends.fetch("served", url, persistence=backend)
    except (exceptions.NotFound, ValueError, ImportError) as error:
        raise context.settings.failed("board", errors.line_of(error)) from error
    if not isinstance(made, stored.StoredJobBoard):
        raise context.settings.failed(
            "board", "that is no Redis, ZooKeeper or etcd: jobs in a database are in --persistence"
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
