"""What may be done to kept flows: the same for the command line, the dashboard, and programs.

Each takes the backend that keeps the flow, and the uuid of the flow (`find` looks one up).  They
are found on first use: who only looks a flow up needs no engine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from wbengine import _lazily

if TYPE_CHECKING:
    from wbengine.operations.commands import Asked, cancel, is_run, suspend
    from wbengine.operations.exporting import export, import_flow
    from wbengine.operations.finding import find
    from wbengine.operations.moving import move
    from wbengine.operations.planning import Plan, plan
    from wbengine.operations.removing import delete, prune
    from wbengine.operations.resuming import resume, retry, revert
    from wbengine.operations.starting import start

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
    "start",
    "suspend",
]

_MODULES: Final = {
    "exporting": ("export", "import_flow"),
    "finding": ("find",),
    "moving": ("move",),
    "planning": ("Plan", "plan"),
    "removing": ("delete", "prune"),
    "resuming": ("resume", "retry", "revert"),
    "starting": ("start",),
    "commands": ("Asked", "cancel", "is_run", "suspend"),
}

__getattr__, __dir__ = _lazily.names(
    __name__,
    {name: f"{__name__}.{module}" for module, names in _MODULES.items() for name in names},
)
