"""Arguments and options that several commands have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import click

from wbengine._cli import completions, params

__all__ = [
    "ARGUMENTS", "BACKGROUND", "CODE_VERSION", "DEADLINE", "ENGINE", "FACTORY", "FLOW", "HEALTH",
    "INPUTS", "METRICS", "NAME", "PORT", "PRIORITIES", "PRIORITY", "PROGRESS", "REASON", "REPORT",
    "STRICT", "UNDO_UNTIL", "YES", "dry_run", "strict", "tags",
]  # fmt: skip

Decorator = Callable[[Callable[..., Any]], Any]

PRIORITIES: Final = ("VERY_HIGH", "HIGH", "NORMAL", "LOW", "VERY_LOW")

FLOW: Final = click.argument("flow", metavar="ID", shell_complete=completions.flows)
BACKGROUND: Final = click.option("--background", is_flag=True,
    help="Let `wbengine serve` carry the operation out, and do not wait for it.")  # fmt: skip
CODE_VERSION: Final = click.option("--code-version", metavar="VERSION",
    help="Version of the code of this process, for example v43.")  # fmt: skip
FACTORY: Final = click.argument("factory", metavar="MODULE:FACTORY")
INPUTS: Final = click.option("--inputs", type=params.INPUTS, default="{}", metavar="JSON|@FILE",
    help="Inputs of the flow: a JSON object, or a file that contains one (@-: standard"
    " input).")  # fmt: skip
ARGUMENTS: Final = click.option("--arguments", type=params.INPUTS, metavar="JSON|@FILE",
    help="Arguments of FACTORY, if it is a function with parameters.")  # fmt: skip
NAME: Final = click.option("--name", metavar="NAME",
    help="Name of the flow.", show_default="the name that FACTORY sets")  # fmt: skip
PRIORITY: Final = click.option("--priority", default="NORMAL", metavar="PRIORITY",
    type=params.Choice(PRIORITIES, case_sensitive=False),
    help="Priority of the flow: VERY_HIGH, HIGH, NORMAL, LOW or VERY_LOW.")  # fmt: skip
ENGINE: Final = click.option("--engine", default="serial", type=params.ENGINE, metavar="KIND",
    shell_complete=completions.engines,
    help="Kind of engine: serial, parallel, workers, or a URI with options.")  # fmt: skip
PROGRESS: Final = click.option("--progress/--no-progress", default=None,
    help="Show the progress of the flow.", show_default="on a terminal")  # fmt: skip
REPORT: Final = click.option("--report", type=params.NEW_FILE, metavar="FILE",
    help="Write an HTML report of the run to this file.")  # fmt: skip
DEADLINE: Final = click.option("--deadline", type=params.WAIT, metavar="DURATION",
    help="Revert the flow if the run takes longer, such as 90, 5m, 2h.")  # fmt: skip
REASON: Final = click.option("--reason", metavar="TEXT", help="Reason, stored with the flow.")
HEALTH: Final = click.option("--health-addr", type=params.ADDRESS, metavar="HOST:PORT",
    help="Serve /livez and /readyz at this address (port 0: any free port).")  # fmt: skip
METRICS: Final = click.option("--metrics-addr", type=params.ADDRESS, metavar="HOST:PORT",
    help="Serve /metrics for Prometheus at this address (port 0: any free port).")  # fmt: skip
PORT: Final = click.option("--port", type=click.IntRange(0, 65535), default=8585, metavar="PORT",
    help="Port of the dashboard (0: any free port).")  # fmt: skip
YES: Final = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")


def dry_run(printed: str) -> Decorator:
    return click.option("--dry-run", is_flag=True, help=f"Change nothing; print {printed}.")


UNDO_UNTIL: Final = click.option("--undo-until", type=params.DURATION, metavar="DURATION",
    help="Time from the end of the flow in which it can be undone, such as 30d. Until then, it is"
    " not deleted.")  # fmt: skip


def tags(help: str, kind: params.Parsed = params.TAG) -> Decorator:
    return click.option("--tag", "tags", type=kind, multiple=True, metavar="KEY=VALUE",
        callback=params.once, help=help)  # fmt: skip


def strict(action: str) -> Decorator:
    """Return the option --strict. `action`, what the command does, starts its help text."""
    return click.option("--strict", is_flag=True,
        help=f"{action} if other users can read or change a file with secrets.")  # fmt: skip


STRICT: Final = strict("Refuse to start")
