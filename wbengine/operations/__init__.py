"""Operations on stored flows for the command line, the dashboard and programs.

Each takes the backend that contains the flow, and the uuid of the flow (see `find`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wbengine._imports import lazily

if TYPE_CHECKING:
    from wbengine._runtime.undo_plan import UndoPlan
    from wbengine.operations._assigning import assign
    from wbengine.operations._exporting import export, import_flow
    from wbengine.operations._finding import find
    from wbengine.operations._forking import Fork, fork
    from wbengine.operations._moving import move
    from wbengine.operations._pausing import pause_tasks, paused_tasks, resume_tasks
    from wbengine.operations._published_values import published
    from wbengine.operations._removing import delete, prune
    from wbengine.operations._requesting import Edits, Requested, request
    from wbengine.operations._resuming import (
        Plan,
        plan,
        plan_undo,
        resume,
        retry,
        revert,
        start,
    )
    from wbengine.operations._signalling import signal
    from wbengine.operations._suspend_and_cancel import StateChange, cancel, is_running, suspend

__all__ = [
    "Edits",
    "Fork",
    "Requested",
    "StateChange",
    "Plan",
    "UndoPlan",
    "assign",
    "cancel",
    "delete",
    "export",
    "find",
    "fork",
    "import_flow",
    "is_running",
    "move",
    "pause_tasks",
    "paused_tasks",
    "plan",
    "plan_undo",
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

__getattr__, __dir__ = lazily.lazy_attributes(
    __name__,
    {
        ".._runtime.undo_plan": ("UndoPlan",),
        "._assigning": ("assign",),
        "._exporting": ("export", "import_flow"),
        "._finding": ("find",),
        "._forking": ("Fork", "fork"),
        "._moving": ("move",),
        "._pausing": ("pause_tasks", "paused_tasks", "resume_tasks"),
        "._published_values": ("published",),
        "._removing": ("delete", "prune"),
        "._requesting": ("Edits", "Requested", "request"),
        "._resuming": (*("Plan", "plan", "plan_undo", "resume", "retry", "revert", "start"),),
        "._signalling": ("signal",),
        "._suspend_and_cancel": ("StateChange", "cancel", "is_running", "suspend"),
    },
)
