"""Arguments and options that several commands have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import click

from wbengine.cli import completions, params

__all__ = [
    "DEADLINE", "ENGINE", "FACTORY", "FLOW", "HEALTH", "INPUTS", "NAME", "PORT",
    "PRIORITY", "PROGRESS", "REASON", "REPORT", "STRICT", "YES", "dry_run", "strict", "tags",
]  # fmt: skip

Decorator = Callable[[Callable[..., Any]], Any]

FLOW: Final = click.argument("flow", metavar="ID", shell_complete=completions.flows)
FACTORY: Final = click.argument("factory", metavar="MODULE:FACTORY")
INPUTS: Final = click.option("--inputs", type=params.INPUTS, default="{}", metavar="JSON|@FILE",
    help="Values that are there from the start.")  # fmt: skip
NAME: Final = click.option("--name", metavar="NAME",
    help="Name of the new flow (that of what FACTORY makes).")  # fmt: skip
PRIORITY: Final = click.option("--priority", default="NORMAL", metavar="PRIORITY",
    help="VERY_HIGH, HIGH, NORMAL (default), LOW or VERY_LOW.")  # fmt: skip
ENGINE: Final = click.option("--engine", default="serial", metavar="KIND",
    shell_complete=completions.engines,
    help="serial (default), parallel, workers, or a URI with options.")  # fmt: skip
PROGRESS: Final = click.option("--progress/--no-progress", default=None,
    help="Show how far it is (default: on a terminal).")  # fmt: skip
REPORT: Final = click.option("--report", type=params.NEW_FILE, metavar="FILE",
    help="Write a report of the run (HTML) into this file.")  # fmt: skip
DEADLINE: Final = click.option("--deadline", type=params.WAIT, metavar="DURATION",
    help="Revert it if it takes longer, such as 90, 5m, 2h.")  # fmt: skip
REASON: Final = click.option("--reason", metavar="TEXT", help="Why; it is kept with the flow.")
HEALTH: Final = click.option("--health-addr", type=params.ADDRESS, metavar="HOST:PORT",
    help="Serve /livez and /readyz there (port 0: any that is free).")  # fmt: skip
PORT: Final = click.option("--port", type=click.IntRange(0, 65535), default=8585,
    show_default=True, help="Of the dashboard; 0: any that is free.")  # fmt: skip
YES: Final = click.option("--yes", is_flag=True, help="Do not ask.")


def dry_run(what: str) -> Decorator:
    return click.option("--dry-run", is_flag=True, help=f"Only tell {what}.")


def tags(help: str) -> Decorator:
    return click.option("--tag", "tags", type=params.TAG, multiple=True, metavar="KEY=VALUE",
        callback=params.tags_of, help=help)  # fmt: skip


def strict(what: str) -> Decorator:
    """`what` the command does with such files."""
    return click.option("--strict", is_flag=True,
        help=f"{what} files with secrets that others can read.")  # fmt: skip


#: Of commands that do not start then.
STRICT: Final = strict("Do not start with")
