"""Entry point of the `wbengine` command: names of the commands, help and exit codes."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from typing import Any, Final

import click

import wbengine
from wbengine._cli import base, errors, standard_streams
from wbengine._cli import context as contexts
from wbengine._cli.base import Lazy
from wbengine._introspection import object_names

__all__ = ["COMMANDS", "main", "root"]


_FLOW_COMMANDS: Final = {
    "run": Lazy("flow_run", "Run a new flow."),
    "schema": Lazy("flow_schema", "Print the JSON schema of the inputs of a flow."),
    "submit": Lazy("flow_submit", "Submit a new flow to `wbengine serve`."),
    "list": Lazy("flow_list", "List flows."),
    "show": Lazy("flow_show", "Show the tasks, failures and waits of a flow."),
    "watch": Lazy("flow_watch", "Watch a flow until its run ends."),
    "get": Lazy("flow_get", "Print the values that the workflows of a flow published."),
    "events": Lazy("flow_history", "Print the events of a flow in order.", "events"),
    "debug": Lazy("flow_debug", "Replay the workflow of a flow in a debugger."),
    "diff": Lazy("flow_diff", "Show where two runs part."),
    "record": Lazy("flow_record", "Record the steps of a workflow for a test."),
    "assign": Lazy("flow_assign", "Assign flows to another version of their code."),
    "logs": Lazy("flow_history", "Print the log lines of the tasks and steps of a flow.", "logs"),
    "export": Lazy("flow_records", "Export a flow as JSON or as an HTML page.", "export"),
    "import": Lazy("flow_records", "Import an exported flow into the store.", "import_command"),
    "resume": Lazy("flow_resume", "Resume a flow that was suspended or lost its engine."),
    "suspend": Lazy("flow_control", "Suspend a running flow.", "suspend"),
    "cancel": Lazy("flow_control", "Cancel a flow and revert its tasks.", "cancel"),
    "signal": Lazy("flow_control", "Send a signal to a flow.", "signal"),
    "revert": Lazy("flow_resume", "Revert the completed tasks of a flow.", "revert"),
    "retry": Lazy("flow_resume", "Run the failed tasks of a flow again.", "retry"),
    "delete": Lazy("flow_records", "Delete flows and their records.", "delete"),
    "prune": Lazy("flow_prune", "Delete flows that ended long ago, with their logs and jobs."),
}

_TOP_LEVEL_COMMANDS: Final = {
    "graph": Lazy("graph_command", "Draw a flow."),
    "serve": Lazy("serve_command", "Run submitted flows and fire schedules."),
    "schedule": Lazy("schedule_command", "Manage schedules, which submit flows at given times."),
    "bulk": Lazy("bulk_command", "List, resume and cancel operations on many flows."),
    "tasks": Lazy("tasks_command", "Pause and resume task types in all flows of the store."),
    "jobs": Lazy(
        "jobs_command", "List the queues of submitted flows with their keys, and pause them."
    ),
    "limits": Lazy("limits_command", "List the limits of tasks and flows, and change them."),
    "worker": Lazy("worker_command", "Run a worker."),
    "workers": Lazy("workers_command", "List and control workers."),
    "status": Lazy("status_command", "Show the broker, the workers and the work of conductors."),
    "queues": Lazy("queues_command", "List and purge queues; list and resend requests."),
    "deploy": Lazy("deploy_command", "Check new code against the flows of a store."),
    "db": Lazy("db_command", "Create, check and copy the store of flows."),
    "notify": Lazy("notify_command", "Check the destinations of notifications."),
    "dashboard": Lazy("dashboard_command", "Serve the dashboard."),
    "mcp": Lazy("mcp_command", "Serve tools for coding assistants."),
    "dev": Lazy("dev_command", "Start a broker, store, worker and dashboard for development."),
    "doctor": Lazy("doctor_command", "Find problems and print how to fix them."),
    "config": Lazy("config_command", "Show settings and their sources."),
    "access": Lazy("access_command", "Create, list, revoke and rotate keys of the HTTP API."),
    "keys": Lazy("keys_command", "Create, show and rotate the keys that sign and encrypt."),
    "plugins": Lazy("plugins_command", "List plug-ins of installed packages."),
    "completion": Lazy("completion_command", "Print the completion script for a shell."),
}

COMMANDS: Final = ("flow", *_TOP_LEVEL_COMMANDS)

#: Errors of a write that mean that the standard output is full or broken.
_OUTPUT_ERRORS: Final = (errno.ENOSPC, errno.EDQUOT, errno.EIO)

_EPILOG: Final = f"""\
\b
{errors.TEXT}

\b
Settings are read from these sources, in this order of precedence:
  1  options
  2  environment variables ($WBENGINE_URL_FILE names a file that contains the value, likewise
     for LEDGER, PERSISTENCE and BOARD)
  3  wbengine.toml, or [tool.wbengine] in pyproject.toml
  4  the user's file, ~/.config/wbengine/config.toml
`wbengine config show` prints each setting and its source.
"""

root = base.Group(
    "wbengine",
    commands=[
        base.Group("flow", lazy=_FLOW_COMMANDS, subject="flow", help="Run, watch and repair flows.")
    ],
    lazy=_TOP_LEVEL_COMMANDS,
    entry_points="wbengine.commands",
    params=[*base.common_options()],
    help=wbengine.__doc__,
    epilog=_EPILOG,
    context_settings={
        "auto_envvar_prefix": "WBENGINE",
        "help_option_names": ["-h", "--help"],
        "max_content_width": 100,
        "show_default": True,
    },
)
click.version_option(wbengine.__version__, message="%(prog)s %(version)s")(root)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return the exit code."""
    if os.getpid() == 1:  # in a container without an init
        object_names.load("wbengine._cli.reaper:continue_in_child")()
    standard_streams.ensure()
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    context = contexts.Context(COMMANDS, arguments)
    try:
        result: Any = root.main(
            args=arguments,
            prog_name="wbengine",
            standalone_mode=False,
            obj=context,
        )
        sys.stdout.flush()
    except BrokenPipeError:
        standard_streams.forget_output()  # the reader ended, as in `| head`
        return errors.OK
    except (Exception, KeyboardInterrupt) as error:
        return _report(error, context)
    return result if isinstance(result, int) else errors.OK


def _report(error: BaseException, context: contexts.Context) -> int:
    if isinstance(error, click.UsageError) and error.ctx is not None:
        context.path = error.ctx.command_path
    if isinstance(error, OSError) and error.errno in _OUTPUT_ERRORS and error.filename is None:
        error = errors.Failed(f"cannot write to the standard output: {errors.reason(error)}")
        standard_streams.forget_output()
    return context.failed(error)
