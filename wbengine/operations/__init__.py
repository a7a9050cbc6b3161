"""What may be done to kept flows: the same for the command line, the dashboard, and programs.

Each takes the backend that keeps the flow, and the uuid of the flow (`find` looks one up).
"""

from wbengine.operations.commands import Asked, cancel, is_run, suspend
from wbengine.operations.exporting import export, import_flow
from wbengine.operations.finding import find
from wbengine.operations.moving import move
from wbengine.operations.removing import delete, prune
from wbengine.operations.resuming import Plan, plan, resume, retry, revert, start
from wbengine.operations.signalling import signal

__all__ = [
    "Asked",
    "Plan",
    "cancel",
    "delete",
    "export",
    "find",
    "import_flow",
    "is_run",
    "move",
    "plan",
    "prune",
    "resume",
    "retry",
    "revert",
    "signal",
    "start",
    "suspend",
]
