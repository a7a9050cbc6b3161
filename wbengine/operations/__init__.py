"""Operations on stored flows for the command line, the dashboard and programs.

Each takes the backend that contains the flow, and the uuid of the flow (see `find`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wbengine import _lazily

if TYPE_CHECKING:
    from wbengine.operations.assigning import assign
    from wbengine.operations.exporting import export, import_flow
    from wbengine.operations.finding import find
    from wbengine.operations.moving import move
    from wbengine.operations.pausing import pause_tasks, paused_tasks, resume_tasks
    from wbengine.operations.published_values import published
    from wbengine.operations.removing import delete, prune
    from wbengine.operations.requesting import Edits, Requested, request
    from wbengine.operations.resuming import Plan, plan, resume, retry, revert, start
    from wbengine.operations.signalling import signal
    from wbengine.operations.suspend_and_cancel import StateChange, cancel, is_running, suspend

__all__ = [
    "Edits",
    "Requested",
    "StateChange",
    "Plan",
    "assign",
    "cancel",
    "delete",
    "export",
    "find",
    "import_flow",
    "is_running",
    "move",
    "pause_tasks",
    "paused_tasks",
    "plan",
    "prune",
    "published",
    "request",
    "resume",
    "resume_tasks",
    "retry",
    "revert",
    "signal",
    "start",
    "suspend",
]

__getattr__, __dir__ = _lazily.lazy_attributes(
    __name__,
    {
        ".assigning": ("assign",),
        ".exporting": ("export", "import_flow"),
        ".finding": ("find",),
        ".moving": ("move",),
        ".pausing": ("pause_tasks", "paused_tasks", "resume_tasks"),
        ".published_values": ("published",),
        ".removing": ("delete", "prune"),
        ".requesting": ("Edits", "Requested", "request"),
        ".resuming": ("Plan", "plan", "resume", "retry", "revert", "start"),
        ".signalling": ("signal",),
        ".suspend_and_cancel": ("StateChange", "cancel", "is_running", "suspend"),
    },
)
