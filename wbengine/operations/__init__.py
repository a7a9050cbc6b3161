"""Operations on stored flows for the command line, the dashboard and programs.

Each takes the backend that contains the flow, and the uuid of the flow (see `find`).
"""

from wbengine.operations.exporting import export, import_flow
from wbengine.operations.finding import find
from wbengine.operations.moving import move
from wbengine.operations.pausing import pause_tasks, paused_tasks, resume_tasks
from wbengine.operations.removing import delete, prune
from wbengine.operations.resuming import Plan, plan, resume, retry, revert, start
from wbengine.operations.signalling import signal
from wbengine.operations.suspend_and_cancel import StateChange, cancel, is_running, suspend

__all__ = [
    "StateChange",
    "Plan",
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
    "resume",
    "resume_tasks",
    "retry",
    "revert",
    "signal",
    "start",
    "suspend",
]
