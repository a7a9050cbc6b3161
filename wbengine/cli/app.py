"""The command `wbengine`: its commands by name, its help, and how it ends."""

from __future__ import annotations

import errno
import sys
from collections.abc import Sequence
from typing import Any, Final

import click

import wbengine
from wbengine import _streams
from wbengine.cli import base, errors
from wbengine.cli import context as contexts
from wbengine.cli.base import Lazy

__all__ = ["COMMANDS", "main", "root"]


_OF_FLOWS: Final = {
    "run": Lazy("flow_run", "Run a new flow."),
    "submit": Lazy("flow_submit", "Hand a new flow over to `wbengine serve`."),
    "ls": Lazy("flow_ls", "List flows."),
    "show": Lazy("flow_show", "Show a flow: its tasks, failures, and why it waits."),
    "watch": Lazy("flow_watch", "Follow a flow until it ends."),
    "events": Lazy("flow_history", "Print what happened to a flow, in order.", "events"),
    "logs": Lazy("flow_history", "Print what the tasks of a flow logged.", "logs"),
    "export": Lazy("flow_records", "Write down a flow: as JSON, or as a page.", "export"),
    "import": Lazy("flow_records", "Keep a flow that was exported.", "import_command"),
    "resume": Lazy("flow_resume", "Go on with a flow that was suspended, or died."),
    "suspend": Lazy("flow_control", "Ask whoever runs a flow to suspend it.", "suspend"),
    "cancel": Lazy("flow_control", "Ask whoever runs a flow to revert it.", "cancel"),
    "signal": Lazy("flow_control", "Give a flow what a task of it waits for.", "signal"),
    "revert": Lazy("flow_resume", "Undo what a flow did.", "revert"),
    "retry": Lazy("flow_resume", "Run again what failed.", "retry"),
    "delete": Lazy("flow_records", "Forget flows.", "delete"),
}

_OTHERS: Final = {
    "graph": Lazy("graph_command", "Draw a flow."),
    "serve": Lazy("serve_command", "Run the flows that are submitted."),
    "schedule": Lazy("schedule_command", "Submit flows at given times."),
    "limits": Lazy("limits_command", "List the limits that are in use."),
    "worker": Lazy("worker_command", "Run a worker."),
    "workers": Lazy("workers_command", "Look at workers, and tell them what to do."),
    "status": Lazy("status_command", "Who is there, and how busy."),
    "queues": Lazy("queues_command", "Look at queues, and empty them."),
    "db": Lazy("db_command", "Look after the store of flows."),
    "dashboard": Lazy("dashboard_command", "Serve a dashboard."),
    "dev": Lazy("dev_command", "Broker, store, worker and dashboard in one, to try things."),
    "doctor": Lazy("doctor_command", "Find out what is wrong, and how to fix it."),
    "config": Lazy("config_command", "Show settings, and where they come from."),
    "keys": Lazy("keys_command", "Look after the keys that messages are signed with."),
    "plugins": Lazy("plugins_command", "Show what other packages bring along."),
    "completion": Lazy("completion_command", "Print what lets a shell complete commands."),
}

COMMANDS: Final = ("flow", *_OTHERS)

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

root = base.Group(
    "wbengine",
    commands=[base.Group("flow", lazy=_OF_FLOWS, help="Run, watch and repair flows.")],
    lazy=_OTHERS,
    offers="wbengine.commands",
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
