"""`wbengine dev`: start everything that development needs."""

from __future__ import annotations

import json
import sys
import threading
from typing import TYPE_CHECKING, Final

import click

from wbengine._cli import (
    base,
    common_options,
    dashboard_command,
    errors,
    fleets,
    output,
    schedule_command,
    stop_signals,
)
from wbengine._cli import context as contexts
from wbengine._imports import installing

if TYPE_CHECKING:
    from wbengine._cli.dev_fleet import DevServer

__all__ = ["command"]

_NOT_REQUESTED: Final = "none"


@base.command(
    "dev",
    help="""Start a broker, store, worker and dashboard for development.

    The worker executes the tasks of MODULE, and a conductor runs submitted flows. The dashboard
    starts if it is installed. Broker and store are folders: without --folder, they are temporary
    and are deleted at the end. With --postgresql, they are one database, as in production. Ctrl-C
    stops everything.

    \b
    Examples:
      wbengine dev orders
      wbengine dev orders --postgresql postgresql:///orders
    """,
)
@click.argument("modules", metavar="MODULE...", nargs=-1, required=True)
@click.option("--folder", type=click.Path(file_okay=False), metavar="PATH",
    help="Folder of the broker and the store, which are not deleted.")  # fmt: skip
@click.option("--postgresql", metavar="URL",
    help="Database that is broker and store.")  # fmt: skip
@common_options.PORT
@click.option("--no-dashboard", is_flag=True, help="Start no dashboard.")
@click.option("--topic", default="dev", help="Topic of the worker.")
@click.option("-c", "--concurrency", type=click.IntRange(1, 1000), metavar="N",
    help="Number of slots of the worker.")  # fmt: skip
def command(
    context: contexts.Context,
    modules: tuple[str, ...],
    folder: str | None,
    postgresql: str | None,
    port: int,
    no_dashboard: bool,
    topic: str,
    concurrency: int | None,
) -> None:
    from wbengine._cli import dev_fleet
    from wbengine._security import keys

    if postgresql is not None:
        if folder is not None:
            words = "at most one of --folder and --postgresql can be used"
            raise click.UsageError(words, click.get_current_context())
        with errors.failing(errors.USAGE, ValueError, where="--postgresql"):
            dev_fleet.check_database(postgresql)
    dashboard_command.show_audit()
    ring = fleets.keys(context.settings)
    with errors.running_user_code("cannot import the tasks"):
        try:
            server = dev_fleet.DevServer(
                *modules,
                folder=folder,
                postgresql=postgresql,
                port=None if no_dashboard else port,
                topic=topic,
                concurrency=concurrency,
                schedules=schedule_command.declared(context),
                keys=ring or keys.NONE,
            )
        except OSError as error:
            line = f"{error.filename or f'port {port}'}: {error.strerror or error}"
            raise errors.Failed(line, errors.UNAVAILABLE) from error
    stop_requested = threading.Event()
    signals = stop_signals.StopSignals(
        stop_requested.set, server.worker.halt, lambda: [server.worker.life]
    )
    with signals.installed(), server:
        _print_addresses(context, server, _NOT_REQUESTED if no_dashboard else _missing_dashboard())
        stop_requested.wait()
        context.printer.note("stopping; press Ctrl-C again to stop at once")


def _missing_dashboard() -> str:
    return f"not installed: {installing.advice('dashboard')}"


def _print_addresses(context: contexts.Context, server: DevServer, without: str) -> None:
    broker, persistence = map(context.redactor.text, (server.url, server.persistence))
    addresses = {
        "broker": broker,
        "persistence": persistence,
        "worker": server.worker.identity,
        "dashboard": server.login_url,
    }
    # The printer would mask the token, which the user needs.
    if context.settings.json:
        output.write(json.dumps({"schema": "wbengine/dev/1", **addresses}) + "\n")
        return
    for name, value in addresses.items():
        output.write(f"{output.fitted(f'{name:<11}  {value or without}', sys.stdout)}\n")
    note = context.printer.note
    note("in another terminal, run:")
    if server.url != server.persistence:
        note(f"  export WBENGINE_URL={server.url}")
    if persistence == server.persistence:
        note(f"  export WBENGINE_PERSISTENCE={server.persistence}")
    else:  # The printer would mask the password.
        note("  export WBENGINE_PERSISTENCE=URL  # the URL of --postgresql, with its password")
    if context.settings.keys is not None:
        note(f"  export WBENGINE_KEYS={server.keys}")
    note("  wbengine flow run MODULE:FACTORY --engine workers")
    note("  wbengine flow submit MODULE:FACTORY")
    note("Press Ctrl-C to stop everything.")
