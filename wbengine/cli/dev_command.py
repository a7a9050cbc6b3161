"""`wbengine dev`: all that is needed to try things."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Final

import click

from wbengine.cli import (
    base,
    dashboard_command,
    errors,
    fleets,
    options,
    output,
    schedule_command,
    signals,
)
from wbengine.cli import context as contexts

if TYPE_CHECKING:
    from wbengine.dev import DevServer

__all__ = ["command"]

_NO_PAGES: Final = "none: pip install 'wbengine[dashboard]'"
_UNWANTED: Final = "none"


@base.command(
    "dev",
    help="""Start a broker in a folder, a store, a worker that offers the tasks of MODULE, a
    conductor, and a dashboard, if that is installed. Ctrl-C ends all of it.

    Without --folder all of it is in a temporary folder, and gone afterwards.

    \b
    wbengine dev orders
    """,
)
@click.argument("modules", metavar="MODULE...", nargs=-1, required=True)
@click.option("--folder", type=click.Path(file_okay=False), metavar="PATH",
    help="Keep it there, and go on with it the next time.")  # fmt: skip
@options.PORT
@click.option("--no-dashboard", is_flag=True, help="Without one.")
@click.option("--topic", default="dev", show_default=True, help="Of the worker.")
@click.option("-c", "--concurrency", type=click.IntRange(1, 1000), help="So many tasks at once.")
def command(
    context: contexts.Context,
    modules: tuple[str, ...],
    folder: str | None,
    port: int,
    no_dashboard: bool,
    topic: str,
    concurrency: int | None,
) -> None:
    from wbengine import dev, keys

    dashboard_command.show_audit()
    ring = fleets.keys(context.settings)
    with errors.making("the tasks cannot be imported"):
        try:
            server = dev.DevServer(
                *modules,
                folder=folder,
                port=None if no_dashboard else port,
                topic=topic,
                concurrency=concurrency,
                schedules=schedule_command.declared(context),
                keys=ring or keys.NONE,
            )
        except OSError as error:
            line = f"{error.filename or f'port {port}'}: {error.strerror or error}"
            raise errors.Failed(line, errors.UNAVAILABLE) from error
    told = threading.Event()
    with signals.StopSignals(told.set, server.worker.halt).installed(), server:
        _tell(context, server, _UNWANTED if no_dashboard else _NO_PAGES)
        told.wait()
        context.printer.note("ending; once more: at once")


def _tell(context: contexts.Context, server: DevServer, without: str) -> None:
    """Where all of it is; `without` stands for a dashboard that there is not."""
    told = {
        "broker": server.url,
        "persistence": server.persistence,
        "worker": server.worker.identity,
        "dashboard": server.login_url,
    }
    # Not by the printer, which would hide the token: it is for whoever reads this.
    if context.settings.json:
        output.write(json.dumps({"schema": "wbengine/dev/1", **told}) + "\n")
        return
    for name, value in told.items():
        output.write(f"{name:<11}  {value or without}\n")
    note = context.printer.note
    note("in another terminal:")
    keys = "" if context.settings.keys is None else f" WBENGINE_KEYS={server.keys}"
    note(f"  export WBENGINE_URL={server.url} WBENGINE_PERSISTENCE={server.persistence}{keys}")
    note("  wbengine flow run MODULE:FACTORY --engine workers")
    note("  wbengine flow submit MODULE:FACTORY")
    note("Ctrl-C ends all of it.")
