"""`wbengine mcp`: tools for coding assistants."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import click

from wbengine._cli import base, dashboard_command, errors, fleets
from wbengine._cli import context as contexts
from wbengine._imports import installing

__all__ = ["command"]


@base.command(
    "mcp",
    help="""Serve tools for coding assistants.

    The protocol is the Model Context Protocol. The tools list flows, workers, queues and schedules,
    and read events and log lines; with --allow-actions they also change flows, as the HTTP API
    does. The command uses the standard input and output: an assistant starts it. It works on the
    store and broker of the settings, or with --dashboard on a dashboard, with the role of the
    access key (`wbengine access new`).

    \b
    Examples:
      wbengine mcp --persistence sqlite:////var/lib/flows.db
      wbengine mcp --dashboard https://flows.example.com --token-file ~/.wbengine-key
    """,
)
@click.option("--allow-actions", is_flag=True,
    help="Add tools that change flows, schedules and pauses.")  # fmt: skip
@click.option("--dashboard", "address", metavar="URL",
    help="Address of a dashboard to use instead of the store.")  # fmt: skip
@click.option("--token-file", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
    help="File that contains the access key or the token for --dashboard.")  # fmt: skip
def command(
    context: contexts.Context, allow_actions: bool, address: str | None, token_file: Path | None
) -> None:
    if (address is None) != (token_file is None):
        raise click.UsageError("--dashboard and --token-file must be used together")
    try:
        from wbengine.dashboard import _mcp, create_app
    except ImportError as error:
        raise ImportError(installing.needs("wbengine mcp", "mcp and httpx2", "mcp")) from error
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    if address is not None and token_file is not None:
        with errors.failing(errors.USAGE, ValueError):
            client = _mcp.client_of(address, dashboard_command.read_secret(token_file))
            asyncio.run(_mcp.serve(client, allow_actions=allow_actions))
        return
    settings = context.settings
    dashboard_command.show_audit()
    with context.backend(missing_ok=True) as backend, errors.failing(errors.USAGE, ValueError):
        app = create_app(
            backend,
            fleet=fleets.create(settings),
            ledger=settings.ledger,
            allow_actions=allow_actions,
        )
        asyncio.run(_mcp.serve_app(app, allow_actions=allow_actions))
