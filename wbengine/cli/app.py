"""The command `wbengine`: its commands by name, its help, and how it ends."""

from __future__ import annotations

import errno
import sys
from collections.abc import Sequence
from typing import Any, Final, NoReturn

import click

import wbengine
from wbengine import _streams
from wbengine.cli import base, errors
from wbengine.cli import context as contexts
from wbengine.cli.lazy import COMMANDS_NAMESPACE, Group, Lazy

__all__ = ["COMMANDS", "main", "root"]


def _here(module: str, text: str) -> Lazy:
    return Lazy(f"wbengine.cli.{module}:command", text)


COMMANDS: Final = {
    "flow": _here("flow_command", "Run, watch and repair flows."),
    "graph": _here("graph_command", "Draw a flow."),
    "serve": _here("serve_command", "Run the flows that are submitted."),
    "schedule": _here("schedule_command", "Submit flows at given times."),
    "limits": _here("limits_command", "List the limits that are in use."),
    "worker": _here("worker_command", "Run a worker."),
    "workers": _here("workers_command", "Look at workers, and tell them what to do."),
    "status": _here("status_command", "Who is there, and how busy."),
    "queues": _here("queues_command", "Look at queues, and empty them."),
    "db": _here("db_command", "Look after the store of flows."),
    "dashboard": _here("dashboard_command", "Serve a dashboard."),
    "dev": _here("dev_command", "Broker, store, worker and dashboard in one, to try things."),
    "doctor": _here("doctor_command", "Find out what is wrong, and how to fix it."),
    "config": _here("config_command", "Show settings, and where they come from."),
    "keys": _here("keys_command", "Look after the keys that messages are signed with."),
    "plugins": _here("plugins_command", "Show what other packages bring along."),
    "completion": _here("completion_command", "Print what lets a shell complete commands."),
}

#: What nothing can be written to says, be it only help.
_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EIO)

_EPILOG: Final = f"""\
\b
{errors.TEXT}

\b
Settings, what counts more first: options; $WBENGINE_URL, $WBENGINE_PERSISTENCE and so on ($.._FILE
names a file that holds it); wbengine.toml, or [tool.wbengine] of pyproject.toml; the user's file.
`wbengine config show` tells what holds, and why.
"""

root = Group(
    "wbengine",
    lazy=COMMANDS,
    offers=COMMANDS_NAMESPACE,
    params=[*base.common_options()],
    help=wbengine.__doc__,
    epilog=_EPILOG,
    context_settings={
        "auto_envvar_prefix": "WBENGINE",
        "help_option_names": ["-h", "--help"],
        "max_content_width": 100,
    },
)
click.version_option(wbengine.__version__, message="%(prog)s %(version)s")(root)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    _streams.ensure()
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    context = contexts.Context(COMMANDS, arguments)
    try:
        found: Any = root.main(
            args=arguments,
            prog_name="wbengine",
            standalone_mode=False,
            obj=context,
        )
        sys.stdout.flush()
    except BrokenPipeError:
        _streams.forget_output()  # `| head` has seen enough
        return errors.OK
    except (Exception, KeyboardInterrupt) as error:
        return _ended(error, context)
    return found if isinstance(found, int) else errors.OK


def _ended(error: BaseException, context: contexts.Context) -> int:
    if isinstance(error, click.UsageError) and error.ctx is not None:
        context.path = error.ctx.command_path
    if isinstance(error, OSError) and error.errno in _FULL and error.filename is None:
        error = errors.Failed(f"the standard output cannot be written: {errors.reason(error)}")
        _streams.forget_output()
    return context.failed(error)


def run() -> NoReturn:
    sys.exit(main())
