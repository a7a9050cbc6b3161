"""`wbengine flow`: run, watch and repair flows."""

from __future__ import annotations

from typing import Final

from wbengine.cli.lazy import Group, Lazy

__all__ = ["command"]


def _here(name: str, text: str) -> Lazy:
    return Lazy(f"wbengine.cli.flow_{name}:command", text)


_COMMANDS: Final = {
    "run": _here("run", "Run a new flow."),
    "submit": _here("submit", "Hand a new flow over to `wbengine serve`."),
    "ls": _here("ls", "List flows."),
    "show": _here("show", "Show a flow: its tasks, failures, and why it waits."),
    "watch": _here("watch", "Follow a flow until it ends."),
    "events": _here("events", "Print what happened to a flow, in order."),
    "logs": _here("logs", "Print what the tasks of a flow logged."),
    "export": _here("export", "Write down a flow: as JSON, or as a page."),
    "import": Lazy("wbengine.cli.flow_export:import_command", "Keep a flow that was exported."),
    "resume": _here("resume", "Go on with a flow that was suspended, or died."),
    "suspend": _here("suspend", "Ask whoever runs a flow to suspend it."),
    "cancel": Lazy("wbengine.cli.flow_suspend:cancel", "Ask whoever runs a flow to revert it."),
    "signal": _here("signal", "Give a flow what a task of it waits for."),
    "revert": Lazy("wbengine.cli.flow_resume:revert", "Undo what a flow did."),
    "retry": Lazy("wbengine.cli.flow_resume:retry", "Run again what failed."),
    "delete": _here("delete", "Forget flows."),
}

command = Group("flow", lazy=_COMMANDS, help="Run, watch and repair flows.")
